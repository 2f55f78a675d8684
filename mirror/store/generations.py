"""A root and its generations.

    ROOT/store/sha256/ab/abcd...   blobs
    ROOT/generations/000003/       one complete installed state
    ROOT/generations/000003.pin    there when it is pinned: `mirror gc` keeps it
    ROOT/current                   -> generations/000003
    ROOT/lock ROOT/tmp/ ROOT/log/

Invariants: a generation whose folder holds `index.json` is complete; `current` points at a complete
one or is absent; it is replaced by one rename and nothing else. A folder without `index.json` is
what an interrupted install left, and the next install removes it.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from mirror.core.index import Index
from mirror.core.paths import shown
from mirror.core.progress import Progress, Quiet
from mirror.errors import BundleError, MachineError
from mirror.store import atomic, guard, seal
from mirror.store.blobs import Blobs
from mirror.store.generation import Generation


class Root:
    """The directory on the server that mirror owns."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.blobs = Blobs(self.path / "store")
        self.logs = self.path / "log"
        self._generations = self.path / "generations"
        self._current = self.path / "current"

    def prepare(self) -> None:
        """Make the root's folders. Raises MachineError where that cannot be, or is not safe."""
        try:
            guard.require_safe(self.path)
            self.path.mkdir(parents=True, exist_ok=True)
            for folder in (self.blobs.folder, self._generations, self.path / "tmp", self.logs):
                folder.mkdir(exist_ok=True)
            probe = atomic.unused_name(self.path / "tmp" / "probe")
            probe.touch()
            probe.unlink(missing_ok=True)  # who holds the root removes what others left
        except OSError as error:
            raise MachineError(
                f"the root {self.path} cannot be written: {error.strerror}",
                hint="Choose another with --root DIR, or set MIRROR_ROOT.",
            ) from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the root alone. Raises MachineError when it is unsafe, or another mirror has it."""
        import fcntl  # the server side is POSIX

        os.umask(0o022)  # whoever changes a root does it for every user
        guard.require_safe(self.path)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with open(os.open(self.path / "lock", flags, 0o644), "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise MachineError(
                    f"another mirror is at work in {self.path}",
                    hint="Wait until it has finished, then run this again.",
                ) from None
            yield

    def generations(self) -> list[Generation]:
        """The complete generations, oldest first."""
        return [g for g in self._folders() if g.index_file.is_file()]

    def current(self) -> Generation:
        """The generation in use. Raises MachineError when there is none."""
        try:
            target = os.readlink(self._current)
        except OSError:
            if os.path.lexists(self._current):
                raise MachineError(
                    f"{self._current} is no symbolic link, which mirror makes it",
                    hint="Move it away, then install the bundle again.",
                ) from None
            raise MachineError(
                f"nothing is installed in {self.path}",
                hint="Install a bundle there first (mirror install BUNDLE), or name the root that"
                " has one with --root DIR.",
            ) from None
        generation = Generation(self.path / target)
        if not re.fullmatch(r"generations/[0-9]+", target) or generation.path.is_symlink():
            link = f", and {generation.path} is a link" if generation.path.is_symlink() else ""
            raise MachineError(
                f"{self._current} points at {shown(target)}{link}: no generation of this root",
                hint="Remove the link, then install the bundle again.",
            )
        if not generation.index_file.is_file():
            raise BundleError(f"{self._current} points at {target}, which is no whole generation")
        return generation

    def current_number(self) -> int | None:
        """The number of the generation in use, None when there is none."""
        return self.current().number if self._current.is_symlink() else None

    def tidy(self) -> None:
        """Remove what others left that were killed at work. The caller holds the root."""
        for mark in sorted(self._generations.glob("*.new")):
            generation = Generation(mark.with_suffix(""))
            if generation.index_file.is_file() and not self._is_current(generation):
                self.remove(generation)  # nobody has ever used it
            mark.unlink()
            atomic.sync_folder(self._generations)
        for generation in self._folders():
            # The one in use lost its record by damage, and may have it back.
            if not generation.index_file.is_file() and not self._is_current(generation):
                remove_tree(generation.path)
        remove_tree(self.blobs.temporary)
        for folder, begins in (
            (self.path, ".current."),
            (self._generations, "."),
            (self.path / "tmp", "."),
        ):
            for path in folder.glob(f"{begins}*.tmp"):
                path.unlink(missing_ok=True)

    def begin(self) -> Generation:
        """An empty folder for the next generation; what interrupted installs left is removed."""
        self.tidy()
        number = max((g.number for g in self._folders()), default=0) + 1
        generation = Generation(self._generations / f"{number:06d}")
        generation.path.mkdir()
        generation.unused.touch()
        return generation

    def finish(
        self,
        generation: Generation,
        index: Index,
        progress: Progress | None = None,
        *,
        made: Mapping[str, str] | None = None,
        stated: Mapping[str, tuple[int, str]] | None = None,
    ) -> str:
        """Declare the generation complete: every byte of it durable and sealed, then its record.

        Returns the sha256 of the seal.

        made, stated: for the seal, how the environment was made; and what is known of its files.
        """
        from concurrent.futures import ThreadPoolExecutor  # few commands need it

        with ThreadPoolExecutor(1) as disk:
            # What was just written is hashed from memory while it goes to the disk.
            synced = disk.submit(self._sync_all)
            known = partial(self.inodes, index)
            entries = seal.take(generation.path, progress or Quiet(), known, stated)
            synced.result()
        digest = seal.Seal(index.digest, made or {}, entries).write(generation.path)
        atomic.write(generation.index_file, index.to_bytes(), 0o444)
        atomic.sync_folder(self._generations)
        return digest

    def _sync_all(self) -> None:
        """Everything durable, an environment elsewhere too.

        Raises OSError for what the root's disk has refused; `sync` alone does not tell.
        """
        folder = os.open(self._generations, os.O_RDONLY)
        try:
            os.sync()
            atomic.sync_all(folder)
        finally:
            os.close(folder)

    def inodes(self, index: Index) -> dict[tuple[int, int], str]:
        """The sha256 of each blob that an index lists, by device and inode. Reads no blob."""
        found = {}
        for artifact in index.artifacts:
            with suppress(OSError):
                status = os.lstat(self.blobs.name(artifact.sha256))
                found[status.st_dev, status.st_ino] = artifact.sha256
        return found

    def commit(self, generation: Generation) -> None:
        """Put the generation in use, by one rename."""
        atomic.link(self._current, os.path.join("generations", generation.path.name))
        generation.unused.unlink(missing_ok=True)

    def remove(self, generation: Generation) -> None:
        """Remove a complete generation that is not in use; its blobs stay.

        Its record goes first, durably: when this is killed, the rest is what `tidy` removes.
        """
        generation.index_file.unlink()
        atomic.sync_folder(generation.path)
        remove_tree(generation.path)
        atomic.sync_folder(self._generations)

    def discard(self, generation: Generation) -> None:
        """Remove a generation that was begun; one that is in use already stays."""
        if not self._is_current(generation):
            remove_tree(generation.path)
        generation.unused.unlink(missing_ok=True)

    def _is_current(self, generation: Generation) -> bool:
        try:
            return os.path.basename(os.readlink(self._current)) == generation.path.name
        except OSError:
            return False

    def _folders(self) -> list[Generation]:
        if not self._generations.is_dir():
            return []
        found = [p for p in self._generations.iterdir() if p.name.isdecimal() and p.is_dir()]
        return [Generation(p) for p in sorted(found)]


def remove_tree(path: Path) -> None:
    """Remove a folder and all below it, read-only folders too; nothing when it is not there.

    Also while somebody else still works in it: after a failure, the threads of conda's installer
    go on for a moment, and take away or add files under our hands.
    """
    for patience in range(20):
        if not path.is_dir() or path.is_symlink():
            return
        try:
            shutil.rmtree(path)
        except PermissionError:
            for folder, _, _ in os.walk(path):
                with suppress(FileNotFoundError):
                    os.chmod(folder, 0o755)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise
            time.sleep(0.01 * patience)
    shutil.rmtree(path)
