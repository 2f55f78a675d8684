"""What a bench is made of: rows, and which of them are set against each other."""

from __future__ import annotations

import os
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Row:
    """One piece of work, in a scratch folder that is empty when it begins.

    ready: done before it, not timed. scale: its seconds are multiplied by this. often: in every
    round. size: bytes that it handles, for a rate; 0 for none.
    """

    name: str
    work: Callable[[], None]
    ready: Callable[[], None] = lambda: None
    scale: int = 1
    often: bool = True
    size: int = 0


@dataclass(frozen=True)
class Compared:
    """Two rows, and the aim: seconds of `ours` over seconds of `theirs`, at most."""

    ours: str
    theirs: str
    aim: float | None


@dataclass(frozen=True)
class Limited:
    """A row that stands alone, and the aim: its seconds, at most."""

    ours: str
    aim: float


@dataclass(frozen=True)
class Added:
    """Two rows that do the same work, and the aim: seconds that `ours` takes more, at most."""

    ours: str
    theirs: str
    aim: float


class Group(ABC):
    """Rows that share what they work with: made in a folder of their own by the constructor.

    index: whether a package index is needed.
    """

    name: ClassVar[str]
    index: ClassVar[bool] = False
    aims: ClassVar[Sequence[Compared | Limited | Added]]

    @abstractmethod
    def __init__(self, folder: Path, scratch: Path, size: int) -> None: ...

    @abstractmethod
    def rows(self) -> list[Row]:
        """In the order in which they run."""

    def notes(self) -> list[str]:
        """What else there is to say when all rows have run, a line each."""
        return []


def need(program: str) -> None:
    """Raises CalledProcessError where a program is not installed."""
    if shutil.which(program) is None:
        raise subprocess.CalledProcessError(127, [program], stderr="it is not installed")


def write_random(path: Path, size: int) -> None:
    """A file of so many bytes that nothing compresses."""
    with open(path, "wb") as file:
        for start in range(0, size, 2**20):
            file.write(os.urandom(min(2**20, size - start)))


def run(*command: str | Path, folder: Path, variables: dict[str, str] | None = None) -> None:
    """Run a program to its end. Raises CalledProcessError, with what it said, when it fails."""
    subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **(variables or {})},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
    )
