"""mirror inspect: what a bundle holds, told from its head alone, or after reading every byte."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from mirror.bundle.reader import Reader
from mirror.core.artifact import Json
from mirror.core.index import Index
from mirror.core.paths import shown
from mirror.core.progress import Progress
from mirror.core.text import counted, human_size


@dataclass(frozen=True, slots=True)
class Seen:
    """A bundle as inspect saw it. `checked`: every byte was read and is right."""

    path: Path
    index: Index
    size: int
    signed: bool
    checked: bool


def inspect(bundle: Path, *, deep: bool, progress: Progress) -> Seen:
    """Read a bundle's head, or all of it; change nothing. Raises BundleError for damage."""
    with Reader.open(bundle) as reader:
        if deep:
            reader.check(progress)
        return Seen(bundle, reader.index, bundle.stat().st_size, bool(reader.signature), deep)


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
        "bytes": seen.size,
        "signed": seen.signed,
        "checked": seen.checked,
        "tool": index.tool,
        "target": index.target.to_json() if index.target else None,
        "artifacts": [
            {"kind": a.kind, "path": a.path, "size": a.size, "sha256": a.sha256}
            for a in index.artifacts
        ],
    }


def _shortened(provided: tuple[str, ...]) -> str:
    """The first few, and how many more."""
    more = len(provided) - 8
    return ", ".join(provided[:8]) + (f" and {more} more" if more > 0 else "")
