"""A bundle in volumes: plain ranges of its bytes, and a list by which each can be checked alone.

Docs: docs/format.md. `cat NAME.0*` is the bundle. The list says what was sent, so that a missing or
damaged volume has a name; what may be believed of the bundle is the reader's to decide all the
same, byte by byte.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from mirror.bundle import flow, layout, writer
from mirror.core import paths
from mirror.core.artifact import Json
from mirror.core.index import Index, canonical
from mirror.core.progress import Progress
from mirror.errors import BundleError, TargetError, UsageError
from mirror.store import atomic

FORMAT = 1
LIST_SUFFIX = ".volumes.json"
#: No list is longer, and no bundle has more volumes.
MAX_LIST_BYTES = 16 * 2**20
MAX_VOLUMES = 9_999
_BINARY: int = getattr(os, "O_BINARY", 0)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_VOLUME_NAME = re.compile(r"(.+)\.([0-9]{3,4})")


@dataclass(frozen=True, slots=True)
class Part:
    """A file of the set: a volume, or one of the files with recovery data."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class VolumeList:
    """What NAME.volumes.json says.

    bundle: digest of the index. bytes: length of the whole. volumes: in order. recovery: files from
    which lost volumes can be made again, in PAR2's format; the first describes the others.
    """

    bundle: str
    bytes: int
    volumes: tuple[Part, ...]
    recovery: tuple[Part, ...] = ()

    @property
    def name(self) -> str:
        """Of the bundle: what its volumes' names begin with."""
        return self.volumes[0].name.rpartition(".")[0]

    def to_bytes(self) -> bytes:
        """The one canonical spelling."""
        return canonical({"format": FORMAT, **asdict(self)}) + b"\n"


def list_path(target: Path) -> Path:
    """Where the list of a bundle's volumes is; target: where the bundle itself would be."""
    return target.with_name(target.name + LIST_SUFFIX)


def bundle_name(file: str) -> str | None:
    """Of which bundle a file of this name is a volume, or the list; None when it is neither."""
    if file.endswith(LIST_SUFFIX):
        return file[: -len(LIST_SUFFIX)] or None
    found = _VOLUME_NAME.fullmatch(file)
    return found[1] if found else None


def read_list(path: Path) -> VolumeList:
    """The list in a file. Raises BundleError for a wrong one, TargetError for one of the future."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_LIST_BYTES + 1)
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}") from None
    hint = "Send it again; it is small."
    try:
        document = json.loads(data) if len(data) <= MAX_LIST_BYTES else None
        number = document.get("format") if isinstance(document, dict) else None
        if type(number) is int and number > FORMAT:
            raise TargetError(
                f"{path} has format {number}; this mirror reads format {FORMAT}",
                hint="Join the volumes and install the bundle with the mirror that it carries.",
            )
        found = _parse(document)
        if found.to_bytes() != data:
            raise ValueError("it is not in canonical form")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = paths.shown(str(error))
        raise BundleError(f"{path} is no list of volumes: {reason}", hint=hint) from None
    return found


def _parse(document: Json) -> VolumeList:
    if not isinstance(document, dict) or not _SHA256.fullmatch(str(document["bundle"])):
        raise ValueError("bundle is not a digest")
    made = VolumeList(
        bundle=document["bundle"],
        bytes=document["bytes"],
        volumes=tuple(map(_part, document["volumes"])),
        recovery=tuple(map(_part, document["recovery"])),
    )
    if not 0 < len(made.volumes) <= MAX_VOLUMES or len(made.recovery) > MAX_VOLUMES:
        raise ValueError("it has no volumes, or too many")
    if [v.name for v in made.volumes] != list(_names(made.name, len(made.volumes))):
        raise ValueError("the volumes' names do not count up from 1")
    if made.bytes != sum(v.size for v in made.volumes):
        raise ValueError("the volumes' sizes do not add up")
    found = list(paths.problems(p.name for p in (*made.volumes, *made.recovery)))
    if odd := [p.name for p in made.recovery if not p.name.startswith(f"{made.name}.")]:
        found.append(f"{odd[0]!r} is another bundle's")
    if found:
        raise ValueError(found[0])
    return made


def _part(item: Json) -> Part:
    name, size, sha256 = item["name"], item["size"], item["sha256"]
    if type(size) is not int or size < 0 or not _SHA256.fullmatch(sha256) or "/" in name:
        raise ValueError(f"{name!r:.300} is not described as a volume is")
    return Part(name, size, sha256)


def _names(name: str, count: int) -> Iterator[str]:
    width = max(3, len(str(count)))
    return (f"{name}.{number:0{width}}" for number in range(1, count + 1))


# -- writing ------------------------------------------------------------------------------------


def pack_volumes(
    index: Index,
    signature: bytes,
    locate: writer.Locate,
    target: Path,
    size: int,
    progress: Progress,
) -> VolumeList:
    """Write the bundle in volumes of `size` bytes beside `target`, durable and whole.

    No volume has its name before all are there; the list is written last. What an earlier list of
    the same name speaks of and the new one does not is removed. Raises as `writer.pack_file` does,
    and UsageError when there would be too many volumes.
    """
    total = layout.bundle_size(index, len(signature))
    with flow.writing(target):
        flow.require_space(target.parent, total)
        with _Splitter(target, size, total) as splitter:
            writer.pack(index, signature, locate, splitter.write, progress)
            return splitter.finish(index.digest)


def add_recovery(target: Path, recovery: Sequence[Part]) -> VolumeList:
    """Take files with recovery data that now lie beside the volumes into their list."""
    known = replace(read_list(list_path(target)), recovery=tuple(recovery))
    atomic.write(list_path(target), known.to_bytes())
    return known


class _Splitter:
    """Writes bytes to one volume after the other, hashing each beside the writing."""

    def __init__(self, target: Path, size: int, total: int) -> None:
        count = -(-total // size)
        if count > MAX_VOLUMES:
            raise UsageError(
                f"the bundle would have {count:,} volumes; at most {MAX_VOLUMES:,} are allowed",
                hint=f"Name at least {-(-total // MAX_VOLUMES):,} with --volume-size.",
            )
        self._target = target
        self._size = size
        self._names = list(_names(target.name, count))
        self._parts: list[Part] = []
        self._staged: list[Path] = []
        self._disk = flow.Background()
        self._hasher = ThreadPoolExecutor(1)
        self._file = -1
        self._room = 0  # bytes that still fit into the volume
        self._unsynced = 0
        self._digest = hashlib.sha256()

    def __enter__(self) -> _Splitter:
        return self

    def __exit__(self, *_: object) -> None:
        self._disk.close()
        self._hasher.shutdown()
        if self._file >= 0:
            os.close(self._file)
        for path in self._staged:
            path.unlink(missing_ok=True)

    def write(self, views: Sequence[memoryview]) -> None:
        """Write the views in order."""
        rest = list(views)
        while rest:
            if not self._room:
                self._next()
            now, rest = _cut(rest, self._room)
            hashed = self._hasher.submit(self._hash, now)
            flow.write_from(self._file, now)
            hashed.result()
            count = sum(map(len, now))
            self._room -= count
            self._unsynced += count
            if self._unsynced >= flow.SYNC_EVERY:
                self._disk.submit(partial(os.fsync, self._file))
                self._unsynced = 0

    def finish(self, bundle: str) -> VolumeList:
        """Give the volumes their names and write the list; all of it durable."""
        self._end()
        self._disk.finish()
        folder, place = self._target.parent, list_path(self._target)
        made = VolumeList(bundle, sum(p.size for p in self._parts), tuple(self._parts))
        stale = _listed(place) - {p.name for p in self._parts}
        place.unlink(missing_ok=True)
        for path, part in zip(self._staged, self._parts, strict=True):
            os.replace(path, folder / part.name)
        for name in stale:
            (folder / name).unlink(missing_ok=True)
        atomic.write(place, made.to_bytes())
        return made

    def _next(self) -> None:
        self._end()
        path = atomic.unused_name(self._target.with_name(self._names[len(self._parts)]))
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o644)
        self._staged.append(path)
        self._room = self._size
        self._digest = hashlib.sha256()

    def _end(self) -> None:
        """Have the volume that was written synced, and close it."""
        if self._file < 0:
            return
        name, sha256 = self._names[len(self._parts)], self._digest.hexdigest()
        self._parts.append(Part(name, self._size - self._room, sha256))
        self._disk.submit(partial(_sync_and_close, self._file))
        self._file = -1

    def _hash(self, views: Sequence[memoryview]) -> None:
        for view in views:
            self._digest.update(view)


def _sync_and_close(file: int) -> None:
    try:
        os.fsync(file)
    finally:
        os.close(file)


def _listed(place: Path) -> set[str]:
    """The files that an earlier list speaks of; none when there is no list, or no right one."""
    with suppress(BundleError, TargetError):
        old = read_list(place)
        return {part.name for part in (*old.volumes, *old.recovery)}
    return set()


def _cut(views: list[memoryview], count: int) -> tuple[list[memoryview], list[memoryview]]:
    """The views up to `count` bytes, and the rest."""
    for number, view in enumerate(views):
        if count < len(view):
            front = [view[:count]] if count else []
            return [*views[:number], *front], [view[count:], *views[number + 1 :]]
        count -= len(view)
    return views, []
