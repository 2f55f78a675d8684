"""From what a person names on the command line to bundles that can be read."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from mirror.bundle.arrival import open_volumes
from mirror.bundle.reader import Reader, blamed
from mirror.bundle.sources import File, Source, open_file
from mirror.bundle.volumes import bundle_name
from mirror.core.paths import masked, shown
from mirror.core.progress import Progress
from mirror.errors import BundleError, MirrorError, UsageError, together

STDIN = "-"


@contextmanager
def opened(names: Sequence[str], progress: Progress) -> Iterator[list[Reader]]:
    """Each bundle with its head read, in the order in which they are named.

    A name is a path, `-` for standard input, or a volume or list of volumes; those of one bundle
    may lie in several folders, and count once. Raises as `Reader.open` and `open_volumes` do, of
    all that cannot be read.
    """
    with ExitStack() as stack:
        readers: list[Reader] = []
        failures: list[MirrorError] = []
        for group in _groups(names):
            try:
                readers.append(stack.enter_context(_open(group, progress)))
            except MirrorError as error:
                failures.append(error)
        if failures:
            raise together(failures)
        yield readers


def _open(group: Sequence[str], progress: Progress) -> Reader:
    source = _source(group, progress)
    try:
        return Reader.open(source)
    except BundleError as error:
        raise blamed(error, source, progress) from None


def _groups(names: Sequence[str]) -> list[list[str]]:
    """The names, those of one bundle's volumes together."""
    if names.count(STDIN) > 1:
        raise UsageError("standard input holds one bundle; - is named twice")
    groups: dict[str, list[str]] = {}
    for name in names:
        whole = bundle_name(Path(name).name)
        # A bundle of its own under its whole name, be it that of a volumes' bundle.
        groups.setdefault(f"volumes of {whole}" if whole else f"file {name}", []).append(name)
    return list(groups.values())


def _source(group: Sequence[str], progress: Progress) -> Source:
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
        return open_volumes(whole, list(folders), progress)
    return open_file(first)


def _stdin() -> Source:
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError(
            "standard input is a terminal, not a bundle",
            hint="Send one into it: ssh BUILDER mirror build -o - | mirror install -",
        )
    return File(os.dup(sys.stdin.fileno()), "standard input")
