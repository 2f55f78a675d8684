"""Additions to a cache of the Hub that other programs use too.

Each entry is there whole or not at all, and none that exists is replaced: a file is written under
another name and then linked to its own, which fails where something is.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mirror.errors import MachineError
from mirror.store import atomic

_LOCK = Path(".locks", "mirror.lock")  # the folder in which the Hub's client has its own
_STAGED = re.compile(r"\..+\.[0-9a-f]{12}\.tmp")  # as atomic.unused_name makes them


def leftovers(repository: Path) -> list[Path]:
    """What a run that was killed left unfinished in a repository's folder."""
    try:
        entries = list((repository / "blobs").iterdir())
    except OSError:  # there is none
        return []
    return [entry for entry in entries if _STAGED.fullmatch(entry.name)]


class Cache:
    """A cache of the Hub that is added to. Paths are relative to its folder, which is made.

    What is made in it is open to whom the folder's own mode lets in.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._mode = stat.S_IMODE(folder.stat().st_mode)
        self._file_mode = self._mode & 0o666

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Be the only mirror here. Raises MachineError when another is."""
        import fcntl  # the server side is POSIX

        lock = self._place(_LOCK)
        with open(lock, "a", encoding="utf-8") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise MachineError(
                    f"another mirror is at work in {self.folder}",
                    hint="Wait until it has finished, then run this again.",
                ) from None
            with suppress(PermissionError):  # it is another user's
                lock.chmod(self._file_mode)
            yield

    def add_blob(self, path: str, blob: Path) -> None:
        """A hard link to the blob, or a copy where that cannot be. Raises FileExistsError."""
        place = self._place(path)
        try:
            os.link(blob, place)
        except FileExistsError:
            raise
        except OSError:  # another file system, or one without hard links
            self._add(path, lambda staged: shutil.copyfile(blob, staged), 0o444)

    def add_text(self, path: str, text: str) -> None:
        """A small file. Raises FileExistsError."""
        self._add(path, lambda staged: staged.write_bytes(text.encode()), self._file_mode)

    def add_link(self, path: str, target: str) -> None:
        """A relative link to another entry. Raises FileExistsError."""
        place = self._place(path)
        place.symlink_to(os.path.relpath(self.folder / target, place.parent))

    def _add(self, path: str, write: Callable[[Path], object], mode: int) -> None:
        place = self._place(path)
        # On the repository's file system, and where the client reads no names.
        staged = atomic.unused_name(self._place(f"{path.split('/')[0]}/blobs/{place.name}"))
        try:
            write(staged)
            staged.chmod(mode)
            with open(staged, "rb") as file:
                os.fsync(file.fileno())
            _appear(staged, place)
        finally:
            staged.unlink(missing_ok=True)

    def _place(self, path: str | Path) -> Path:
        place = self.folder / path
        self._make(place.parent)
        return place

    def _make(self, folder: Path) -> None:
        if not folder.is_dir():
            self._make(folder.parent)
            folder.mkdir(exist_ok=True)
            folder.chmod(self._mode)


def _appear(staged: Path, place: Path) -> None:
    """Give a file its name. Raises FileExistsError when it is taken."""
    try:
        os.link(staged, place)
    except FileExistsError:
        raise
    except OSError:  # without hard links, nothing names a file and fails where one is
        if os.path.lexists(place):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(place)) from None
        staged.rename(place)
