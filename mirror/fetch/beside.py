"""What a fetch keeps beside the blobs.

FOLDER/partial/KEY        bytes of a file that is not complete
FOLDER/partial/lock       held by the one process that writes there
FOLDER/git-sha1/ab/ab...  the sha256 of a blob that is also known by this git object id
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Collection
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from mirror.core.progress import Progress
from mirror.core.text import human_size
from mirror.errors import MachineError
from mirror.store.blobs import Blobs

_HINT = "Make room there, or name another folder with MIRROR_CACHE."
#: Partial files that nobody has asked for in so many seconds are removed.
_OLD = 30 * 24 * 3600


def partial(blobs: Blobs) -> Path:
    """The folder of the incomplete files."""
    return blobs.folder / "partial"


def locked(blobs: Blobs, progress: Progress) -> AbstractContextManager[object]:
    """Partial files have one writer: a second process waits until the first has finished.

    Raises MachineError.
    """
    import filelock

    folder = partial(blobs)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / "lock")
        try:
            return lock.acquire(timeout=0)
        except filelock.Timeout:
            progress.step("waiting for another mirror, which is downloading into the same store")
            return lock.acquire()
    except OSError as error:
        raise unwritable(blobs, error) from None


def tidy(blobs: Blobs, wanted: Collection[str]) -> None:
    """Remove the old partial files of which none is wanted now. The caller holds the lock."""
    for path in partial(blobs).iterdir():
        if path.name.partition(".")[0] not in {*wanted, "lock"}:
            with suppress(OSError):  # it takes room, and does no other harm
                if time.time() - path.stat().st_mtime > _OLD:
                    path.unlink()


def check_room(blobs: Blobs, size: int) -> None:
    """Raises MachineError when so many bytes cannot be had there."""
    free = shutil.disk_usage(partial(blobs)).free
    if size > free:
        raise MachineError(
            f"{human_size(size)} are to be downloaded to {blobs.folder}, and it has room for"
            f" {human_size(free)}",
            hint=_HINT,
        )


def unwritable(blobs: Blobs, error: OSError) -> MachineError:
    """The error for a store that takes no bytes."""
    return MachineError(
        f"downloads cannot be written to {blobs.folder}: {error.strerror or error}", hint=_HINT
    )


def note_alias(blobs: Blobs, object_id: str, sha256: str) -> None:
    """Remember that a blob is also known by this git object id."""
    path = _alias(blobs, object_id)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(sha256, encoding="ascii", newline="\n")


def alias(blobs: Blobs, object_id: str) -> str:
    """The sha256 of what is known by this id, empty when nothing is."""
    try:
        return _alias(blobs, object_id).read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""


def _alias(blobs: Blobs, object_id: str) -> Path:
    return blobs.folder / "git-sha1" / object_id[:2] / object_id
