"""A file that grows in pieces and survives its process.

FOLDER/KEY holds the bytes, each at its place in the file. FOLDER/KEY.json notes which are there; it
lags behind by as much as `save` is called late, and runs ahead only after a power cut, which the
hash finds.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from mirror.fetch import note, pieces
from mirror.fetch.exchange import Answer
from mirror.fetch.failures import FetchError
from mirror.fetch.note import Note
from mirror.fetch.pieces import TAIL, Piece, Ranges
from mirror.fetch.prefix import Prefix

#: Files of at least this size are fetched in pieces, over several connections at once.
LARGE = 32 * 2**20
#: Length of such a piece; towards the end of the file they become smaller, so as to end together.
PIECE = 16 * 2**20
_SMALLEST = 2 * 2**20
#: After so many answers in a row that are not the range asked for, the server gives none.
_IGNORED = 3
#: So many new bytes are hashed, or made durable, while others come.
_FOLLOW = 8 * 2**20
_SYNC = 64 * 2**20
_OPEN = os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0)


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
        self._file: BinaryIO | None = None
        self._done: Ranges = []
        self._active: list[Piece] = []
        self._ranges: bool | None = None  # whether the server offers ranges; None: not known yet
        self._whole = False  # whether they have shown to be of no use
        self._best = 0.0  # bytes a second of the fastest connection so far
        self._etag = ""
        self._sealed = False
        self._doubted = False
        self._unsaved = False
        self._unsynced = 0
        self._prefix = Prefix()
        self._load()

    @property
    def present(self) -> int:
        """How many bytes are here."""
        with self._lock:
            return pieces.length(self._done)

    def seal(self) -> bool:
        """True once, when all bytes are here: the caller then hashes and publishes the file."""
        with self._lock:
            if self._sealed or self._busy or self.size is None or self.present < self.size:
                return False
            self._open()  # there is a file, though it may be empty
            self._sealed = True
            return True

    def claim(self, connections: int) -> Piece | None:
        """A piece that nobody is filling yet, for the caller to fill; None when there is none.

        The first answer shows size and whether the server gives ranges: before it, there is one
        piece.
        connections: how many share the work.
        """
        with self._lock:
            if self._sealed or (self._busy and (not self._ranges or self.size is None)):
                return None
            if self._ranges is False:
                self._forget()
                return self._begin(Piece(0, self.size))
            position, end = self._gap()
            if end is not None and position >= end:
                return None
            if end is not None and self._is_large():
                end = min(end, position + self._length(connections))
            return self._begin(Piece(position, end))

    def share(self) -> Piece | None:
        """What a slow connection would have last, for the caller, who has nothing else to do."""
        with self._lock:
            now = time.monotonic()
            if not self._busy or not self._ranges:
                return None
            slowest = max(self._busy, key=lambda piece: piece.seconds_left(now))
            if slowest.seconds_left(now) < TAIL:
                return None
            rest = slowest.share(now, self._best)
            if slowest.full:
                slowest.interrupt()
            return rest and self._begin(rest)

    def headers(self, piece: Piece) -> dict[str, str]:
        """The Range header for what is missing of a piece; none when that is the whole file."""
        with self._lock:
            if self._whole or (not self._digested and not self._etag):
                self._forget()
                piece.position, piece.end = 0, self.size
            piece.ranged = piece.position > 0 or piece.end != self.size
            if not piece.ranged:
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
            if piece.full:
                return False  # another connection has taken it over
            self._check(answer)
            if answer.partial and answer.start == piece.position:
                piece.ignored, self._ranges = 0, True
                self.size = answer.total if self.size is None else self.size
                piece.end = self.size if piece.end is None else piece.end
                return True
            if piece.ranged:
                if not self._is_whole(piece, answer):
                    return False
            elif answer.partial:
                raise FetchError(f"the server sent a part of the file, unasked ({answer.url})")
            elif self._ranges is None:
                self._ranges = answer.ranges and bool(self._digested or answer.etag)
            self._etag = answer.etag
            self.size = answer.total if self._given_size is None else self._given_size
            piece.position, piece.end = 0, self.size
            if self._ranges and self._is_large():
                piece.end = PIECE  # the others come over connections of their own
            return True

    def write(self, piece: Piece, data: bytes) -> bool:
        """Put a chunk where it belongs; True when no more is wanted."""
        with self._lock:
            if self._sealed:
                return True
            rest = memoryview(data)[: None if piece.end is None else piece.missing]
            start, end = piece.position, piece.position + len(rest)
            if rest:
                file = self._open()
                file.seek(start)
            while rest:
                rest = rest[file.write(rest) :]
            piece.position = end
            gained = self._add(start, end)
        self._advance(gained)
        return piece.full

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
            self._best = max(self._best, piece.rate(time.monotonic()))

    def follow(self) -> None:
        """Hash what is here without a gap from the start, and make it durable, while more comes."""
        with self._lock:
            end = self._done[0][1] if self._done and self._done[0][0] == 0 else 0
            prefix, sync = self._prefix, self._unsynced >= _SYNC
            if self._sealed or not (sync or end - prefix.position >= _FOLLOW):
                return
            self._unsynced = 0 if sync else self._unsynced
        with suppress(FileNotFoundError):  # published, or thrown away, in this moment
            prefix.follow(self.file, end, wait=False)
            if sync:
                with open(self.file, "r+b") as file:
                    os.fsync(file.fileno())

    def digest(self) -> str:
        """sha256 of the sealed file, which is made durable and closed."""
        with self._lock:
            sealed, self._file = self._open(), None
        with sealed as file:
            file.truncate(self.size)  # bytes of a longer file may be behind its end
            os.fsync(file.fileno())
        self._prefix.follow(self.file, self.size or 0, wait=True)
        return self._prefix.hexdigest()

    def beginning(self) -> bytes:
        """The first bytes of the sealed file, to see what it is."""
        with open(self.file, "rb") as file:
            return file.read(512)

    def restart(self) -> None:
        """Throw all bytes away: they are not the right ones."""
        with self._lock:
            self._forget()
            self.discard()
            self._sealed, self._ranges = False, None

    def doubt(self, piece: Piece) -> bool:
        """Start the piece again from nothing, once, if nobody but an answer has given the size."""
        with self._lock:
            if self._doubted or self._given_size is not None or len(self._busy) > 1:
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
            Note(self.size, self._etag, self._done).write(self._note)

    def leave(self) -> None:
        """Keep what is here for the next process; without any note it would only take room."""
        try:
            self.save()
        except OSError:
            if not self._note.exists():
                self.discard()

    def close(self) -> None:
        """Take no more bytes: the file is done with, well or ill. Wakes who waits for some."""
        with self._lock:
            self._sealed = True
            for piece in self._active:
                piece.interrupt()
            if self._file:
                self._file.close()
            self._file = None

    def discard(self) -> None:
        """Remove the file and its note, where they still are."""
        with self._lock:
            self._done = []
            self.close()
            self.file.unlink(missing_ok=True)
            self._note.unlink(missing_ok=True)

    def _load(self) -> None:
        """Take over what an earlier process left."""
        left = note.read(self._note, self.file)
        if left is None or self.size not in (None, left.size):
            return
        if not self._digested and (not left.etag or left.done == [(0, left.size)]):
            return  # only the server can tell that it is still the same file
        self.size, self._etag, self._done = left.size, left.etag, left.done

    def _check(self, answer: Answer) -> None:
        right = self.size if answer.partial else self._given_size
        if right is not None and answer.total not in (None, right):
            came = f" (it compressed them: {answer.encoding})" if answer.encoding else ""
            raise FetchError(
                f"the server has {answer.total:,} bytes, where {right:,} are right"
                f"{came or answer.impostor()} ({answer.url})",
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

    def _is_whole(self, piece: Piece, answer: Answer) -> bool:
        """Whether an answer that is not the range asked for is to be taken, as the whole file.

        Raises FetchError when the server did give ranges, and may do so again.
        """
        piece.ignored += 1
        had_ranges = self._digested and (self._ranges or self._done)
        if not had_ranges or piece.ignored >= _IGNORED:
            self._ranges, self._whole = False, True
            if len(self._busy) > 1:
                return False  # once the others have ended, one starts from the beginning
            if not answer.partial:
                self._forget()
                return True
        sent = "another range than" if answer.partial else "the whole file instead of"
        reason = f"the server sent {sent} the range that was asked for ({answer.url})"
        raise FetchError(reason, again=True)

    @property
    def _busy(self) -> list[Piece]:
        """What is being filled; not what has been taken from one who does not know it yet."""
        return [piece for piece in self._active if not piece.full]

    def _open(self) -> BinaryIO:
        """The file, for whoever holds the lock: nothing is written once it is sealed."""
        if self._file is None:
            self._file = os.fdopen(os.open(self.file, _OPEN, 0o600), "r+b", buffering=0)
        return self._file

    def _begin(self, piece: Piece) -> Piece:
        self._active.append(piece)
        return piece

    def _is_large(self) -> bool:
        return self.size is not None and self.size >= LARGE

    def _length(self, connections: int) -> int:
        """Of the next piece: what nobody has yet is dealt out evenly when it is little."""
        missing = (self.size or 0) - self.present - sum(p.missing for p in self._busy)
        return min(PIECE, max(_SMALLEST, missing // connections))

    def _gap(self) -> tuple[int, int | None]:
        """The first range that is neither here nor being filled."""
        covered = [*self._done, *((p.position, p.end or p.position) for p in self._busy)]
        position = 0
        for start, end in sorted(covered):
            if start > position:
                return position, start
            position = max(position, end)
        return position, self.size

    def _add(self, start: int, end: int) -> int:
        """Note that these bytes are here; returns how many of them were not before."""
        before = self.present
        self._done, self._unsaved = pieces.joined([*self._done, (start, end)]), True
        gained = self.present - before
        self._unsynced += gained
        return gained

    def _forget(self) -> None:
        self._advance(-self.present)
        self._done, self._etag, self.size = [], "", self._given_size
        self._prefix = Prefix()
