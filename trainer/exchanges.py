"""Collectives and sends as things to prepare, run and check.

Sizes and bandwidths are as nccl-tests defines them: `bytes` is the whole buffer (all_gather's
output, reduce_scatter's input), and a bus bandwidth is bytes / seconds * factor, which says how
busy the links are whatever the number of ranks (nccl-tests, doc/PERFORMANCE.md).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trainer.patterns import Differences, Pattern, poison

#: Bytes of a number (float32).
WIDTH = 4


class Buffers:
    """Buffers for exchanges of at most `size` numbers among `world` ranks, and what is sent."""

    def __init__(self, size: int, world: int, device: torch.device) -> None:
        part = -(-size // world)
        self.device = device
        self.pattern = Pattern(part * world, device)
        self.one = torch.empty(part * world, device=device)
        self.two = torch.empty(part, device=device)


class Exchange:
    """One collective of one size, among the ranks of one group.

    place: this rank's number in the group. size: in numbers, not bytes. least: how many turns it
    takes to see all of it.
    """

    name = ""
    least = 1

    def __init__(self, buffers: Buffers, size: int, place: int, world: int, group: Any) -> None:
        self.buffers, self.size = buffers, size
        self.place, self.world, self.group = place, world, group

    def factor(self) -> float:
        """Of the bus bandwidth."""
        return (self.world - 1) / self.world

    def base(self, turn: int) -> Tensor:
        """The turn's numbers, before a rank adds its own."""
        return self.buffers.pattern.at(turn, self.size)

    def prepare(self, turn: int) -> None:
        """Fill the buffers."""
        raise NotImplementedError

    def run(self, turn: int) -> None:
        """Communicate; on a GPU this may return before it is done."""
        raise NotImplementedError

    def check(self, turn: int, differences: Differences) -> None:
        """Compare what came with what was sent."""
        raise NotImplementedError

    def _sum(self) -> int:
        """What the ranks' own numbers add up to."""
        return self.world * (self.world - 1) // 2


class AllReduce(Exchange):
    """Every rank's numbers added up, on every rank."""

    name = "all_reduce"

    def factor(self) -> float:
        """Each number travels to be added and travels back."""
        return 2 * (self.world - 1) / self.world

    def prepare(self, turn: int) -> None:
        """In place: the input is the output."""
        self.buffers.pattern.fill(self._values, turn, self.place)

    def run(self, turn: int) -> None:
        """Add up."""
        dist.all_reduce(self._values, group=self.group)

    def check(self, turn: int, differences: Differences) -> None:
        """Every number is the sum over all ranks."""
        differences.add(self._values, self.base(turn), self.world, self._sum())

    @property
    def _values(self) -> Tensor:
        return self.buffers.one[: self.size]


class _Split(Exchange):
    """One of those that hold a part for each rank in a buffer for all: `size` is the whole."""

    def __init__(self, buffers: Buffers, size: int, place: int, world: int, group: Any) -> None:
        self.part = -(-size // world)
        super().__init__(buffers, self.part * world, place, world, group)
        self.whole = buffers.one[: self.size]
        self.own = buffers.two[: self.part]

    def of(self, values: Tensor, rank: int) -> Tensor:
        """A rank's part."""
        return values[rank * self.part : (rank + 1) * self.part]


class AllGather(_Split):
    """Every rank's part, in the order of ranks, on every rank."""

    name = "all_gather"

    def prepare(self, turn: int) -> None:
        """Fill this rank's part."""
        poison(self.whole)
        self.buffers.pattern.fill(self.own, turn, self.place)

    def run(self, turn: int) -> None:
        """Gather."""
        _named("all_gather_single", "all_gather_into_tensor")(
            self.whole, self.own, group=self.group
        )

    def check(self, turn: int, differences: Differences) -> None:
        """Every part is its rank's."""
        base = self.buffers.pattern.at(turn, self.part)
        for rank in range(self.world):
            differences.add(self.of(self.whole, rank), base, plus=rank)


class ReduceScatter(_Split):
    """Every rank's numbers added up, a part on each rank."""

    name = "reduce_scatter"

    def prepare(self, turn: int) -> None:
        """Fill the whole."""
        self.buffers.pattern.fill(self.whole, turn, self.place)
        poison(self.own)

    def run(self, turn: int) -> None:
        """Add up and share out."""
        _named("reduce_scatter_single", "reduce_scatter_tensor")(
            self.own, self.whole, group=self.group
        )

    def check(self, turn: int, differences: Differences) -> None:
        """This rank's part is the sum over all ranks."""
        differences.add(self.own, self.of(self.base(turn), self.place), self.world, self._sum())


class Broadcast(Exchange):
    """One rank's numbers on every rank; each turn another rank's."""

    name = "broadcast"

    def __init__(self, buffers: Buffers, size: int, place: int, world: int, group: Any) -> None:
        super().__init__(buffers, size, place, world, group)
        self.least = world
        self._values = buffers.one[:size]

    def factor(self) -> float:
        """Each number travels once over every link of a chain."""
        return 1.0

    def prepare(self, turn: int) -> None:
        """Fill the root's buffer."""
        if turn % self.world == self.place:
            self.buffers.pattern.fill(self._values, turn, self.place)
        else:
            poison(self._values)

    def run(self, turn: int) -> None:
        """Send to all."""
        dist.broadcast(self._values, src=turn % self.world, group=self.group)

    def check(self, turn: int, differences: Differences) -> None:
        """Every number is the root's."""
        differences.add(self._values, self.base(turn), plus=turn % self.world)


class SendReceive(Exchange):
    """From one rank to another; both take part, the receiver checks."""

    name = "sendrecv"

    def __init__(
        self, buffers: Buffers, size: int, rank: int, pair: tuple[int, int], group: Any
    ) -> None:
        super().__init__(buffers, size, rank, 2, group)
        self.source, self.target = pair
        self._values = buffers.one[:size]

    def factor(self) -> float:
        """Each number travels once."""
        return 1.0

    def prepare(self, turn: int) -> None:
        """Fill the sender's buffer."""
        if self.place == self.source:
            self.buffers.pattern.fill(self._values, turn, self.source)
        else:
            poison(self._values)

    def run(self, turn: int) -> None:
        """Send, or receive."""
        if self.place == self.source:
            dist.send(self._values, dst=self.target, group=self.group)
        else:
            dist.recv(self._values, src=self.source, group=self.group)

    def check(self, turn: int, differences: Differences) -> None:
        """What came is the sender's."""
        if self.place == self.target:
            differences.add(self._values, self.base(turn), plus=self.source)


def _named(*names: str) -> Any:
    """The first function of these that this torch has: 2.13 gave some of them new names."""
    return next(getattr(dist, name) for name in names if hasattr(dist, name))
