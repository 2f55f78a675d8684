"""What an increment ships of large files that have changed in part: only the parts that are new.

    store/deltas/OLD-NEW   how NEW is made of OLD; empty when that would save too little

Both files have to be at hand when it is made: the new one as for any build, the old one in the
builder's store or in the bundle that --since names, which may be in volumes.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import BinaryIO

from mirror.build.increments import Base
from mirror.build.regions import cut
from mirror.bundle import layout
from mirror.bundle.member import Member
from mirror.bundle.opening import files_of, opened
from mirror.core.artifact import Artifact
from mirror.core.delta import MAX_PIECES, Piece, artifact
from mirror.core.index import Index, total_size
from mirror.core.progress import Advance, Progress
from mirror.core.text import counted, human_size
from mirror.store import atomic
from mirror.store.blobs import CHUNK, Blobs

#: Smaller files are shipped whole.
SMALLEST = 2**20
#: So much of a file has to be saved.
_SHARE = 0.1
#: Shorter parts that are equal are shipped all the same: to name one takes bytes too.
_SHORT = 512


def noted(index: Index, base: Base, blobs: Blobs) -> dict[str, Artifact]:
    """The deltas that are made already: sha256 of the result -> what is shipped for it.

    Raises OSError for a note that cannot be read: without it the bundle would be another.
    """
    found = {}
    for old, new in _pairs(index, base):
        try:
            known = json.loads(_note(old, new, blobs).read_bytes() or b"null")
        except (FileNotFoundError, ValueError):
            continue
        if known and blobs.has(known["sha256"], known["size"]):
            pieces = [Piece(size, at) for size, at in known["pieces"]]
            found[new.sha256] = artifact(
                new.sha256, old.sha256, pieces, size=known["size"], sha256=known["sha256"]
            )
    return found


def make(
    index: Index, base: Base, locate: Callable[[Artifact], Path], blobs: Blobs, progress: Progress
) -> bool:
    """Make those that are not; True when there is a new one. Raises OSError."""
    todo = [pair for pair in _pairs(index, base) if not _note(*pair, blobs).exists()]
    if not todo:
        return False
    made = []
    total = total_size([file for pair in todo for file in pair])
    packed = _Packed.of(base, progress)
    with progress.bar("comparing", total) as advance:
        for old, new in todo:
            if file := _open(old, packed, blobs):
                with file, open(locate(new), "rb") as fresh:
                    note = _compared(file, old, fresh, new, blobs, advance)
                if note is None:
                    continue
                place = _note(old, new, blobs)
                place.parent.mkdir(parents=True, exist_ok=True)
                atomic.write(place, note)
                if note:
                    made.append(new)
    if made:
        progress.step(
            f"{counted(len(made), 'large file')} changed in part: {human_size(total_size(made))},"
            " of which only the new parts are shipped"
        )
    return bool(made)


def _pairs(index: Index, base: Base) -> Iterator[tuple[Artifact, Artifact]]:
    """Old and new version of each large file that is new."""
    olds = {_name(a): a for a in base.artifacts if a.sha256 in base.held}
    for new in {a.sha256: a for a in index.artifacts if a.sha256 not in base.held}.values():
        old = olds.get(_name(new))
        if old and min(old.size, new.size) >= SMALLEST:
            yield old, new


def _name(found: Artifact) -> tuple[str, ...]:
    """What stays the same from one version to the next."""
    if found.text("repo"):
        return found.kind, found.text("repo"), found.text("file")
    return found.kind, found.text("name") or found.path


def _note(old: Artifact, new: Artifact, blobs: Blobs) -> Path:
    return blobs.folder / "deltas" / f"{old.sha256}-{new.sha256}"


def _compared(
    old_file: BinaryIO,
    old: Artifact,
    new_file: BinaryIO,
    new: Artifact,
    blobs: Blobs,
    advance: Advance,
) -> bytes | None:
    """What to note, with the new bytes put into the store; empty when too little is saved.

    None for a damaged copy of the old file: the server's is another.
    """
    known: dict[bytes, int] = {}
    whole, over = hashlib.sha256(), Event()

    def take(data: bytes) -> None:
        if over.is_set():
            raise InterruptedError("nobody waits for it any more")
        whole.update(data)

    def look() -> None:
        for at, _, digest in _parts(old_file, old.size, take, advance):
            known.setdefault(digest, at)

    with ThreadPoolExecutor(1) as beside:  # hashing lets go of Python's lock
        looked = beside.submit(look)
        try:
            parts = list(_parts(new_file, new.size, _nothing, advance))
            looked.result()
        finally:
            over.set()
    if whole.hexdigest() != old.sha256:
        return None
    pieces = _pieces(parts, known)
    size = sum(piece.size for piece in pieces if piece.at is None)
    if size > new.size * (1 - _SHARE) or len(pieces) > MAX_PIECES:
        return b""
    sha256 = _keep(new_file, pieces, blobs)
    spelled = [[piece.size, piece.at] for piece in pieces]
    return json.dumps({"size": size, "sha256": sha256, "pieces": spelled}).encode()


def _nothing(data: bytes) -> None:
    """All that is done with the bytes besides."""


def _parts(
    file: BinaryIO, size: int, also: Callable[[bytes], object], advance: Advance
) -> Iterator[tuple[int, int, bytes]]:
    """Offset, size and hash of each part of a file, read once from its beginning to its end."""
    places = cut(file, size)
    file.seek(0)
    for start, end in itertools.pairwise(places):
        digest, left = hashlib.sha256(), end - start
        while left and (data := file.read(min(left, CHUNK))):
            digest.update(data)
            also(data)
            advance(len(data))
            left -= len(data)
        yield start, end - start, digest.digest()


def _pieces(parts: Iterable[tuple[int, int, bytes]], known: Mapping[bytes, int]) -> list[Piece]:
    """The parts as pieces, neighbours put together."""
    pieces: list[Piece] = []
    for _, size, digest in parts:
        at = known.get(digest) if size >= _SHORT else None
        last = pieces[-1] if pieces else None
        if last and at is None and last.at is None:
            pieces[-1] = Piece(last.size + size)
        elif last and at is not None and last.at is not None and last.at + last.size == at:
            pieces[-1] = Piece(last.size + size, last.at)
        else:
            pieces.append(Piece(size, at))
    return pieces


def _keep(file: BinaryIO, pieces: Iterable[Piece], blobs: Blobs) -> str:
    """Put the new bytes into the store; returns their sha256."""
    staged, digest, at = blobs.staging(), hashlib.sha256(), 0
    try:
        with open(staged, "xb") as out:
            for piece in pieces:
                if piece.at is None:
                    file.seek(at)
                    left = piece.size
                    while left and (data := file.read(min(left, CHUNK))):
                        digest.update(data)
                        out.write(data)
                        left -= len(data)
                at += piece.size
            out.flush()
            os.fsync(out.fileno())
        blobs.admit(staged, digest.hexdigest())
    finally:
        staged.unlink(missing_ok=True)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True)
class _Packed:
    """The bundle that is the base, to be read at any place.

    files: itself, or its volumes. starts: sha256 of each artifact in it -> its place in the tar.
    """

    files: Sequence[Path] = ()
    starts: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, base: Base, progress: Progress) -> _Packed:
        """Without anything when the base was not named by its bundle."""
        if base.bundle is None:
            return cls()
        starts: dict[str, int] = {}
        with opened([str(base.bundle)], progress) as [reader]:
            at = len(layout.head(reader.index_bytes, reader.signature))
            for shipped in reader.index.shipped:
                at += len(layout.member_header(shipped.path, shipped.size, shipped.mode))
                starts[shipped.sha256] = at
                at += shipped.size + layout.padding(shipped.size)
        return cls(files_of(str(base.bundle), progress), starts)


def _open(old: Artifact, packed: _Packed, blobs: Blobs) -> BinaryIO | None:
    """The bytes of an old file, None where they are nowhere."""
    if blobs.has(old.sha256, old.size):
        return open(blobs.path(old.sha256), "rb")
    if old.sha256 not in packed.starts:
        return None
    return io.BufferedReader(Member(packed.files, packed.starts[old.sha256], old.size), CHUNK)
