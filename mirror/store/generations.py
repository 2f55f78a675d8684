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
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mirror.core import index as indexes
from mirror.core.index import Index
from mirror.errors import BundleError, MachineError
from mirror.store import atomic
from mirror.store.blobs import Blobs


@dataclass(frozen=True, slots=True)
class Generation:
    """One installed state: a folder, and where each thing in it is."""

    path: Path

    @property
    def number(self) -> int:
        """Counts up from 1 in a root; never used twice while it exists."""
        return int(self.path.name)

    @property
    def index_file(self) -> Path:
        """Written last: its presence says that the generation is complete."""
        return self.path / "index.json"

    @property
    def env(self) -> Path:
        """The environment: a virtual environment, or a conda prefix, or both in one."""
        return self.path / "env"

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return self.env / "bin" / "python"

    @property
    def wheels(self) -> Path:
        """A find-links folder."""
        return self.path / "wheels"

    @property
    def conda(self) -> Path:
        """An offline conda channel."""
        return self.path / "conda"

    @property
    def hub(self) -> Path:
        """A Hugging Face cache (HF_HUB_CACHE)."""
        return self.path / "hub"

    @property
    def models(self) -> Path:
        """ORG/NAME, and ORG/NAME@REVISION -> the snapshot of that revision."""
        return self.path / "models"

    @property
    def datasets(self) -> Path:
        """As `models`."""
        return self.path / "datasets"

    @property
    def spaces(self) -> Path:
        """As `models`."""
        return self.path / "spaces"

    @property
    def files(self) -> Path:
        """The manifest's plain files."""
        return self.path / "files"

    @property
    def tool(self) -> Path:
        """mirror itself: bin/mirror and what it imports."""
        return self.path / "tool"

    @property
    def launch_file(self) -> Path:
        """The launch settings that verify found, for `mirror run`."""
        return self.path / "launch.json"

    @property
    def pinned(self) -> bool:
        """Whether `mirror gc` keeps it for good."""
        return self._pin.is_file()

    @property
    def _pin(self) -> Path:
        # Beside the generation, which never changes.
        return self.path.with_suffix(".pin")

    def pin(self, *, wanted: bool) -> None:
        """Have `mirror gc` keep it for good, or no longer; durable."""
        if wanted:
            atomic.write(self._pin, b"")
        else:
            self._pin.unlink(missing_ok=True)
            atomic.sync_folder(self.path.parent)

    def index(self) -> Index:
        """What is installed here. Raises BundleError when the record is missing or changed."""
        try:
            data = self.index_file.read_bytes()
        except OSError as error:
            raise BundleError(f"{self.index_file} cannot be read: {error.strerror}") from None
        try:
            return indexes.parse(data)
        except BundleError as error:
            raise BundleError(
                f"{self.index_file}: {error.message}",
                problems=error.problems,
                hint="Install the bundle again; older generations are in `mirror list`.",
            ) from None


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
            self.path.mkdir(parents=True, exist_ok=True)
            status = self.path.stat()
            if status.st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
                raise MachineError(
                    f"{self.path} can be written by everybody",
                    hint=f"chmod o-w {self.path}, or choose another --root.",
                )
            for folder in (self.blobs.folder, self._generations, self.path / "tmp", self.logs):
                if folder.is_symlink():
                    raise MachineError(
                        f"{folder} is a symbolic link; mirror writes into its own folders only",
                        hint="Remove the link, or choose another --root.",
                    )
                folder.mkdir(exist_ok=True)
            probe = atomic.unused_name(self.path / "tmp" / "probe")
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise MachineError(
                f"the root {self.path} cannot be written: {error.strerror}",
                hint="Choose another with --root DIR, or set MIRROR_ROOT.",
            ) from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the root alone. Raises MachineError when another mirror holds it."""
        import fcntl  # the server side is POSIX

        with open(self.path / "lock", "a", encoding="utf-8") as file:
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
            raise MachineError(
                f"nothing is installed in {self.path}",
                hint="Install a bundle there first (mirror install BUNDLE), or name the root that"
                " has one with --root DIR.",
            ) from None
        generation = Generation(self.path / target)
        if not generation.index_file.is_file():
            raise BundleError(f"{self._current} points at {target}, which is no whole generation")
        return generation

    def current_number(self) -> int | None:
        """The number of the generation in use, None when there is none."""
        return self.current().number if self._current.is_symlink() else None

    def tidy(self) -> None:
        """Remove what interrupted installs left."""
        for generation in self._folders():
            if not generation.index_file.is_file():
                remove_tree(generation.path)
        remove_tree(self.blobs.temporary)

    def begin(self) -> Generation:
        """An empty folder for the next generation; what interrupted installs left is removed."""
        self.tidy()
        number = max((g.number for g in self._folders()), default=0) + 1
        generation = Generation(self._generations / f"{number:06d}")
        generation.path.mkdir()
        return generation

    def finish(self, generation: Generation, index: Index) -> None:
        """Declare the generation complete: every byte of it durable, then its record."""
        os.sync()
        atomic.write(generation.index_file, index.to_bytes(), 0o444)
        atomic.sync_folder(self._generations)

    def commit(self, generation: Generation) -> None:
        """Put the generation in use, by one rename."""
        atomic.link(self._current, os.path.join("generations", generation.path.name))

    def remove(self, generation: Generation) -> None:
        """Remove a complete generation that is not in use; its blobs stay.

        Its record goes first, durably: when this is killed, the rest is what `tidy` removes.
        """
        generation.index_file.unlink()
        atomic.sync_folder(generation.path)
        remove_tree(generation.path)
        atomic.sync_folder(self._generations)

    def discard(self, generation: Generation) -> None:
        """Remove a generation that was begun and will not be finished."""
        remove_tree(generation.path)

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
