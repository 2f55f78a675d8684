"""Volumes that have arrived: which are whole, which to send again, and reading them in place.

A volume may lie in any of several folders (mount points). Nothing here writes, joins or deletes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from mirror.bundle import beside, flow
from mirror.bundle.volumes import (
    LIST_SUFFIX,
    Part,
    VolumeList,
    bundle_name,
    list_path,
    read_bytes,
    read_list,
)
from mirror.core.paths import shown
from mirror.core.progress import Advance, Progress, uncounted
from mirror.core.text import counted
from mirror.errors import BundleError, MirrorError, UsageError
from mirror.store.blobs import hash_file

if TYPE_CHECKING:
    from mirror.trust.judging import Judge, Standing

#: whole: as the list says (its size alone, unless hashes were asked for). partial: shorter.
#: damaged: other bytes. renamed: its bytes are here under another name. missing: not at all.
State: TypeAlias = Literal["whole", "partial", "damaged", "renamed", "missing"]
_BINARY: int = getattr(os, "O_BINARY", 0)


@dataclass(frozen=True, slots=True)
class Arrived:
    """What became of one part. path: where it was found. says: more about it, for people."""

    part: Part
    state: State
    path: Path | None = None
    says: str = ""

    def __str__(self) -> str:
        return f"{self.part.name} {self.says or self.state}"


@dataclass(frozen=True, slots=True)
class Arrival:
    """A set of volumes as it was found.

    known: the list. place: of its file. strays: other files that look like volumes of it, a line
    each. standing: what the signatures beside the list are worth, where that was asked.
    """

    known: VolumeList
    place: Path
    volumes: tuple[Arrived, ...]
    recovery: tuple[Arrived, ...]
    strays: tuple[str, ...]
    standing: Standing | None = None

    @property
    def lost(self) -> list[Arrived]:
        """The volumes that are not here as they should be."""
        return [item for item in self.volumes if item.state != "whole"]


def find_list(name: str, folders: Sequence[Path]) -> Path:
    """The one list of the bundle's volumes in these folders.

    Raises UsageError when there is none, BundleError when two are of different bundles.
    """
    found = [place for folder in folders if (place := list_path(folder / name)).is_file()]
    if not found:
        raise UsageError(
            f"{shown(name)}{LIST_SUFFIX} is not beside the volumes",
            problems=[f"looked for in {folder}" for folder in folders],
            hint=f"Send it again; or join the volumes: cat {shown(name)}.[0-9]* | mirror install -",
        )
    if len({place.read_bytes() for place in found}) > 1:
        raise BundleError(
            f"there are lists of different bundles {shown(name)}",
            problems=[f"{place}: {read_list(place).bundle}" for place in found],
            hint="Remove the one that is stale.",
        )
    return found[0]


def find_names(folders: Sequence[Path]) -> list[str]:
    """The bundles that have a list in these folders, or volumes of the usual name.

    Raises UsageError when none has.
    """
    names = {
        name
        for path in _files(folders)
        if (name := bundle_name(path.name))
        and (path.name.endswith(LIST_SUFFIX) or name.endswith(".tar.gz"))
    }
    if not names:
        raise UsageError(f"no volumes are in {', '.join(map(str, folders))}")
    return sorted(names)


def look(
    place: Path, folders: Sequence[Path], progress: Progress, *, hashes: bool = True
) -> Arrival:
    """What of a list's parts is in these folders.

    hashes: read every byte; else sizes are compared, and only what may be a renamed volume is read.
    """
    known = read_list(place)
    search = _Search(known, _distinct(folders), hashes)
    parts = (*known.volumes, *known.recovery)
    sizes = sum(path.stat().st_size for part in parts for path in search.named(part))
    with progress.bar("checking volumes", sizes if hashes else 0) as search.advance:
        found = [search.judge(part) for part in parts]
    sizes = sum(path.stat().st_size for path in search.others(found))
    with progress.bar("looking for renamed volumes", sizes) as search.advance:
        found = [search.elsewhere(item) if item.state != "whole" else item for item in found]
    count = len(known.volumes)
    return Arrival(known, place, tuple(found[:count]), tuple(found[count:]), search.strays(found))


@dataclass(slots=True)
class _Search:
    """Looks through the folders for the parts of one list."""

    known: VolumeList
    folders: Sequence[Path]
    hashes: bool
    advance: Advance = uncounted
    _hashed: dict[Path, str] = field(default_factory=dict)

    def named(self, part: Part) -> list[Path]:
        """The files that have the part's name."""
        return [path for folder in self.folders if (path := folder / part.name).is_file()]

    def judge(self, part: Part) -> Arrived:
        """The best of the files that have the part's name."""
        best = Arrived(part, "missing", None, "is missing")
        for path in self.named(part):
            if best.state != "whole":
                item = self._judge(part, path)
                best = item if item.state == "whole" or best.state == "missing" else best
            if self.hashes and path not in self._hashed:
                self.advance(path.stat().st_size)
        return best

    def _judge(self, part: Part, path: Path) -> Arrived:
        size = path.stat().st_size
        if size < part.size:
            there = f"has arrived in part: {size:,} of {part.size:,} bytes"
            return Arrived(part, "partial", path, there)
        if size > part.size:
            says = f"is {size:,} bytes long, not {part.size:,}: it is of another bundle"
            return Arrived(part, "damaged", path, says)
        if not self.hashes or self._hash(path) == part.sha256:
            return Arrived(part, "whole", path)
        return Arrived(part, "damaged", path, self._difference(path))

    def _difference(self, path: Path) -> str:
        parts = (*self.known.volumes, *self.known.recovery)
        belongs = [p.name for p in parts if p.sha256 == self._hash(path)]
        if belongs:
            return f"holds the bytes of {belongs[0]}"
        return "is damaged, or of another build"

    def elsewhere(self, item: Arrived) -> Arrived:
        """The same, or where the part's bytes are under another name."""
        for path in _files(self.folders):
            if path.name == item.part.name or _size(path) != item.part.size:
                continue
            if self._hash(path) == item.part.sha256:
                own = f"{item.says}; its own are" if item.path else "is here as"
                return Arrived(item.part, "renamed", path, f"{own} {path}")
        return item

    def others(self, found: Iterable[Arrived]) -> list[Path]:
        """The files that `elsewhere` will read."""
        lost = {item.part.size for item in found if item.state != "whole"}
        return [p for p in _files(self.folders) if p not in self._hashed and _size(p) in lost]

    def strays(self, found: Iterable[Arrived]) -> tuple[str, ...]:
        """Files with a volume's name that the list does not speak of."""
        expected = {part.name for part in (*self.known.volumes, *self.known.recovery)}
        taken = {item.path for item in found}
        return tuple(
            f"{path} is no volume of this bundle: left from another build, or repeated"
            for path in _files(self.folders)
            if bundle_name(path.name) == self.known.name
            and not path.name.endswith((LIST_SUFFIX, LIST_SUFFIX + beside.SUFFIX))
            and path.name not in expected
            and path not in taken
        )

    def _hash(self, path: Path) -> str:
        if path not in self._hashed:
            try:
                self._hashed[path] = hash_file(path, self.advance)
            except OSError as error:  # of a stick with a bad block, say
                self._hashed[path] = f"{error.strerror}"
        return self._hashed[path]


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _distinct(folders: Sequence[Path]) -> list[Path]:
    """Each folder once, under the first of its names."""
    found: dict[Path, Path] = {}
    for folder in folders:
        found.setdefault(folder.resolve(), folder)
    return list(found.values())


def _files(folders: Sequence[Path]) -> Iterator[Path]:
    for folder in folders:
        try:
            found = sorted(folder.iterdir())
        except OSError as error:
            raise UsageError(f"{folder} cannot be searched: {error.strerror}") from None
        yield from (path for path in found if path.is_file())


class Volumes:
    """A bundle's volumes as one source of bytes; at most one of them is open."""

    def __init__(self, arrival: Arrival, folders: Sequence[Path], name: str) -> None:
        self._arrival = arrival
        self._folders = folders
        self.files = [item.path for item in arrival.volumes if item.path]
        self._todo = list(self.files)
        self._file = -1
        self.name = name
        self.size: int | None = arrival.known.size
        self.digest: str | None = arrival.known.bundle

    def read_into(self, views: Sequence[memoryview]) -> int:
        """As sources.Source has it."""
        done, rest = 0, list(views)
        while True:
            count = flow.read_into(self._file, rest) if self._file >= 0 else 0
            done += count
            rest = flow.after(rest, count)
            if not rest or not self._next():
                return done

    def _next(self) -> bool:
        """Open the next volume; False when there is none."""
        self.close()
        if self._todo:
            self._file = os.open(self._todo.pop(0), os.O_RDONLY | _BINARY)
        return self._file >= 0

    def suspects(self, progress: Progress) -> list[str]:
        """The volumes that are not what the list says."""
        try:
            arrival = look(self._arrival.place, self._folders, progress)
        except MirrorError as error:  # they are gone altogether
            return [error.message]
        better = [
            f"{used.part.name} is damaged in {used.path}, and whole in {item.path}: name that first"
            for used, item in zip(self._arrival.volumes, arrival.volumes, strict=True)
            if item.state == "whole" and item.path != used.path
        ]
        return [*map(str, arrival.lost), *better, *arrival.strays]

    def close(self) -> None:
        """As sources.Source has it."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1


def list_standing(place: Path, judge: Judge) -> Standing:
    """What the signatures beside a list are worth. Raises TrustError for a wrong one.

    A list without any is none the worse: what is installed is judged by the signatures over the
    index. Signed, it tells which volumes are whole before the one with the index has come.
    """
    lenient = replace(judge, demand=False)
    return lenient(shown(str(place)), read_bytes(place), beside.read([beside.path(place)]))


def open_volumes(
    name: str, folders: Sequence[Path], progress: Progress, judge: Judge | None = None
) -> Volumes:
    """The bundle whose volumes are in these folders; judge: of the signatures over their list.

    Raises UsageError where its list is not, BundleError that names the volumes which are missing or
    of the wrong size, TrustError for a list that is signed wrongly. Whether the volumes' bytes are
    right is found when they are read.
    """
    place = find_list(name, folders)
    if judge:
        list_standing(place, judge)
    arrival = look(place, folders, progress, hashes=False)
    if arrival.lost:
        count = len(arrival.volumes)
        where = " ".join(str(folder) for folder in folders)
        raise BundleError(
            f"{len(arrival.lost)} of the {counted(count, 'volume')} of {arrival.known.name} are not"
            " here as they should be",
            problems=[*map(str, arrival.lost), *arrival.strays],
            hint=f"Send these again, or name one in the folder where they are. To check them all,"
            f" and to rebuild lost ones from recovery data: mirror inspect --volumes {where}",
        )
    return Volumes(arrival, folders, shown(name))
