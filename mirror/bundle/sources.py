"""Where a bundle's bytes come from: a file, a pipe, or what else hands them out in order."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from mirror.bundle import flow
from mirror.core.paths import shown
from mirror.core.progress import Progress
from mirror.errors import MachineError, UsageError

_BINARY: int = getattr(os, "O_BINARY", 0)


class Source(Protocol):
    """A bundle's bytes, from the first to the last; they are read once.

    name: what a person calls it, fit to be shown.
    size: length in bytes; None when that is known only at the end (a pipe).
    digest: of the bundle that it claims to be; None when it claims nothing.
    """

    name: str
    size: int | None
    digest: str | None

    def read_into(self, views: Sequence[memoryview]) -> int:
        """Fill the views in order; returns the bytes read, fewer at the end. Raises OSError."""

    def suspects(self, progress: Progress) -> list[str]:
        """The bytes read were wrong: which of the parts are, a line each, where there are parts."""

    def close(self) -> None:
        """Nothing more will be read."""


class File:
    """A file or a pipe; its descriptor is the source's from here on."""

    def __init__(self, file: int, name: str) -> None:
        status = os.fstat(file)
        self._file = file
        self.name = name
        self.size = status.st_size if stat.S_ISREG(status.st_mode) else None
        self.digest: str | None = None

    def read_into(self, views: Sequence[memoryview]) -> int:
        """As Source has it."""
        return flow.read_into(self._file, views)

    def suspects(self, progress: Progress) -> list[str]:
        """None: it is one piece."""
        return []

    def close(self) -> None:
        """As Source has it."""
        os.close(self._file)


def open_file(source: Path | int) -> File:
    """The bundle in a file, or coming from a file descriptor, which stays the caller's.

    Raises UsageError and MachineError where there is no file, or none that may be read.
    """
    name = shown(str(source)) if isinstance(source, Path) else "the bundle"
    if isinstance(source, Path) and source.is_dir():
        raise UsageError(f"{name} is a folder, not a bundle")
    try:
        file = os.dup(source) if isinstance(source, int) else os.open(source, os.O_RDONLY | _BINARY)
    except FileNotFoundError:
        raise UsageError(f"there is no bundle {name}") from None
    except OSError as error:
        raise MachineError(f"{name} cannot be opened: {error.strerror}") from None
    return File(file, name)
