"""What must hold of a root whenever mirror was ended: by own eyes, and by mirror's."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from mirror import gc
from mirror.bundle.arrival import Arrived, look
from mirror.bundle.opening import opened
from mirror.bundle.volumes import LIST_SUFFIX
from mirror.core.index import Index
from mirror.core.progress import Quiet
from mirror.errors import MirrorError
from mirror.store.generations import Root


@dataclass(frozen=True, slots=True)
class Thing:
    """A file, folder or link: its kind, its mode, and its bytes' hash or where it points."""

    kind: str
    mode: int
    holds: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.mode:o} {self.holds[:16]}"


def things(places: Sequence[Path], ignored: Sequence[str] = ()) -> dict[str, Thing]:
    """All that is in these folders, by path, but for paths that match `ignored`."""
    found: dict[str, Thing] = {}
    for place in places:
        todo = [place] if place.exists() else []
        while todo:
            path = todo.pop()
            name = os.path.join(place.name, path.relative_to(place))
            if any(fnmatch(name, pattern) for pattern in ignored):
                continue
            found[name] = thing(path)
            if found[name].kind == "folder":
                todo += path.iterdir()
    return found


def thing(path: Path) -> Thing:
    """What is there, links not followed."""
    status = path.lstat()
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        return Thing("link", 0o777, os.readlink(path))
    if stat.S_ISDIR(status.st_mode):
        return Thing("folder", mode)
    return Thing("file", mode, hashlib.sha256(path.read_bytes()).hexdigest())


def stamp(path: Path) -> object:
    """What tells that a file was neither changed nor touched."""
    status = path.stat()
    return status.st_mtime_ns, status.st_mode, status.st_ino, thing(path)


def differences(wanted: Mapping[str, Thing], found: Mapping[str, Thing]) -> list[str]:
    """How what is there differs from what should be, a line each."""
    return [
        f"{name}: {found.get(name, 'missing')}, not {wanted.get(name, 'there')}"
        for name in sorted(wanted.keys() | found.keys())
        if wanted.get(name) != found.get(name)
    ]


class Whole:
    """Judges a root: which generations it may have, and what each of them is made of."""

    def __init__(self, indexes: Sequence[Index], *, current: Sequence[str | None]) -> None:
        """indexes: of the bundles that were installed. current: digests that may be in use."""
        self._indexes = {index.digest: index for index in indexes}
        self._current = tuple(current)

    def __call__(self, place: Path) -> list[str]:
        """What is wrong, a line each. Reads every byte."""
        root = Root(place)
        try:
            found = list(self._all(root))
            gc.survey(root)  # what `mirror list` shows
        except MirrorError as error:
            return [str(error)]
        return found

    def _all(self, root: Root) -> list[str]:
        found = list(_wrong_blobs(root.blobs.folder))
        for generation in root.generations():
            index = self._indexes.get(generation.index().digest)
            if index is None:
                found.append(f"{generation.path} is of no bundle")
                continue
            for artifact in index.artifacts:
                if not root.blobs.has(artifact.sha256, artifact.size):
                    found.append(f"{generation.path} lacks the blob of {artifact.path}")
                if artifact.kind not in ("files", "models"):
                    continue
                path = generation.path / artifact.path
                mode = 0o555 if artifact.executable else 0o444
                wanted = Thing("file", mode, artifact.sha256)
                there = thing(path.resolve()) if path.exists() else None
                if there != wanted:
                    found.append(f"{path} is {there}, not {wanted}")
            if not (generation.path / "activate").is_file():
                found.append(f"{generation.path} has no activate")
        number = root.current_number()
        digest = root.current().index().digest if number is not None else None
        if digest not in self._current:
            found.append(f"{digest} is in use")
        return found


class Built:
    """Judges what builds have left: the cache, and a folder with bundles."""

    def __init__(self, out: Path) -> None:
        self._out = out

    def __call__(self, place: Path) -> list[str]:
        """What is wrong, a line each: a blob, or half a bundle under a bundle's name."""
        found = list(_wrong_blobs(place, modes=False))
        try:
            for path in self._out.glob("*.tar.gz"):
                with opened([str(path)], Quiet()) as (reader,):
                    reader.check(Quiet())
            for path in self._out.glob(f"*.tar.gz{LIST_SUFFIX}"):
                found += map(str, self._others(path))
        except MirrorError as error:
            found.append(str(error))
        return found

    def _others(self, path: Path) -> list[Arrived]:
        """Volumes with a name that a list speaks of, and other bytes; they may be missing."""
        arrival = look(path, [self._out], Quiet())
        return [item for item in arrival.volumes if item.state not in ("whole", "missing")]


def _wrong_blobs(store: Path, *, modes: bool = True) -> Iterator[str]:
    for path in (store / "sha256").glob("*/*"):
        known = thing(path)
        if known != Thing("file", 0o444 if modes else known.mode, path.name):
            yield f"the blob {path} is {known}"
