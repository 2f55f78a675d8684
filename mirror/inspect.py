"""mirror inspect: what a bundle holds, told from its head alone, or after reading every byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mirror.bundle import recovery
from mirror.bundle.arrival import Arrival, Arrived, find_list, find_names, look
from mirror.bundle.reader import Reader
from mirror.core.artifact import Json
from mirror.core.index import Index, total_size
from mirror.core.paths import shown
from mirror.core.progress import Progress
from mirror.core.text import counted, human_size
from mirror.errors import MirrorError, together

#: What of an artifact's origin is told to programs, where it has it.
_ABOUT = ("name", "version", "repo", "revision", "commit", "license", "gated", "pickle")


@dataclass(frozen=True, slots=True)
class Seen:
    """A bundle as inspect saw it. size: in bytes. `checked`: every byte was read and is right."""

    index: Index
    size: int
    signed: bool
    checked: bool


def inspect(reader: Reader, *, deep: bool, progress: Progress) -> Seen:
    """What a bundle's head says; deep: after reading all of it. Raises BundleError for damage."""
    if deep:
        reader.check(progress)
    return Seen(reader.index, reader.size, bool(reader.signature), deep)


def arrived(folders: Sequence[Path], progress: Progress) -> list[Arrival]:
    """What has arrived of every bundle that has volumes in these folders, each byte read.

    Raises UsageError where there are none, or no list of them; BundleError for a wrong list.
    """
    found: list[Arrival] = []
    failures: list[MirrorError] = []
    for name in find_names(folders):
        try:
            found.append(look(find_list(name, folders), folders, progress))
        except MirrorError as error:
            failures.append(error)
    if failures:
        raise together(failures)
    return found


def repaired(arrival: Arrival, folders: Sequence[Path], into: Path, progress: Progress) -> Arrival:
    """The same after the lost volumes were rebuilt into a folder. Raises as `recovery.repair`."""
    if not arrival.lost:
        return arrival
    for part in recovery.repair(arrival, into, progress):
        progress.step(f"rebuilt {into / part.name}")
    return look(arrival.place, [into, *folders], progress, hashes=False)


def arrival_lines(arrival: Arrival) -> list[str]:
    """For people."""
    known, lost = arrival.known, arrival.lost
    count, whole = len(known.volumes), len(known.volumes) - len(lost)
    text = [
        f"{known.name}: {whole} of {counted(count, 'volume')} whole, {human_size(known.size)}",
        f"  digest   {known.bundle}",
        *(f"  {item}" for item in (*arrival.volumes, *arrival.recovery)),
        *(f"  {stray}" for stray in arrival.strays),
    ]
    if not lost:
        folders = {item.path.parent: item.path for item in arrival.volumes if item.path}
        folders[arrival.place.parent] = arrival.place  # one file of each folder
        return [*text, f"  install  mirror install {' '.join(map(str, folders.values()))}"]
    text.append(f"  send again: {' '.join(item.part.name for item in lost)}")
    if any(item.state == "whole" for item in arrival.recovery):
        text.append("  or rebuild them from the recovery data: --repair DIR")
    return text


def arrival_document(arrival: Arrival) -> Json:
    """For programs."""
    return {
        "name": arrival.known.name,
        "digest": arrival.known.bundle,
        "bytes": arrival.known.size,
        "whole": not arrival.lost,
        "volumes": [_part(item) for item in arrival.volumes],
        "recovery": [_part(item) for item in arrival.recovery],
        "strays": list(arrival.strays),
    }


def _part(item: Arrived) -> Json:
    path = str(item.path) if item.path else None
    return {"name": item.part.name, "state": item.state, "path": path, "says": item.says}


def lines(seen: Seen, *, files: bool) -> list[str]:
    """For people."""
    index = seen.index
    provided = index.target.provided if index.target else ()
    size, count = Counter[str](), Counter[str]()
    for artifact in index.artifacts:
        size[artifact.kind] += artifact.size
        count[artifact.kind] += 1
    text = [
        f"{index.name} {index.version}",
        f"  target   {index.target or 'any machine'}",
        *([f"  expects  {_shortened(provided)}"] if provided else []),
        f"  size     {human_size(seen.size)}",
        f"  digest   {index.digest}",
        *([f"  base     {index.base}"] if index.base else []),
        *([f"  needs    {needs} in the root's store"] if (needs := _needs(index)) else []),
        f"  signed   {'yes' if seen.signed else 'no'}",
        f"  made by  mirror {index.tool}",
        *(f"  {kind:8} {counted(count[kind], 'file')}, {human_size(size[kind])}" for kind in count),
    ]
    if seen.checked:
        text.append("  every byte is as the index says")
    if files:
        text += [f"{a.sha256}  {a.size:>14,}  {shown(a.path)}" for a in index.artifacts]
    return text


def document(seen: Seen) -> Json:
    """For programs."""
    index = seen.index
    return {
        "name": index.name,
        "version": index.version,
        "digest": index.digest,
        "base": index.base,
        "bytes": seen.size,
        "signed": seen.signed,
        "checked": seen.checked,
        "tool": index.tool,
        "target": index.target.to_json() if index.target else None,
        "artifacts": [
            {
                "kind": a.kind,
                "path": a.path,
                "size": a.size,
                "sha256": a.sha256,
                "shipped": entry.shipped,
                **{key: a.origin[key] for key in _ABOUT if key in a.origin},
            }
            for entry in index.entries
            for a in (entry.artifact,)
        ],
    }


def _needs(index: Index) -> str:
    """What an increment leaves out, empty when it leaves out nothing."""
    held = [entry.artifact for entry in index.entries if not entry.shipped]
    return f"{counted(len(held), 'file')}, {human_size(total_size(held))}" if held else ""


def _shortened(provided: tuple[str, ...]) -> str:
    """The first few, and how many more."""
    more = len(provided) - 8
    return ", ".join(provided[:8]) + (f" and {more} more" if more > 0 else "")
