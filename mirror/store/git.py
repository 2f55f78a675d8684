"""How git names the bytes of a file: what the Hub checks files by that are not in LFS."""

from __future__ import annotations

import hashlib
from pathlib import Path

from mirror.store.blobs import CHUNK


def object_id(path: Path, size: int) -> str:
    """git's object id of a file of so many bytes, in constant memory. Raises OSError."""
    digest = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
