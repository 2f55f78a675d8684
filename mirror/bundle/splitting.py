"""Volumes, written in one pass: no bundle in one piece lies beside them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from mirror.bundle import flow, layout, recovery, writer
from mirror.bundle.volumes import (
    MAX_VOLUMES,
    Part,
    VolumeList,
    list_path,
    names,
    parse_list,
    read_bytes,
)
from mirror.core.index import Index
from mirror.core.progress import Progress
from mirror.errors import BundleError, TargetError, UsageError
from mirror.store import atomic

_BINARY: int = getattr(os, "O_BINARY", 0)


@dataclass(frozen=True, slots=True)
class Volumes:
    """How a bundle is to be split. size: of each volume but the last, in bytes.

    recovery: how much recovery data, in percent of the bundle; 0 for none.
    """

    size: int
    recovery: float = 0.0


def require_sensible(total: int, wish: Volumes) -> None:
    """Raises UsageError where a bundle of `total` bytes would have too many volumes.

    Also where so much recovery data would be of no use; MachineError where none can be computed.
    """
    if -(-total // wish.size) > MAX_VOLUMES:
        raise UsageError(
            f"the bundle would have {-(-total // wish.size):,} volumes; {MAX_VOLUMES:,} are the"
            " most",
            hint=f"Name at least {-(-total // MAX_VOLUMES)} (bytes) with --volume-size.",
        )
    if wish.recovery:
        recovery.prepare(total, wish.size, wish.recovery)


def pack_volumes(
    index: Index,
    signature: bytes,
    locate: writer.Locate,
    target: Path,
    wish: Volumes,
    progress: Progress,
) -> VolumeList:
    """Write the bundle in volumes beside `target`, where it would be itself; durable and whole.

    No volume has its name before all are there; the list is written last. What an earlier list of
    the same name speaks of and the new one does not is removed. Raises as `writer.pack_file` and
    `require_sensible` do.
    """
    total = layout.bundle_size(index, len(signature))
    require_sensible(total, wish)
    with flow.writing(target):
        atomic.sweep(target)
        flow.require_space(target.parent, total + int(total * wish.recovery / 100))
        with _Splitter(target, wish.size, total) as splitter:
            writer.pack(index, signature, locate, splitter.write, progress)
            made = splitter.finish(index.digest)
        if wish.recovery:
            parts = recovery.create(made, target, wish.recovery, progress)
            made = replace(made, recovery=parts)
            atomic.write(list_path(target), made.to_bytes())
    return made


class _Splitter:
    """Writes bytes to one volume after the other, hashing each beside the writing."""

    def __init__(self, target: Path, size: int, total: int) -> None:
        self._target = target
        self._size = size
        self._names = list(names(target.name, -(-total // size)))
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
        # Each step on the disk before the next: no list ever speaks of volumes that are another's,
        # and what only an earlier list speaks of goes while that is there to tell.
        for name in sorted(_listed(place) - {p.name for p in self._parts}):
            (folder / name).unlink(missing_ok=True)
        atomic.sync_folder(folder)
        place.unlink(missing_ok=True)
        atomic.sync_folder(folder)
        for path, part in zip(self._staged, self._parts, strict=True):
            os.replace(path, folder / part.name)
        atomic.sync_folder(folder)
        atomic.write(place, made.to_bytes())
        return made

    def _next(self) -> None:
        self._end()
        path = atomic.unused_name(self._target.with_name(self._names[len(self._parts)]))
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o644)
        self._staged.append(path)
        atomic.mark(self._file)
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
    """The files that an earlier list speaks of; none when there is no list, or no right one.

    Raises OSError for one that cannot be read.
    """
    try:
        data = read_bytes(place)
    except FileNotFoundError:
        return set()
    with suppress(BundleError, TargetError):
        old = parse_list(data, place)
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
