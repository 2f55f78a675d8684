"""From what a person names on the command line to bundles that can be read."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mirror.bundle import beside
from mirror.bundle.arrival import open_volumes
from mirror.bundle.reader import Reader, blamed
from mirror.bundle.sources import File, Source, open_file
from mirror.bundle.volumes import LIST_SUFFIX, bundle_name, list_path
from mirror.core.paths import masked, shown
from mirror.core.progress import Progress
from mirror.errors import BundleError, MirrorError, UsageError, together

if TYPE_CHECKING:
    from mirror.trust.judging import Judge

STDIN = "-"


@contextmanager
def opened(
    names: Sequence[str], progress: Progress, judge: Judge | None = None
) -> Iterator[list[Reader]]:
    """Each bundle with its head read, in the order in which they are named.

    A name is a path, `-` for standard input, or a volume or list of volumes; those of one bundle
    may lie in several folders, and count once. judge: of their signatures, in them and beside them.
    Raises as `Reader.open` and `open_volumes` do, of all that cannot be read.
    """
    with ExitStack() as stack:
        readers: list[Reader] = []
        failures: list[MirrorError] = []
        for group in _groups(names):
            try:
                readers.append(stack.enter_context(_open(group, progress, judge)))
            except MirrorError as error:
                failures.append(error)
        if failures:
            raise together(failures)
        yield readers


def files_of(name: str, progress: Progress) -> list[Path]:
    """The files whose bytes in a row are the bundle of this name: itself, or its volumes.

    Raises as `opened` does.
    """
    first = Path(name)
    if whole := bundle_name(first.name):
        return open_volumes(whole, [first.parent], progress).files
    return [first]


def _open(group: Sequence[str], progress: Progress, judge: Judge | None) -> Reader:
    signatures = beside.read(_signatures(group))
    source = _source(group, progress, judge)
    try:
        return Reader.open(source, judge, signatures)
    except BundleError as error:
        raise blamed(error, source, progress) from None


def _groups(names: Sequence[str]) -> list[list[str]]:
    """The names, those of one bundle's volumes together."""
    if names.count(STDIN) > 1:
        raise UsageError("standard input holds one bundle; - is named twice")
    groups: dict[str, list[str]] = {}
    there = {str(beside.path(Path(name))) for name in names if Path(name).name}
    for name in names:
        if str(Path(name)) in there:  # of another one: people name all that is in a folder
            continue
        whole = bundle_name(Path(name).name)
        # A bundle of its own under its whole name, be it that of a volumes' bundle.
        groups.setdefault(f"volumes of {whole}" if whole else f"file {name}", []).append(name)
    return list(groups.values())


def _signatures(group: Sequence[str]) -> list[Path]:
    """Where signatures beside the bundle would be: once in each folder that has a part of it."""
    if group == [STDIN]:
        return []
    files = [path for path in map(Path, group) if path.name]
    wholes = (file.with_name(bundle_name(file.name) or file.name) for file in files)
    return list(dict.fromkeys(map(beside.path, wholes)))


def _source(group: Sequence[str], progress: Progress, judge: Judge | None) -> Source:
    if group == [STDIN]:
        return _stdin()
    if "://" in group[0]:
        raise UsageError(
            f"{shown(masked(group[0]))} is an address; bundles are read from files and pipes",
            hint="Look at it with mirror inspect, and carry it here.",
        )
    first = Path(group[0])
    if len(group) > 1 and not bundle_name(first.name):
        raise UsageError(f"{first} is named twice")
    if whole := bundle_name(first.name):
        folders = dict.fromkeys(Path(name).parent for name in group)
        return open_volumes(whole, list(folders), progress, judge)
    if first.is_dir():
        raise _no_bundle(first)
    if not first.exists() and list_path(first).is_file():
        return open_volumes(first.name, [first.parent], progress, judge)
    return open_file(first)


def _no_bundle(folder: Path) -> UsageError:
    """A folder was named: which bundles are in it."""
    files = sorted(p for p in folder.iterdir() if p.name.endswith((".tar.gz", LIST_SUFFIX)))
    hint = "Name what is meant of these." if files else None
    if any(file.name.endswith(LIST_SUFFIX) for file in files):
        hint = f"{hint} Whether all volumes have arrived: mirror inspect --volumes {folder}"
    return UsageError(
        f"{shown(str(folder))} is a folder, not a bundle",
        problems=[shown(str(file)) for file in files],
        hint=hint,
    )


def _stdin() -> Source:
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError(
            "standard input is a terminal, not a bundle",
            hint="Send one into it: ssh BUILDER mirror build -o - | mirror install -",
        )
    return File(os.dup(sys.stdin.fileno()), "standard input")
