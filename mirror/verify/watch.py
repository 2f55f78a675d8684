"""Watch the ranks' heartbeats, and name who keeps the others waiting."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mirror.verify import processes, ranks
from mirror.verify.ranks import Phase

#: Seconds between two looks at the ranks.
_PULSE = 0.05
#: What a rank's heartbeat says when what came to it was not what was sent (trainer/bench.py).
WRONG = "values wrong"
#: Seconds that stacks are waited for after they were asked for.
_DUMP = 2.0


#: What `Elsewhere.stopped` says when no rank anywhere moves on.
HANG = "hang"


class Elsewhere(Protocol):
    """The ranks of the same run on other nodes."""

    def exchange(self, own: Mapping[int, Phase | None]) -> Mapping[int, Phase | None]:
        """Tell where this node's ranks are; returns where those of the others are."""

    def stopped(self) -> str:
        """Why the run is over, as another node says; HANG for a hang, empty while it goes on."""

    def label(self, rank: int) -> str:
        """A rank and its node, in words."""


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks that run here: their folder, how many, and how many steps they take.

    first: the rank of the first; the others follow it. elsewhere: the rest of the world.
    """

    folder: Path
    processes: int
    steps: int
    first: int = 0
    elsewhere: Elsewhere | None = None

    @property
    def ranks(self) -> range:
        """Those that run here."""
        return range(self.first, self.first + self.processes)

    def label(self, rank: int) -> str:
        """A rank, in words."""
        return self.elsewhere.label(rank) if self.elsewhere else f"rank {rank}"


@dataclass(frozen=True, slots=True)
class Limits:
    """How long no rank may move on, in seconds.

    start: until every rank has imported torch and met the others. stall: from then on; less than
    the trainer's own time-out (120), so that the watchdog names the culprit before everybody else
    gives up.
    """

    start: float = 300.0
    stall: float = 90.0


@dataclass(frozen=True, slots=True)
class Halt:
    """Why ranks have to be ended before their time, a line each.

    headline: empty when another node said so. culprits: ranks that were stopped, or got wrong
    values. behind: those that came least far. stacks: where each rank stands.
    """

    headline: str
    culprits: tuple[str, ...] = ()
    behind: tuple[str, ...] = ()
    stacks: tuple[str, ...] = ()

    @property
    def lines(self) -> tuple[str, ...]:
        """For a person: who keeps the others waiting, and where."""
        return (self.headline, *(self.culprits or self.behind), *self.stacks)


def watch(
    ended: Callable[[], int | None],
    group: Group,
    limits: Limits,
    stepped: Callable[[int], None],
) -> Halt | None:
    """Wait until the launcher has `ended`; returns who hangs, when no rank moves on for too long.

    ended: its exit code, None while it runs. `stepped` hears of the slowest rank's step.
    """
    seen: dict[int, Phase | None] = {}
    moved = time.monotonic()
    while ended() is None:
        own = {rank: ranks.read_phase(group.folder, rank) for rank in group.ranks}
        phases = own
        if group.elsewhere:
            phases = {**group.elsewhere.exchange(own), **own}
            if why := group.elsewhere.stopped():
                return _blame(group, own, phases, "") if why == HANG else Halt("")
        now = time.monotonic()
        if phases != seen:
            seen, moved = phases, now
            stepped(min(_step(phase, group.steps) for phase in own.values()))
        init = (ranks.PHASES.index("init"), 0)
        started = all(phase and phase.order > init for phase in phases.values())
        limit = limits.stall if started else limits.start
        if now - moved > limit:
            return _blame(group, own, phases, f"no rank has moved on for {limit:.0f} s")
        time.sleep(_PULSE)
    return None


def _step(phase: Phase | None, steps: int) -> int:
    """How many steps a rank in this phase has done."""
    if phase is None or phase.order < (ranks.PHASES.index("step"), 0):
        return 0
    return phase.step if phase.step is not None else steps


def _blame(
    group: Group,
    own: Mapping[int, Phase | None],
    phases: Mapping[int, Phase | None],
    headline: str,
) -> Halt:
    """Who keeps the others waiting: a stopped rank, else the one that came least far.

    own: of the ranks here; phases: of all. Whether a rank is stopped, its own node alone sees.
    """
    ours = processes.descendants()
    alive = {n: phase.pid for n, phase in own.items() if phase and phase.pid in ours}
    culprits = [
        f"{group.label(n)} hangs: its process {pid} is stopped"
        for n, pid in alive.items()
        if processes.is_stopped(pid)
    ] or [
        # Whoever did not take part goes on while the others wait, and has nothing that is right.
        f"{group.label(n)}, {phase}"
        for n, phase in own.items()
        if phase and WRONG in phase.detail
    ]
    orders = {n: phase.order if phase else (-1, 0) for n, phase in phases.items()}
    behind = [n for n, order in orders.items() if order == min(orders.values())]
    waiting = [f"{group.label(n)} hangs in phase {phases[n] or 'not started'}" for n in behind]
    if len(behind) == len(phases):
        waiting = [f"all ranks stand in phase {phases[behind[0]] or 'not started'}"]
    for pid in alive.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)  # the trainer answers with its stacks
    time.sleep(_DUMP)
    stacks = []
    for rank, phase in own.items():
        log = ranks.log_tail(group.folder, rank - group.first, 200)
        where = _innermost(log) or "it did not answer"
        stacks.append(f"{group.label(rank)}, phase {phase or 'not started'}: {where}")
    return Halt(headline, tuple(culprits), tuple(waiting), tuple(stacks))


def _innermost(log: list[str]) -> str:
    """The innermost frame of the main thread, from faulthandler's last dump in a log."""
    heads = [n for n, line in enumerate(log) if line.startswith("Current thread")]
    return log[heads[-1] + 1].strip() if heads and heads[-1] + 1 < len(log) else ""
