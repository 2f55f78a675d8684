"""A file that grows in pieces and survives its process.

FOLDER/KEY holds the bytes, each at its place in the file. FOLDER/KEY.json notes which are there; it
lags behind by as much as `save` is called late, and runs ahead only after a power cut, which the
hash finds.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from mirror.fetch.exchange import Answer, FetchError
from mirror.store.blobs import CHUNK

#: Files of at least this size are fetched in pieces, over several connections at once.
LARGE = 32 * 2**20
#: Length of such a piece.
PIECE = 16 * 2**20
_OPEN = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)


@dataclass(eq=False, slots=True)
class Piece:
    """A range of the file that one connection is filling.

    position: offset of the next byte.
    end: offset after the last one; None while the size of the file is unknown.
    """

    position: int
    end: int | None


class Part:
    """The bytes of one file, as far as they are here. Safe to be used from several threads.

    size: of the whole file in bytes, None until it is known.
    digested: whether a digest will tell if the bytes are right. If not, bytes of two answers are
        put together only where a strong entity tag says that they are of one file.
    advance: called with the number of bytes gained (or lost, when negative).
    """

    def __init__(
        self, file: Path, size: int | None, *, digested: bool, advance: Callable[[int], object]
    ) -> None:
        self.file = file
        self.size = size
        self._given_size = size
        self._digested = digested
        self._advance = advance
        self._note = file.with_name(f"{file.name}.json")
        self._lock = threading.RLock()
        self._done: list[tuple[int, int]] = []  # disjoint, in order, never adjacent
        self._active: list[Piece] = []
        self._ranges: bool | None = None  # whether the server gives ranges; None: not known yet
        self._etag = ""
        self._sealed = False
        self._doubted = False
        self._unsaved = False
        self._hash = hashlib.sha256()
        self._hashed = 0
        self._hash_lock = threading.Lock()
        self._load()

    @property
    def present(self) -> int:
        """How many bytes are here."""
        with self._lock:
            return sum(end - start for start, end in self._done)

    def seal(self) -> bool:
        """True once, when all bytes are here: the caller then hashes and publishes the file."""
        with self._lock:
            if self._sealed or self._active or self.size is None or self.present < self.size:
                return False
            self.file.touch()
            self._sealed = True
            return True

    def claim(self) -> Piece | None:
        """A piece that nobody is filling yet, for the caller to fill; None when there is none.

        The first answer shows whether the server gives ranges: before it, there is one piece.
        """
        with self._lock:
            if self._sealed or (self._active and not self._ranges):
                return None
            if self._ranges is False:
                self._forget()
            position, end = self._gap()
            if end is not None and position >= end:
                return None
            if end is not None and self._is_large():
                end = min(end, position + PIECE)
            piece = Piece(position, end)
            self._active.append(piece)
            return piece

    def headers(self, piece: Piece) -> dict[str, str]:
        """The Range header for what is missing of a piece; none when that is the whole file."""
        with self._lock:
            if not self._digested and not self._etag:
                self._forget()
                piece.position, piece.end = 0, self.size
            if piece.position == 0 and piece.end == self.size:
                return {}
            last = "" if piece.end is None else piece.end - 1
            found = {"Range": f"bytes={piece.position}-{last}"}
            if not self._digested:
                found["If-Range"] = self._etag
            return found

    def accept(self, piece: Piece, answer: Answer) -> bool:
        """Set the piece up for the answer's bytes. False: give the piece back instead.

        Raises FetchError when the answer cannot be part of the file.
        """
        with self._lock:
            self._check(answer)
            if answer.partial:
                if answer.start != piece.position:
                    raise FetchError(f"the server sent another range than asked ({answer.url})")
                self._ranges = True
                self.size = answer.total if self.size is None else self.size
                piece.end = self.size if piece.end is None else piece.end
                return True
            if piece.position > 0 or piece.end != self.size:
                self._ranges = False  # a range was asked for; this is the whole file
                if len(self._active) > 1:
                    return False  # once the others have ended, one starts from the beginning
                self._forget()
            else:
                self._ranges = answer.ranges and bool(self._digested or answer.etag)
            self._etag = answer.etag
            self.size = answer.total if self._given_size is None else self._given_size
            piece.position, piece.end = 0, self.size
            if self._ranges and self._is_large():
                piece.end = PIECE  # the others come over connections of their own
            return True

    def open(self) -> BinaryIO:
        """The file, for one connection to write to."""
        return os.fdopen(os.open(self.file, _OPEN, 0o600), "r+b", buffering=0)

    def write(self, file: BinaryIO, piece: Piece, data: bytes) -> bool:
        """Put a chunk where it belongs; True when the piece is full."""
        if piece.end is not None:
            data = data[: piece.end - piece.position]
        file.seek(piece.position)
        rest = memoryview(data)
        while rest:
            rest = rest[file.write(rest) :]
        with self._lock:
            self._add(piece.position, piece.position + len(data))
            piece.position += len(data)
        self._advance(len(data))
        return piece.position == piece.end

    def ended(self, piece: Piece) -> None:
        """The body is over. Raises FetchError when the piece is not full."""
        with self._lock:
            if piece.end is None:
                self.size = piece.end = piece.position
            if piece.position < piece.end:
                raise FetchError(
                    f"the server promised {piece.end:,} bytes and stopped at {piece.position:,}",
                    again=True,
                )

    def release(self, piece: Piece) -> None:
        """The piece is no longer being filled; what it lacks can be claimed again."""
        with self._lock:
            self._active.remove(piece)

    def digest(self) -> str:
        """sha256 of the sealed file, which is made durable."""
        with open(self.file, "r+b") as file:
            file.truncate(self.size)  # bytes of a longer file may be behind its end
            os.fsync(file.fileno())
        with self._hash_lock:
            self._hash_up_to(self.size or 0)
            return self._hash.hexdigest()

    def hash_ahead(self) -> None:
        """Hash what is here without a gap from the start, unless another thread is doing it.

        To be called while a piece is held: then nobody throws the bytes away meanwhile.
        """
        with self._lock:
            start, end = self._done[0] if self._done else (0, 0)
        if start == 0 and self._hash_lock.acquire(blocking=False):
            try:
                self._hash_up_to(end)
            finally:
                self._hash_lock.release()

    def restart(self) -> None:
        """Throw all bytes away: they are not the right ones."""
        with self._lock:
            self._forget()
            self._sealed, self._ranges = False, None
            self.discard()

    def doubt(self, piece: Piece) -> bool:
        """Start the piece again from nothing, once, if nobody but an answer has given the size."""
        with self._lock:
            if self._doubted or self._given_size is not None or len(self._active) > 1:
                return False
            self._doubted = True
            self._forget()
            piece.position, piece.end = 0, self.size
            return True

    def save(self) -> None:
        """Note which bytes are here, for the next process."""
        with self._lock:
            if self.size is None or not self._done or not self._unsaved:
                return  # a file of unknown size could not be told to be whole
            self._unsaved = False
            state = {"size": self.size, "etag": self._etag, "done": self._done}
            temporary = self._note.with_suffix(".new")
            temporary.write_text(json.dumps(state), encoding="ascii")
            os.replace(temporary, self._note)

    def discard(self) -> None:
        """Remove the file and its note, where they still are."""
        with self._lock:
            self._done = []
            self.file.unlink(missing_ok=True)
            self._note.unlink(missing_ok=True)

    def _load(self) -> None:
        """Take over what an earlier process left."""
        try:
            state = json.loads(self._note.read_bytes())
            there = self.file.stat().st_size
            etag, size = str(state["etag"]), int(state["size"])
            done = [(int(start), min(int(end), there)) for start, end in state["done"]]
        except (OSError, ValueError, KeyError, TypeError):
            return
        if self.size not in (None, size):
            return
        if not self._digested and (not etag or done == [(0, size)]):
            return  # only the server can tell that it is still the same file
        self.size, self._etag = size, etag
        for start, end in done:
            if 0 <= start < end:
                self._add(start, end)

    def _check(self, answer: Answer) -> None:
        right = self.size if answer.partial else self._given_size
        if right is not None and answer.total not in (None, right):
            raise FetchError(
                f"the server has {answer.total:,} bytes, where {right:,} are right"
                + (f" (it compressed them: {answer.encoding})" if answer.encoding else "")
                + f" ({answer.url})",
                stale=answer.partial,
            )
        if answer.encoding and not self._digested:
            raise FetchError(
                f"the server compresses ({answer.encoding}) what was asked for as it is"
                f" ({answer.url})"
            )
        if self._given_size is None and not answer.framed and not self._digested:
            raise FetchError(
                "neither the server nor a digest tells where the file ends: it could be cut"
                f" ({answer.url})"
            )

    def _is_large(self) -> bool:
        return self.size is not None and self.size >= LARGE

    def _gap(self) -> tuple[int, int | None]:
        """The first range that is neither here nor being filled."""
        covered = [*self._done, *((p.position, p.end or p.position) for p in self._active)]
        position = 0
        for start, end in sorted(covered):
            if start > position:
                return position, start
            position = max(position, end)
        return position, self.size

    def _add(self, start: int, end: int) -> None:
        merged: list[tuple[int, int]] = []
        for low, high in sorted([*self._done, (start, end)]):
            if merged and low <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(high, merged[-1][1])
            elif high > low:
                merged.append((low, high))
        self._done, self._unsaved = merged, True

    def _forget(self) -> None:
        self._advance(-self.present)
        self._done, self._etag, self.size = [], "", self._given_size
        self._hash, self._hashed = hashlib.sha256(), 0

    def _hash_up_to(self, end: int) -> None:
        buffer = memoryview(bytearray(CHUNK))
        with open(self.file, "rb", buffering=0) as file:
            file.seek(self._hashed)
            while self._hashed < end:
                count = file.readinto(buffer[: end - self._hashed])
                if not count:
                    return
                self._hash.update(buffer[:count])
                self._hashed += count
