"""Of the channels' repodata, what a solve can reach: some thousand records of half a million.

rattler takes about 4 kB of memory for each record that it is given to solve with, and the file of
a large channel is 300 MB. So the records that the specs can reach at all are copied into small
files, and the large ones are let go of before anything is solved.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING

from mirror.ecosystems.conda import bridge
from mirror.ecosystems.conda.solving.subdirs import Subdir

if TYPE_CHECKING:
    import rattler

_NAME = re.compile(r"(?:[^\s\[]*::)?([A-Za-z0-9_.-]+)")
#: Names that are looked up at once.
_BATCH = 200


@dataclass(frozen=True, slots=True)
class Selection:
    """Which records count.

    bound: name of a package -> channel, and its subdir if not None, that it has to come from.
    without: names of packages that the machine has, or is. kept: subdir and file of records that
    are to be found again.
    """

    bound: Mapping[str, tuple[str, str | None]]
    without: frozenset[str]
    kept: Collection[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Reachable:
    """What was found, opened for solving.

    repodata: in the order of priority. kept: the records that were to be found again.
    """

    repodata: Sequence[rattler.SparseRepoData]
    kept: Sequence[rattler.RepoDataRecord]

    def named(self, name: str) -> list[rattler.RepoDataRecord]:
        """All records of a package."""
        with bridge.translated():
            return [record for part in self.repodata for record in part.load_records(name)]


@contextmanager
def reachable(
    channels: AbstractContextManager[Sequence[Subdir]], names: Iterable[str], selection: Selection
) -> Iterator[Reachable]:
    """Every record of these packages, of what they depend on, and so on.

    channels: their subdirs, in the order of priority; let go of when all is found.
    Raises DownloadError for a malformed record among them.
    """
    import rattler

    with TemporaryDirectory(prefix="mirror-") as folder:
        with channels as subdirs:
            copies = [_Copy(subdir, Path(folder, str(n))) for n, subdir in enumerate(subdirs)]
            try:
                kept = list(_copy(copies, names, selection))
            finally:
                for copy in copies:
                    copy.close()
        repodata: list[rattler.SparseRepoData] = []
        try:
            for copy in copies:
                channel = rattler.Channel(copy.subdir.channel.location)
                repodata.append(rattler.SparseRepoData(channel, copy.subdir.name, copy.path))
            yield Reachable(repodata, kept)
        finally:
            for part in repodata:
                part.close()


class _Copy:
    """A repodata.json that grows record by record."""

    def __init__(self, subdir: Subdir, path: Path) -> None:
        self.subdir, self.path = subdir, path
        self._file: IO[str] = open(path, "w", encoding="utf-8", newline="\n")  # noqa: SIM115
        self._count = 0

    def add(self, record: rattler.RepoDataRecord) -> None:
        if not self._count:
            # Where the packages are, if not beside their repodata.
            base = record.url.rpartition("/")[0] + "/"
            info = json.dumps({"subdir": self.subdir.name, "base_url": base})
            # Which of its two tables a package stands in tells nothing: its file's name does.
            self._file.write(f'{{"info": {info}, "packages": {{\n')
        separator = ",\n" if self._count else ""
        self._file.write(f"{separator}{json.dumps(record.file_name)}: {record.to_json()}")
        self._count += 1

    def close(self) -> None:
        if not self._file.closed:
            self._file.write("}}\n" if self._count else '{"packages": {}}\n')
            self._file.close()


def _copy(
    copies: Sequence[_Copy], names: Iterable[str], selection: Selection
) -> Iterator[rattler.RepoDataRecord]:
    """Copy all that can be reached from these names; gives the records that are to be kept."""
    level, seen = set(names) - selection.without, set(selection.without)
    while level:
        # In one order, so that one repodata always gives the same copy.
        todo, level = sorted(level), set()
        seen.update(todo)
        for first in range(0, len(todo), _BATCH):
            for copy in copies:
                for record in copy.subdir.named(todo[first : first + _BATCH]):
                    if not _may_be_from(copy.subdir, selection.bound.get(record.name.normalized)):
                        continue
                    copy.add(record)
                    if (copy.subdir.name, record.file_name) in selection.kept:
                        yield record
                    level |= _needs(record) - seen


def _may_be_from(subdir: Subdir, bound: tuple[str, str | None] | None) -> bool:
    return bound is None or (subdir.channel.name == bound[0] and bound[1] in (None, subdir.name))


def _needs(record: rattler.RepoDataRecord) -> set[str]:
    """The names of what a record depends on, in whatever combination; the machine aside."""
    specs = [*record.depends, *(s for extra in record.extra_depends.values() for s in extra)]
    return {name for spec in specs if (name := _name(spec))}


@lru_cache(2**16)
def _name(spec: str) -> str:
    """The package that a spec is about; empty when it is about the machine."""
    found = _NAME.match(spec)
    return found[1].lower() if found and not found[1].startswith("__") else ""
