"""Bundles, written: a pure function of the index, its signature and the artifacts' bytes.

Every artifact is hashed again in the same pass that packs it, so a bundle never carries bytes that
its index does not name. Memory is the same for a bundle of any size.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias

from mirror.bundle import flow, layout
from mirror.bundle.timing import Times
from mirror.core import index as indexes
from mirror.core.artifact import Artifact
from mirror.core.index import Index
from mirror.core.paths import shown
from mirror.core.progress import Progress
from mirror.errors import BundleError
from mirror.store import atomic

#: Where the file is that holds an artifact's bytes.
Locate: TypeAlias = Callable[[Artifact], Path]
#: Takes the bundle's bytes in order; a view is no longer valid when it has returned.
Write: TypeAlias = Callable[[Sequence[memoryview]], None]

_BUFFERS = 6
_BINARY: int = getattr(os, "O_BINARY", 0)


def pack_file(
    index: Index, signature: bytes, locate: Locate, target: Path, progress: Progress
) -> None:
    """Write the bundle to `target`, durable and whole, or leave what is there as it is.

    Raises BundleError where an artifact's file is not what the index says, MachineError where there
    is no space or `target` cannot be written.
    """
    size, times = layout.bundle_size(index, len(signature)), Times()
    with whole(target, size, times) as write:
        _pack(index, signature, locate, write, progress, times)
    progress.detail(f"packing: {times.summary(size)}")


@contextmanager
def whole(target: Path, size: int, times: Times) -> Iterator[Write]:
    """Yields what writes `target`, of so many bytes: durable and whole once the block has ended.

    When that raises, what is there stays as it is. Raises MachineError where there is no space, or
    `target` cannot be written.
    """
    temporary = atomic.unused_name(target)
    with flow.writing(target):
        atomic.sweep(target)
        flow.require_space(target.parent, size)
        out = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, 0o644)
        try:
            try:
                atomic.mark(out)
                with flow.Background() as disk:
                    yield _Durable(out, disk, times).write
                    with times.main("waiting for the disk"):
                        disk.finish()
                        os.fsync(out)
            finally:
                os.close(out)
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        atomic.sync_folder(target.parent)


class _Durable:
    """Writes to a file, and has it synced beside that from time to time."""

    def __init__(self, file: int, disk: flow.Background, times: Times) -> None:
        self._file = file
        self._disk = disk
        self._times = times
        self._unsynced = 0

    def write(self, views: Sequence[memoryview]) -> None:
        flow.write_from(self._file, views)
        self._unsynced += sum(map(len, views))
        if self._unsynced >= flow.SYNC_EVERY:
            self._unsynced = 0
            self._disk.submit(self._sync)

    def _sync(self) -> None:
        with self._times.beside("syncing"):
            os.fsync(self._file)


def pack(
    index: Index, signature: bytes, locate: Locate, out: int | Write, progress: Progress
) -> None:
    """Write the bundle to `out`: a file descriptor, which may be a pipe, or what takes bytes.

    Raises BundleError where an artifact's file is not what the index says (what was written until
    then is no bundle), and OSError where `out` cannot be written.
    """
    write = partial(flow.write_from, out) if isinstance(out, int) else out
    times = Times()
    _pack(index, signature, locate, write, progress, times)
    size = layout.bundle_size(index, len(signature))
    progress.detail(f"packing: {times.summary(size)}")


def _pack(
    index: Index,
    signature: bytes,
    locate: Locate,
    write: Write,
    progress: Progress,
    times: Times,
) -> None:
    data = index.to_bytes()
    indexes.parse(data)  # what no reader would accept is not written
    if len(signature) > indexes.MAX_SIGNATURE_BYTES:
        raise BundleError(f"the signature is {len(signature):,} bytes long")
    head = layout.head(data, signature)
    total = len(head) + layout.payload_size(index.shipped)
    pieces = itertools.chain([head], layout.payload(index.shipped))
    packer = _Packer(total, locate, times)
    buffers = [_Buffer() for _ in range(_BUFFERS)]
    with progress.bar("packing", total) as advance, packer, flow.Ring(buffers, packer.hash) as ring:
        for chunk, spans in layout.spans(pieces, layout.chunks(0, total)):
            with times.main("waiting for hashes"):
                buffer = ring.take()
            with times.main("writing"):
                write(buffer.views)
            buffer.chunk, buffer.spans = chunk, spans
            with times.main("reading"):
                packer.fill(buffer)
            with times.main("checksums"):
                packer.frame(buffer)
            ring.put(buffer)
            advance(chunk.size)
        for buffer in ring.drain():
            with times.main("writing"):
                write(buffer.views)


def framed(
    chunk: layout.Chunk, data: memoryview, total: int, crc: int
) -> tuple[list[memoryview], int]:
    """A chunk's bytes with the gzip framing between them, and the CRC32 so far.

    total: length of the tar. crc: of the gzip member before the chunk.
    """
    views = [
        view
        for front, cut in zip(chunk.frame(total), chunk.cuts(), strict=True)
        for view in (memoryview(front), data[cut])
    ]
    crc = layout.crc32(data, crc, chunk.start)
    if chunk.ends_member(total):
        views.append(memoryview(layout.trailer(crc, chunk.stop)))
    return views, crc


@dataclass(slots=True)
class _Buffer:
    """One chunk on its way: its tar bytes, what they are made of, and what is to be written."""

    data: memoryview = field(default_factory=lambda: memoryview(bytearray(layout.CHUNK)))
    chunk: layout.Chunk = layout.NOTHING
    spans: list[layout.Span] = field(default_factory=list)
    views: list[memoryview] = field(default_factory=list)


class _Packer:
    """What is done with a chunk before it is written; `hash` in a thread of its own."""

    def __init__(self, total: int, locate: Locate, times: Times) -> None:
        self._total = total
        self._locate = locate
        self._times = times
        self._file = io.FileIO(os.devnull)
        self._digest = hashlib.sha256()
        self._crc = 0

    def __enter__(self) -> _Packer:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def fill(self, buffer: _Buffer) -> None:
        """Gather the chunk's tar bytes."""
        for span in buffer.spans:
            view = buffer.data[span.place]
            if isinstance(span.piece, bytes):
                view[:] = memoryview(span.piece)[span.at : span.at + len(view)]
            else:
                self._read(span.piece, span, view)

    def _read(self, artifact: Artifact, span: layout.Span, view: memoryview) -> None:
        try:
            if span.at == 0:
                self._file.close()
                self._file = io.FileIO(self._locate(artifact))
            done = flow.read_into(self._file.fileno(), [view])
            more = self._file.read(1) if span.last else b""
        except OSError as error:
            raise self._changed(artifact, f"cannot be read: {error.strerror}") from None
        if done < len(view) or more:
            size = os.fstat(self._file.fileno()).st_size
            raise self._changed(artifact, f"is {size:,} bytes long, not {artifact.size:,}")

    def hash(self, buffer: _Buffer) -> None:
        """Hash the artifacts in the chunk."""
        with self._times.beside("hashing"):
            self._hash(buffer)

    def _hash(self, buffer: _Buffer) -> None:
        for span in buffer.spans:
            if isinstance(span.piece, bytes):
                continue
            if span.at == 0:
                self._digest = hashlib.sha256()
            self._digest.update(buffer.data[span.place])
            if span.last and self._digest.hexdigest() != span.piece.sha256:
                found = self._digest.hexdigest()
                raise self._changed(span.piece, f"has the sha256 {found}, not {span.piece.sha256}")

    def frame(self, buffer: _Buffer) -> None:
        """Lay the gzip framing between the chunk's bytes."""
        data = buffer.data[: buffer.chunk.size]
        buffer.views, self._crc = framed(buffer.chunk, data, self._total, self._crc)

    def _changed(self, artifact: Artifact, what: str) -> BundleError:
        return BundleError(
            f"{shown(artifact.path)} cannot be packed: its file {self._locate(artifact)} {what}",
            hint="It has changed since it was locked. If that was meant, lock again; if it lies in"
            " mirror's own store, remove it there, and the next build fetches it again.",
        )
