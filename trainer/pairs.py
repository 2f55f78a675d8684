"""Sends between every two ranks, both ways, before all ranks communicate at once.

Every pair has a process group of its own, so nobody else is waited for: with NCCL also a
communicator of two, in which some machines hang that get on with four. It is destroyed when the
pair is done: what it holds of GPU memory and of /dev/shm is not the training's.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from trainer.bench import Run, repeats
from trainer.exchanges import WIDTH, AllReduce, SendReceive
from trainer.group import PATIENCE

#: Two ranks, the lower one first.
Pair = tuple[int, int]


def rounds(world: int) -> list[list[Pair]]:
    """Rounds of disjoint pairs, together every pair once.

    The circle method: one rank stands still and the others move round it.
    """
    count = world + world % 2
    found = []
    for turn in range(count - 1):
        circle = [0, *((turn + n) % (count - 1) + 1 for n in range(count - 1))]
        pairs = (sorted((circle[n], circle[-1 - n])) for n in range(count // 2))
        found.append(sorted((low, high) for low, high in pairs if high < world))
    return found


class Pairs:
    """What one rank does of it. seconds: for repeating what is measured, all pairs together."""

    def __init__(self, run: Run, seconds: float) -> None:
        self._run, self._bench, self._agreement = run, run.bench, run.agreement
        # Where a round has one pair only, it measures every size and not the largest alone.
        measured = len(run.sizes) if run.world < 4 else 1
        self._share = seconds / (run.world * (run.world - 1) * measured)

    def check(self) -> int:
        """Every round: all its pairs at the same time, then each alone with the largest size.

        Returns how many parts of the bench's run this took.
        """
        plan = rounds(self._run.world)
        for number, pairs in enumerate(plan):
            self._bench.part(number)
            self._bench.at("groups of two")
            groups = [dist.new_group(list(pair), timeout=PATIENCE) for pair in pairs]
            own = next((n for n, pair in enumerate(pairs) if self._run.rank in pair), None)
            if own is not None:
                self._together(pairs[own], groups[own], quiet=len(pairs) == 1)
            self._bench.at("wait for the other pairs", 100)
            self._agreement.meet(f"round {number}")
            for turn, pair in enumerate(pairs):
                self._in_turn(pair, groups[turn], 101 + 4 * turn)
            if own is not None:
                dist.destroy_process_group(groups[own])
        return len(plan)

    def _together(self, pair: Pair, group: Any, quiet: bool) -> None:
        """All sizes but the largest; quiet: nobody else communicates."""
        run = self._run
        for size in run.sizes[:-1]:
            self._both_ways(pair, group, size, quiet)
            if run.world > 2:
                place = pair.index(run.rank)
                exchange = AllReduce(run.buffers, size // WIDTH, place, 2, group)
                self._bench.measure(exchange, size, lambda first: 0, pair=pair, alone=False)

    def _in_turn(self, pair: Pair, group: Any, step: int) -> None:
        """The largest size, while the other pairs wait."""
        low, high = pair
        if self._run.rank in pair:
            self._bench.at(f"measure {low} and {high} alone", step)
            self._both_ways(pair, group, self._run.sizes[-1], quiet=True)
        else:
            self._bench.at(f"wait while {low} and {high} are measured", step + 3)
        if self._run.rank == low:
            self._agreement.say(f"{low}-{high}")
        self._agreement.hear(f"{low}-{high}")

    def _both_ways(self, pair: Pair, group: Any, size: int, quiet: bool) -> None:
        low, high = pair
        for way in ((low, high), (high, low)):
            name = f"{way[0]}->{way[1]} {size}"

            def more(first: float, name: str = name) -> int:
                if not quiet:
                    return 0
                if self._run.rank == low:
                    self._agreement.say(name, str(repeats(first, self._share)))
                return int(self._agreement.hear(name))

            exchange = SendReceive(self._run.buffers, size // WIDTH, self._run.rank, way, group)
            self._bench.measure(exchange, size, more, pair=way, alone=quiet)
