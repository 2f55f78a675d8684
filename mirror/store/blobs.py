"""Files named by the sha256 of their bytes.

Invariant: a file under its name has the bytes that the name says. Nothing is moved in before its
hash was computed over the very bytes written, and what is in is read-only.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from mirror.core.progress import Advance, uncounted
from mirror.errors import BundleError
from mirror.store import atomic

CHUNK = 2**20
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Blobs:
    """A folder of blobs: FOLDER/sha256/ab/abcd..., and FOLDER/tmp for those still being written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.temporary = folder / "tmp"
        self._named = os.path.join(folder, "sha256")

    def path(self, sha256: str) -> Path:
        """Where the blob of this hash is, or would be."""
        return Path(self.name(sha256))

    def name(self, sha256: str) -> str:
        """`path` as text: of a hundred thousand, Path objects take longer than the disk."""
        return f"{self._named}/{sha256[:2]}/{sha256}"

    def has(self, sha256: str, size: int | None = None) -> bool:
        """Whether the blob is here (and of that size, when one is given). Does not hash.

        A link is none: what it points at is not the store's, and may change.
        """
        try:
            status = os.lstat(self.name(sha256))
        except OSError:
            return False
        return stat.S_ISREG(status.st_mode) and size in (None, status.st_size)

    def __iter__(self) -> Iterator[str]:
        """The hash of every blob that is here, in no order."""
        for folder in _names(self._named):
            for name in _names(os.path.join(self._named, folder)):
                if _SHA256.fullmatch(name) and name[:2] == folder:
                    yield name

    def remove(self, sha256: str) -> int:
        """Remove a blob that nobody needs; returns the bytes that this frees.

        That is nothing while the bytes have another name: a hard link in a generation or a cache.
        """
        name = self.name(sha256)
        status = os.lstat(name)
        os.unlink(name)
        return status.st_size if status.st_nlink == 1 else 0

    def staging(self) -> Path:
        """A fresh, unused file name on the store's file system, to write a blob to."""
        self.temporary.mkdir(parents=True, exist_ok=True)
        return atomic.unused_name(self.temporary / "blob")

    def admit(self, file: Path | str, sha256: str) -> None:
        """Move `file`, whose bytes the caller has hashed and synced, in under its name.

        The folder's entry is not synced here: call `sync` once after many.
        """
        os.chmod(file, 0o444)
        self.rename(file, sha256)

    def rename(self, file: Path | str, sha256: str) -> None:
        """`admit` for a file that is read-only already."""
        target = self.name(sha256)
        try:
            os.replace(file, target)
        except FileNotFoundError:  # the first blob in its folder
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.replace(file, target)

    def put(self, data: bytes) -> str:
        """Store these bytes; returns their sha256."""
        sha256 = hashlib.sha256(data).hexdigest()
        if not self.has(sha256, len(data)):
            file = self.staging()
            with open(file, "xb") as stream:
                stream.write(data)
                stream.flush()
                os.chmod(file, 0o444)
                os.fsync(stream.fileno())
            self.rename(file, sha256)
        return sha256

    def sync(self, names: Iterator[str] | list[str] | set[str]) -> None:
        """Make the names of these blobs durable."""
        folders = {os.path.join(self._named, sha256[:2]) for sha256 in names}
        for folder in (*sorted(folders), self._named):
            if os.path.isdir(folder):
                atomic.sync_folder(folder)

    def check(self, sha256: str) -> None:
        """Raises BundleError unless the blob is here and its bytes have this hash."""
        path = self.path(sha256)
        if not self.has(sha256):
            raise BundleError(f"{path} is missing")
        if hash_file(path) != sha256:
            raise BundleError(f"{path} has changed: its sha256 is no longer its name")


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def hash_file(path: Path | str, advance: Advance = uncounted) -> str:
    """sha256 of a file's bytes, in constant memory; told of each part of them that was read."""
    digest = hashlib.sha256()
    with open(path, "rb", buffering=0) as file:
        # Of many small files, making the large buffer would take as long as the hashing.
        buffer = memoryview(bytearray(min(CHUNK, os.fstat(file.fileno()).st_size + 1)))
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            advance(count)
    return digest.hexdigest()


def place(blob: Path | str, target: Path | str, *, executable: bool = False) -> None:
    """Put a blob's bytes at `target`: a hard link where that can be, else a copy.

    An executable is always a copy: its mode differs from the blob's, and modes belong to the bytes.
    """
    if not executable:
        try:
            try:
                os.link(blob, target)
            except FileNotFoundError:  # the first one in its folder
                os.makedirs(os.path.dirname(target), exist_ok=True)
                os.link(blob, target)
            return
        except FileExistsError:
            raise
        except OSError:
            pass  # another file system, or one without hard links
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copyfile(blob, target)
    os.chmod(target, 0o555 if executable else 0o444)
