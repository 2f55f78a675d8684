"""What is sent: small whole numbers that tell where, from whom and when they come.

A number depends on its place, on the rank that sends it and on the turn (which exchange of the run
it belongs to). So data that is stale, shifted, swapped or somebody else's is found, not only data
that is damaged. All of them, and their sums over thousands of ranks, are exact in float32, in
whatever order they are added.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

#: Places repeat after this many: a prime, so no power of two of them is a whole period.
_PERIOD = 1021
#: How far a turn shifts the numbers.
_SHIFT = 17
#: Numbers compared at a time: what a comparison needs beside the data stays below 100 MB.
_PIECE = 2**22


class Pattern:
    """The numbers of every turn, for buffers of at most `size` numbers on one device."""

    def __init__(self, size: int, device: torch.device) -> None:
        period = torch.arange(_PERIOD, dtype=torch.float32, device=device)
        self._ramp = period.repeat(size // _PERIOD + 2)

    def at(self, turn: int, size: int) -> Tensor:
        """The first `size` numbers of a turn, before a rank adds its own: not to be written to."""
        begin = turn * _SHIFT % _PERIOD
        return self._ramp[begin : begin + size]

    def fill(self, buffer: Tensor, turn: int, rank: int) -> None:
        """Write what this rank sends in a turn."""
        torch.add(self.at(turn, buffer.numel()), rank, out=buffer)


def poison(buffer: Tensor) -> None:
    """Fill a buffer that is received into: what never arrives is then no number."""
    buffer.fill_(float("nan"))


class Differences:
    """How many numbers were wrong, and how many of these were none (NaN), turn by turn.

    It is counted on the device, without waiting for it.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._turns: list[Tensor] = []
        self.compared = 0

    def begin(self) -> None:
        """A new turn."""
        self._turns.append(torch.zeros(2, dtype=torch.int64, device=self._device))
        self.compared = 0

    def add(self, got: Tensor, base: Tensor, times: int = 1, plus: int = 0) -> None:
        """Compare `got` with `base * times + plus`, number by number."""
        counts = self._turns[-1]
        self.compared += got.numel()
        for begin in range(0, got.numel(), _PIECE):
            piece = got[begin : begin + _PIECE]
            right = base[begin : begin + _PIECE] * times + plus
            counts[0] += (piece != right).sum()
            counts[1] += piece.isnan().sum()

    def read(self) -> Wrong | None:
        """The first turn with wrong numbers, or None; waits for the device."""
        for turn, (wrong, none) in enumerate(torch.stack(self._turns).tolist()):
            if wrong:
                return Wrong(turn, len(self._turns), wrong, none, self.compared)
        return None


@dataclass(frozen=True)
class Wrong:
    """What was wrong in one turn of several: of `numbers`, `wrong`, and `none` of them NaN."""

    turn: int
    turns: int
    wrong: int
    none: int
    numbers: int

    def __str__(self) -> str:
        nan = f", {self.none:,} of them not a number" if self.none else ""
        when = f" in turn {self.turn + 1} of {self.turns}" if self.turns > 1 else ""
        return f"{self.wrong:,} of {self.numbers:,} values wrong{nan}{when}"
