"""mirror inspect: what a bundle holds, told from its head alone, or after reading every byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from mirror.bundle import recovery
from mirror.bundle.arrival import Arrival, Arrived, find_list, find_names, list_standing, look
from mirror.bundle.reader import Reader
from mirror.core import bill as bills
from mirror.core.artifact import Artifact, Json
from mirror.core.delta import deltas
from mirror.core.index import Index, total_size
from mirror.core.paths import shown
from mirror.core.progress import Progress, Quiet
from mirror.core.text import counted, human_size
from mirror.errors import MirrorError, UsageError, together

if TYPE_CHECKING:
    from mirror.trust.judging import Judge, Standing

#: What of an artifact's origin is told to programs, where it has it.
_ABOUT = ("name", "version", "repo", "revision", "commit", "license", "gated", "pickle")


@dataclass(frozen=True, slots=True)
class Seen:
    """A bundle as inspect saw it. size: in bytes. `checked`: every byte was read and is right.

    standing: what its signatures are worth here, where that was asked.
    """

    index: Index
    size: int
    signed: bool
    checked: bool
    standing: Standing | None = None


def inspect(reader: Reader, *, deep: bool, progress: Progress) -> Seen:
    """What a bundle's head says; deep: after reading all of it. Raises BundleError for damage."""
    if deep:
        reader.check(progress)
    standing = reader.standing
    signed = bool(standing.findings) if standing else bool(reader.signature)
    return Seen(reader.index, reader.size, signed, deep, standing)


def bill(reader: Reader) -> bytes:
    """The bundle's bill of materials, read no further than to its end; its hash is right.

    Raises UsageError where the bundle does not ship one, BundleError for damage before its end.
    """
    wanted = bills.find(reader.index, reader.name)
    if wanted not in reader.index.shipped:
        raise UsageError(
            f"{reader.name} is an increment, and its bill of materials is that of its base",
            hint="Inspect the base, or on the server: mirror list --sbom",
        )
    data = bytearray()

    def take(artifact: Artifact, offset: int, view: memoryview, last: bool) -> None:
        if artifact == wanted:
            data.extend(view)
            if last:
                raise _Enough

    try:
        reader.copy(take, Quiet(), ahead=1)
    except _Enough:
        return bytes(data)
    raise RuntimeError("a reader hands on all that is shipped")


class _Enough(Exception):  # noqa: N818 -- it ends a reading that went well
    """The rest of a bundle need not be read."""


def arrived(
    folders: Sequence[Path], progress: Progress, judge: Judge | None = None
) -> list[Arrival]:
    """What has arrived of every bundle that has volumes in these folders, each byte read.

    Raises UsageError where there are none, or no list of them; BundleError for a wrong list.
    """
    found: list[Arrival] = []
    failures: list[MirrorError] = []
    for name in find_names(folders):
        try:
            place = find_list(name, folders)
            standing = list_standing(place, judge) if judge else None
            found.append(replace(look(place, folders, progress), standing=standing))
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
    found = look(arrival.place, [into, *folders], progress, hashes=False)
    return replace(found, standing=arrival.standing)


def arrival_lines(arrival: Arrival) -> list[str]:
    """For people."""
    known, lost = arrival.known, arrival.lost
    count, whole = len(known.volumes), len(known.volumes) - len(lost)
    text = [
        f"{known.name}: {whole} of {counted(count, 'volume')} whole, {human_size(known.size)}",
        f"  digest   {known.bundle}",
        *_signed("list", arrival.standing),
        *(f"  {item}" for item in (*arrival.volumes, *arrival.recovery)),
        *(f"  {stray}" for stray in arrival.strays),
    ]
    if not lost:
        folders = {item.path.parent: item.path for item in arrival.volumes if item.path}
        folders[arrival.place.parent] = arrival.place  # one file of each folder
        return [*text, f"  install  mirror install {' '.join(map(str, folders.values()))}"]
    for item in lost:
        if item.state == "renamed":
            text.append(f"  rename   {item.path} to {item.part.name}")
    if gone := [item.part.name for item in lost if item.state != "renamed"]:
        text.append(f"  send again: {' '.join(gone)}")
    if any(item.state == "whole" for item in arrival.recovery):
        text.append("  or rebuild them from the recovery data: --repair DIR")
    return text


def arrival_document(arrival: Arrival) -> Json:
    """For programs."""
    return {
        "name": arrival.known.name,
        "digest": arrival.known.bundle,
        "bytes": arrival.known.size,
        "trust": arrival.standing.to_json() if arrival.standing else None,
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
        *([f"  ships    {_ships(index)}"] if (needs := _needs(index)) else []),
        *([f"  needs    {needs} in the root's store"] if needs else []),
        *_signed("signed", seen.standing),
        f"  made by  mirror {index.tool}{_when(index)}",
        f"  lock     {index.lock}",
        *([f"  manifest {made.manifest}"] if (made := index.provenance) else []),
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
        "trust": seen.standing.to_json() if seen.standing else None,
        "checked": seen.checked,
        "tool": index.tool,
        "lock": index.lock,
        "provenance": {"manifest": made.manifest, "time": made.time}
        if (made := index.provenance)
        else None,
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


def _when(index: Index) -> str:
    """The time that its builder has given it; the clock of no machine is known."""
    made = index.provenance
    if made is None or made.time is None:
        return ""
    return f", dated {datetime.fromtimestamp(made.time, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def _signed(label: str, standing: Standing | None) -> list[str]:
    first, *more = standing.lines() if standing else [""]
    first = first.replace("not signed", "no").removeprefix("signed ")
    return [f"  {label:8} {first}", *(f"  {'':8} {line}" for line in more)] if first else []


def _needs(index: Index) -> str:
    """What an increment leaves out, empty when it leaves out nothing."""
    made = {found.result.sha256 for found in deltas(index)}
    held = [e.artifact for e in index.entries if not e.shipped and e.artifact.sha256 not in made]
    needs = [f"{counted(len(held), 'file')}, {human_size(total_size(held))}"] if held else []
    needs += [counted(len(made), "file") + " in an older version"] if made else []
    return ", and ".join(needs)


def _ships(index: Index) -> str:
    shipped = index.shipped
    return f"{counted(len(shipped), 'file')}, {human_size(total_size(shipped))}"


def _shortened(provided: tuple[str, ...]) -> str:
    """The first few, and how many more."""
    more = len(provided) - 8
    return ", ".join(provided[:8]) + (f" and {more} more" if more > 0 else "")
