"""Files made of older ones, in a store."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from typing import BinaryIO

from mirror.core.delta import Delta
from mirror.core.paths import shown
from mirror.core.progress import Advance, Progress
from mirror.core.text import counted
from mirror.errors import BundleError
from mirror.store.blobs import CHUNK, Blobs, hash_file


def make_all(deltas: Sequence[Delta], blobs: Blobs, progress: Progress) -> None:
    """Make the results of these deltas, whose bytes are in the store, durably.

    Raises BundleError where a result does not have its hash; then it is not in the store.
    """
    if not deltas:
        return
    total = sum(delta.result.size for delta in deltas)
    with progress.bar("putting together", total) as advance:
        for delta in deltas:
            _make(delta, blobs, advance)
    blobs.sync([delta.result.sha256 for delta in deltas])
    progress.step(f"put together {counted(len(deltas), 'file')} of what was here and what came")


def _make(delta: Delta, blobs: Blobs, advance: Advance) -> None:
    result = delta.result
    if blobs.has(result.sha256, result.size) and (
        hash_file(blobs.path(result.sha256)) == result.sha256
    ):
        advance(result.size)
        return
    staged, digest = blobs.staging(), hashlib.sha256()

    def take(data: bytes) -> None:
        digest.update(data)
        out.write(data)
        advance(len(data))

    try:
        with (
            open(blobs.path(delta.base), "rb") as base,
            open(blobs.path(delta.artifact.sha256), "rb") as new,
            open(staged, "xb") as out,
        ):
            end = os.fstat(base.fileno()).st_size
            for piece in delta.pieces:
                if piece.at is not None:
                    base.seek(min(piece.at, end))
                _read(new if piece.at is None else base, piece.size, take)
            out.flush()
            os.chmod(staged, 0o444)
            os.fsync(out.fileno())
        if digest.hexdigest() != result.sha256:
            raise BundleError(
                f"{shown(result.path)} cannot be put together: what comes out is not what the index"
                f" names, so {blobs.path(delta.base)} is damaged",
                hint="mirror verify checks the store. Install a bundle that holds the whole file.",
            )
        blobs.rename(staged, result.sha256)
    finally:
        staged.unlink(missing_ok=True)


def _read(source: BinaryIO, size: int, take: Callable[[bytes], None]) -> None:
    """As many bytes as there are, up to `size`: that some were missing, the hash will tell."""
    while size and (data := source.read(min(size, CHUNK))):
        take(data)
        size -= len(data)
