"""Ranges of one file that are being filled, or are here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

#: Offsets of the first byte and after the last one: disjoint, in order, never adjacent.
Ranges: TypeAlias = list[tuple[int, int]]

#: A piece that takes so many seconds more is shared with an idle connection.
TAIL = 2.0
#: But a connection that has brought nothing yet is given so many: some servers are slow to begin.
SILENCE = 5.0
#: What a slow connection would bring meanwhile is left to it, if it is worth a request.
_WORTH_KEEPING = 64 * 2**10


@dataclass(eq=False, slots=True)
class Piece:
    """A range of the file that one connection is filling.

    position: offset of the next byte.
    end: offset after the last one; None while the size of the file is unknown.
    taken: whether it was taken away, whole, from a connection that brought nothing.
    ranged: whether a range was asked for, in the last request.
    ignored: how many answers in a row were not the range that was asked for.
    interrupt: wakes the connection, if it waits for bytes.
    """

    position: int
    end: int | None
    taken: bool = False
    ranged: bool = False
    ignored: int = 0
    interrupt: Callable[[], object] = lambda: None
    begun: int = field(init=False)
    since: float = field(init=False, default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.begun = self.position

    @property
    def full(self) -> bool:
        """Whether nothing is missing of it."""
        return self.position == self.end

    @property
    def missing(self) -> int:
        """How many bytes are, as far as that is known."""
        return 0 if self.end is None else self.end - self.position

    def rate(self, now: float) -> float:
        """Bytes a second so far."""
        return (self.position - self.begun) / max(now - self.since, 1e-3)

    def seconds_left(self, now: float) -> float:
        """How long it will take at this rate; 0 while it is too young to tell."""
        if now - self.since < (TAIL if self.position > self.begun else SILENCE):
            return 0.0
        return self.missing / (self.rate(now) or 1e-9)

    def share(self, now: float, rate: float) -> Piece | None:
        """Give away what another connection of this rate would sooner have; None: nothing."""
        assert self.end is not None  # noqa: S101 -- where ranges are given, the size is known
        own = self.rate(now)
        keeps = int(self.missing * own / (own + max(own, rate, 1.0)))
        if keeps < _WORTH_KEEPING:
            if self.taken:
                return None  # not one connection is slow, but the server
            keeps = 0
        rest = Piece(self.position + keeps, self.end, taken=not keeps)
        self.end = rest.position
        return rest


def joined(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The same bytes as a list in order."""
    merged: Ranges = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(high, merged[-1][1])
        elif high > low:
            merged.append((low, high))
    return merged


def length(ranges: Iterable[tuple[int, int]]) -> int:
    """How many bytes disjoint ranges have."""
    return sum(end - start for start, end in ranges)
