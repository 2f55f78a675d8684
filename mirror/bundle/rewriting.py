"""A bundle written again with another signature: one pass, every byte of it checked on the way.

The signature stands in front of the payload and its length is not fixed, so all that follows moves,
and with it the places of the gzip framing. Signatures in a file of their own (beside.py) move
nothing.
"""

from __future__ import annotations

from pathlib import Path

from mirror.bundle import layout, writer
from mirror.bundle.reader import Reader
from mirror.bundle.timing import Times
from mirror.core.artifact import Artifact
from mirror.core.progress import Progress


def write_signed(reader: Reader, signature: bytes, target: Path, progress: Progress) -> None:
    """Write the reader's bundle to `target` with this signature in place of its own.

    `target` may be where the reader reads. It is whole and durable when this returns, and untouched
    when it raises: BundleError where a byte of the bundle is wrong, MachineError where `target`
    cannot be written.
    """
    index, times = reader.index, Times()
    head = layout.head(reader.index_bytes, signature)
    total = len(head) + layout.payload_size(index.shipped)
    with writer.whole(target, layout.file_size(total), times) as write:
        tar = _Tar(total, write)
        tar.put(head)
        pieces = layout.payload(index.shipped)

        def copy(artifact: Artifact, at: int, data: memoryview, last: bool) -> None:
            if at == 0:
                for piece in pieces:
                    if isinstance(piece, Artifact):
                        break
                    tar.put(piece)
            tar.put(data)

        reader.copy(copy, progress)
        for piece in pieces:
            assert isinstance(piece, bytes)  # noqa: S101 -- every artifact has been copied
            tar.put(piece)
    progress.detail(f"signing: {times.summary(layout.file_size(total))}")


class _Tar:
    """Takes the bytes of a tar in order, and writes them in gzip framing."""

    def __init__(self, total: int, write: writer.Write) -> None:
        self._total = total
        self._write = write
        self._chunks = layout.chunks(0, total)
        self._chunk = next(self._chunks)
        self._data = memoryview(bytearray(layout.CHUNK))
        self._filled = 0
        self._crc = 0

    def put(self, data: bytes | memoryview) -> None:
        """The next bytes; the last ones of the tar complete the file."""
        rest = memoryview(data)
        while rest:
            now = rest[: self._chunk.size - self._filled]
            rest = rest[len(now) :]
            self._data[self._filled : self._filled + len(now)] = now
            self._filled += len(now)
            if self._filled == self._chunk.size:
                self._send()

    def _send(self) -> None:
        data = self._data[: self._filled]
        views, self._crc = writer.framed(self._chunk, data, self._total, self._crc)
        self._write(views)
        self._chunk = next(self._chunks, layout.NOTHING)
        self._filled = 0
