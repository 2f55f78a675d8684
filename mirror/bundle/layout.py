"""Where every byte of a bundle is, and what it is: pure arithmetic over the index.

Docs: docs/format.md. A bundle is a GNU tar inside gzip members whose DEFLATE blocks are all stored.
Everything but the artifacts' own bytes follows from the index and the signature: the writer writes
what this module says, and the reader refuses any other byte. Two kinds of offset occur: in the tar
(`start`, `stop`: gzip framing taken away) and in the file (`file_offset`).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from mirror.core.artifact import Artifact
from mirror.core.index import INDEX_NAME, SIGNATURE_NAME, Index

TAR_BLOCK = 512
#: Tar bytes in one stored DEFLATE block: 127 tar blocks, the most that 16 bits can count.
STORED = 127 * TAR_BLOCK
#: Tar bytes in one gzip member: at most 64 MiB.
MEMBER = 1032 * STORED
#: Tar bytes that are moved at a time: 1/43 of a member, so that no chunk crosses its end.
CHUNK = 24 * STORED
END = bytes(2 * TAR_BLOCK)

#: RFC 1952: magic, DEFLATE, no flags, no time, no extra flags, unknown system.
GZIP_HEADER = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_GZIP_TRAILER = struct.Struct("<II")
_STORED_HEADER = struct.Struct("<BHH")
TRAILER_SIZE = _GZIP_TRAILER.size
#: A size that is larger than any bundle: for reading before the real one is known.
UNBOUNDED = 2**63

#: A run of tar bytes: literal, or the bytes of an artifact.
Piece: TypeAlias = "bytes | Artifact"


# -- the tar ------------------------------------------------------------------------------------


def member_header(path: str, size: int, mode: int) -> bytes:
    """What stands in front of a member's bytes in the tar, a multiple of 512 bytes.

    A regular file of owner 0, group 0 and time 0 in GNU's format: sizes of 8 GiB and more in base
    256, and in front of a name of more than 100 bytes a member of type L that holds it.
    """
    name = path.encode("utf-8")
    if len(name) <= 100:
        return _header(name, size, mode, b"0")
    data = name + b"\0"
    long_name = _header(b"././@LongLink", len(data), 0, b"L") + data + bytes(padding(len(data)))
    return long_name + _header(name[:100], size, mode, b"0")


def _header(name: bytes, size: int, mode: int, kind: bytes) -> bytes:
    length = b"%011o\0" % size if size < 8**11 else b"\x80" + size.to_bytes(11, "big")
    fields = (name, b"%07o\0" % mode, b"%07o\0" % 0, b"%07o\0" % 0, length, b"%011o\0" % 0)
    front = struct.pack("100s8s8s8s12s12s", *fields)
    back = struct.pack("1s100s8s247x", kind, b"", b"ustar  \0")
    checksum = sum(front) + sum(kind) + _CONSTANT
    return front + b"%06o\0 " % checksum + back


#: What is the same in every header's checksum: "ustar", and itself as eight spaces.
_CONSTANT = sum(b"ustar  ") + sum(b" " * 8)


def padding(size: int) -> int:
    """How many zeros follow `size` bytes up to the next tar block."""
    return -size % TAR_BLOCK


def head(index: bytes, signature: bytes) -> bytes:
    """The tar up to the first artifact: the index and its signature, each with its header."""
    return b"".join(
        member_header(name, len(data), 0o644) + data + bytes(padding(len(data)))
        for name, data in ((INDEX_NAME, index), (SIGNATURE_NAME, signature))
    )


def payload(artifacts: Iterable[Artifact]) -> Iterator[Piece]:
    """The tar from the first artifact to its end, in order; no piece of bytes is empty."""
    pad = b""
    for artifact in artifacts:
        yield pad + member_header(artifact.path, artifact.size, artifact.mode)
        yield artifact
        pad = bytes(padding(artifact.size))
    yield pad + END


def payload_size(artifacts: Iterable[Artifact]) -> int:
    """Length in bytes of `payload`."""
    return len(END) + sum(_header_size(a.path) + a.size + padding(a.size) for a in artifacts)


def _header_size(path: str) -> int:
    """Length of `member_header`, which depends on the path alone."""
    length = len(path.encode("utf-8"))
    return TAR_BLOCK if length <= 100 else 3 * TAR_BLOCK + length // TAR_BLOCK * TAR_BLOCK


# -- the gzip framing around it -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chunk:
    """Tar bytes `start` to `stop` that are moved together; never across a gzip member's end."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """Its length in bytes of tar."""
        return self.stop - self.start

    def ends_member(self, total: int) -> bool:
        """Whether a gzip member ends with it, in a tar of `total` bytes."""
        return self.stop == total or self.stop % MEMBER == 0

    def frame(self, total: int) -> list[bytes]:
        """The framing in front of the bytes of each stored block that it touches.

        That is a block's header, with the gzip header before it where a member begins; and nothing
        in front of a block that began before this chunk. total: length of the whole tar.
        """
        return [_front(max(at, self.start), total) for at in self._blocks()]

    def cuts(self) -> list[slice]:
        """For each of those blocks: which of the chunk's bytes it holds."""
        return [
            slice(max(at, self.start) - self.start, min(at + STORED, self.stop) - self.start)
            for at in self._blocks()
        ]

    def _blocks(self) -> range:
        return range(self.start - self.start % STORED, self.stop, STORED)


#: What a buffer holds before anything else.
NOTHING = Chunk(0, 0)


def _front(at: int, total: int) -> bytes:
    if at % STORED:
        return b""
    size = min(STORED, total - at)
    final = at + size == total or (at + size) % MEMBER == 0
    block = _STORED_HEADER.pack(final, size, size ^ 0xFFFF)
    return block if at % MEMBER else GZIP_HEADER + block


def trailer(crc: int, stop: int) -> bytes:
    """What ends the gzip member that ends at tar offset `stop`; crc: CRC32 of its tar bytes."""
    return _GZIP_TRAILER.pack(crc, (stop - 1) % MEMBER + 1)


def crc32(data: memoryview, before: int, start: int) -> int:
    """CRC32 of the gzip member so far: of `data` from tar offset `start`, after `before`."""
    return zlib.crc32(data, before if start % MEMBER else 0)


def chunks(start: int, total: int) -> Iterator[Chunk]:
    """The tar from `start` to `total`, cut at fixed places."""
    while start < total:
        stop = min(start - start % CHUNK + CHUNK, total)
        yield Chunk(start, stop)
        start = stop


def file_offset(at: int) -> int:
    """Where in the file the tar byte `at` is."""
    members = at // MEMBER
    fronts = (members + 1) * len(GZIP_HEADER) + (at // STORED + 1) * _STORED_HEADER.size
    return at + fronts + members * TRAILER_SIZE


def file_size(total: int) -> int:
    """Length in bytes of a bundle whose tar is `total` bytes long."""
    return file_offset(total - 1) + 1 + TRAILER_SIZE


def bundle_size(index: Index, signature_size: int = 0) -> int:
    """Length in bytes of the bundle with this index and a signature of that many bytes."""
    front = len(head(index.to_bytes(), bytes(signature_size)))
    return file_size(front + payload_size(index.shipped))


# -- pieces in chunks ---------------------------------------------------------------------------


@dataclass(slots=True)  # not frozen: there are many, and each would take three times as long
class Span:
    """The part of a piece that lies in one chunk.

    place: where in the chunk's bytes. at: where in the piece it begins. last: it ends the piece.
    """

    piece: Piece
    place: slice
    at: int
    last: bool


def spans(pieces: Iterable[Piece], parts: Iterable[Chunk]) -> Iterator[tuple[Chunk, list[Span]]]:
    """Each chunk with what it holds; the pieces together are as long as the chunks together.

    An artifact of 0 bytes has one span of length 0.
    """
    following = iter(pieces)
    piece, at, size = _next(following)
    for chunk in parts:
        found: list[Span] = []
        place = 0
        while piece is not None and (place < chunk.size or at == size):
            count = min(chunk.size - place, size - at)
            done = at + count == size
            found.append(Span(piece, slice(place, place + count), at, done))
            place, at = place + count, at + count
            if done:
                piece, at, size = _next(following)
        yield chunk, found


def _next(pieces: Iterator[Piece]) -> tuple[Piece | None, int, int]:
    piece = next(pieces, None)
    size = len(piece) if isinstance(piece, bytes) else piece.size if piece else 0
    return piece, 0, size
