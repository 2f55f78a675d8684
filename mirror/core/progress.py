"""How a use case tells what it is doing, without knowing who listens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol, TypeAlias

#: Called with the number of bytes (or items) done since the last call; from any thread.
Advance: TypeAlias = Callable[[int], None]


def uncounted(amount: int) -> None:
    """An Advance for when nobody counts."""


class Progress(Protocol):
    """What `console` offers to the use cases."""

    def step(self, text: str) -> None:
        """One line for one finished or starting step."""

    def detail(self, text: str) -> None:
        """A line that only -v shows."""

    def warn(self, text: str) -> None:
        """Something that did not stop the work but that a person must read."""

    def bar(
        self,
        label: str,
        total: int,
        unit: str = "B",
        *,
        done: int = 0,
        names: Callable[[], Sequence[str]] = tuple,
    ) -> AbstractContextManager[Advance]:
        """A bar over `total` bytes (unit "B") or items; ends when the context ends.

        done: how many were there before. names: what is being worked on, whenever it is asked for,
        from any thread.
        """


class Quiet:
    """A Progress that says nothing: for library use and tests."""

    def step(self, text: str) -> None:
        """Say nothing."""

    def detail(self, text: str) -> None:
        """Say nothing."""

    def warn(self, text: str) -> None:
        """Say nothing."""

    @contextmanager
    def bar(
        self,
        label: str,
        total: int,
        unit: str = "B",
        *,
        done: int = 0,
        names: Callable[[], Sequence[str]] = tuple,
    ) -> Iterator[Advance]:
        """Count nothing."""
        yield uncounted
