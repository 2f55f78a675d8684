"""Bundles that build on one another: in which order, and whether what they build on is here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from mirror.bundle.reader import Reader
from mirror.core.artifact import Artifact
from mirror.core.delta import deltas
from mirror.core.index import Index, total_size
from mirror.core.paths import shown
from mirror.core.text import counted, human_size
from mirror.errors import BundleError, TargetError, UsageError
from mirror.store.generation import Generation
from mirror.store.generations import Root

_NAMED = 12


def arriving(readers: Sequence[Reader]) -> list[Artifact]:
    """What all of them together ship, and what is made of that."""
    return [
        artifact
        for reader in readers
        for artifact in (*reader.index.shipped, *(d.result for d in deltas(reader.index)))
    ]


def require_chain(readers: Sequence[Reader]) -> None:
    """Raises UsageError unless each of the bundles serves the last, the one to be put in use."""
    given = {reader.index.digest: reader.name for reader in readers}
    if len(given) < len(readers):
        raise UsageError("two of the bundles are the same", problems=[r.name for r in readers])
    problems = []
    for number, reader in enumerate(readers):
        later = readers[number + 1 :]
        if reader.index.base in {r.index.digest for r in later}:
            problems.append(f"{reader.name} builds on {given[reader.index.base or '']}, after it")
        elif later and not _serves(reader.index, [r.index for r in later]):
            problems.append(f"{reader.name} is nothing that the ones after it build on")
    if problems:
        raise UsageError(
            "these bundles are no chain",
            problems=problems,
            hint="Name what is built on first. Only the last is put in use; install bundles that"
            " have nothing to do with each other one by one.",
        )


def _serves(index: Index, later: Sequence[Index]) -> bool:
    """Whether a later bundle builds on it, or needs one of its artifacts and does not ship that."""
    if index.digest in {other.base for other in later}:
        return True
    shipped = {artifact.sha256 for artifact in index.shipped}
    return any(a.sha256 in shipped for other in later for a in _held(other))


def require_held(readers: Sequence[Reader], root: Root) -> None:
    """Raises TargetError, naming them, where artifacts that the last bundle builds on are missing.

    They have to be in the root's store, or in one of the bundles before it.
    """
    *before, last = readers
    brought = {artifact.sha256 for artifact in arriving(readers)}
    missing = {
        a.sha256: a
        for a in _held(last.index)
        if a.sha256 not in brought and not root.blobs.has(a.sha256, a.size)
    }
    for delta in (delta for reader in readers for delta in deltas(reader.index)):
        if delta.base not in brought and not root.blobs.has(delta.base):
            older = f"{delta.result.path} in its older version"
            missing[delta.base] = replace(delta.result, path=older)
    if not missing:
        return
    lines = [f"{shown(a.path)} ({human_size(a.size)})" for a in list(missing.values())[:_NAMED]]
    if len(missing) > _NAMED:
        lines.append(f"and {len(missing) - _NAMED:,} more")
    size = human_size(total_size(list(missing.values())))
    raise TargetError(
        f"{last.name} builds on {counted(len(missing), 'file')} ({size}) that neither it holds nor"
        f" the root {root.path}",
        problems=[*lines, *_whereabouts(last.index, before, root)],
        hint="Install the bundle that holds them first (mirror inspect tells a bundle's digest), or"
        f" in one go: mirror install BASE {last.name}. Or build for what is here: mirror probe,"
        " then mirror build --since its file.",
    )


def _whereabouts(index: Index, before: Sequence[Reader], root: Root) -> Iterator[str]:
    """Which bundle holds what is missing, and how this root stands to it."""
    if index.base is None:
        yield "it was built for a root with them, and names no bundle that holds them"
        return
    yield f"the bundle {index.base} holds them, or one that it builds on"
    if names := [reader.name for reader in before if reader.index.digest == index.base]:
        yield f"{names[0]} is that bundle; what it builds on is missing too"
        return
    installed = {g.number: found for g in root.generations() if (found := _index(g))}
    if numbers := [n for n, found in installed.items() if found.digest == index.base]:
        yield f"that bundle is generation {numbers[-1]} here, and its files have gone since"
        return
    for number, found in list(installed.items())[-_NAMED:]:
        yield f"here is generation {number}: {found.name} {found.version}, {found.digest}"
    if not installed:
        yield "nothing is installed here"


def _index(generation: Generation) -> Index | None:
    """What it holds; None when its record is damaged: that is not what is asked here."""
    try:
        return generation.index()
    except BundleError:
        return None


def _held(index: Index) -> Iterator[Artifact]:
    """What it lists and does not ship, nor ships at another place."""
    shipped = {artifact.sha256 for artifact in index.shipped}
    return (
        entry.artifact
        for entry in index.entries
        if not entry.shipped and entry.artifact.sha256 not in shipped
    )
