"""Files and links that are there whole or not at all, also after a power cut."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def sync_folder(folder: Path | str) -> None:
    """Make the names in `folder` durable. A no-op where folders cannot be opened (Windows)."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:
        if os.name == "nt":
            return
        raise
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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


def write(path: Path, data: bytes, mode: int = 0o644) -> None:
    """Write `data` to `path`: durable, and never seen half-written."""
    temporary = unused_name(path)
    try:
        with open(temporary, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, mode)
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
