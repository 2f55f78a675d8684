"""Files and links that are there whole or not at all, also after a power cut."""

from __future__ import annotations

import glob
import os
import secrets
import sys
from contextlib import suppress
from pathlib import Path

_BINARY: int = getattr(os, "O_BINARY", 0)


def sync_file(path: Path | str) -> None:
    """Make the bytes of a file durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path | str) -> None:
    """Make the names in `folder` durable. A no-op where folders cannot be opened (Windows)."""
    try:
        sync_file(folder)
    except PermissionError:
        if os.name != "nt":
            raise


def sync_all(descriptor: int) -> None:
    """Make all durable that anybody has written to the file system of an open file or folder.

    For many files this is far faster than syncing each. Raises OSError when the disk has refused
    bytes since the file was opened, as far as the system tells (Linux 5.8 and later).
    """
    import ctypes  # takes a few milliseconds, which few commands need

    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is None:  # no Linux
        os.sync()
    elif syncfs(descriptor):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def unused_name(beside: Path) -> Path:
    """A name in the same folder that nobody else uses."""
    return beside.with_name(f".{beside.name}.{secrets.token_hex(6)}.tmp")


def sweep(target: Path) -> None:
    """Remove what killed writers of `target` left: as large as a bundle, and of no use."""
    for path in target.parent.glob(f".{glob.escape(target.name)}.*.tmp"):
        with suppress(OSError):  # it is being written, or another's: it takes room, no more
            file = os.open(path, os.O_RDONLY | _BINARY)
            try:
                mark(file)
            finally:
                os.close(file)
            path.unlink()


def mark(file: int) -> None:
    """Mark an open file as being written. Raises OSError when another process has.

    Windows needs no mark: it removes no file that is open.
    """
    if sys.platform != "win32":
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def write(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write `data` to `path`: durable, and never seen half-written."""
    temporary = unused_name(path)
    try:
        with open(temporary, "xb") as file:
            with suppress(OSError):  # a file system without locks
                mark(file.fileno())
            file.write(data)
            file.flush()
            os.chmod(temporary, mode)  # first, so that it is as durable as the bytes
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def link(path: Path, target: str) -> None:
    """Make `path` a symbolic link to `target` by one durable rename, replacing what is there."""
    temporary = unused_name(path)
    try:
        os.symlink(target, temporary)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
