"""Watch the ranks' heartbeats, and name who keeps the others waiting."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mirror.verify import processes, ranks
from mirror.verify.ranks import Phase

#: Seconds between two looks at the ranks.
_PULSE = 0.05
#: What a rank's heartbeat says when what came to it was not what was sent (trainer/bench.py).
WRONG = "values wrong"
#: Seconds that stacks are waited for after they were asked for.
_DUMP = 2.0


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks that run here: their folder, how many, and how many steps they take."""

    folder: Path
    processes: int
    steps: int


@dataclass(frozen=True, slots=True)
class Limits:
    """How long no rank may move on, in seconds.

    start: until every rank has imported torch and met the others. stall: from then on; less than
    the trainer's own time-out (120), so that the watchdog names the culprit before everybody else
    gives up.
    """

    start: float = 300.0
    stall: float = 90.0


def watch(
    ended: Callable[[], int | None],
    group: Group,
    limits: Limits,
    stepped: Callable[[int], None],
) -> tuple[str, ...]:
    """Wait until the launcher has `ended`; returns who hangs, when no rank moves on for too long.

    ended: its exit code, None while it runs. `stepped` hears of the slowest rank's step.
    """
    seen: list[Phase | None] = []
    moved = time.monotonic()
    while ended() is None:
        phases = [ranks.read_phase(group.folder, rank) for rank in range(group.processes)]
        now = time.monotonic()
        if phases != seen:
            seen, moved = phases, now
            stepped(min(_step(phase, group.steps) for phase in phases))
        started = all(phase and phase.order > (ranks.PHASES.index("init"), 0) for phase in phases)
        limit = limits.stall if started else limits.start
        if now - moved > limit:
            return tuple(_blame(group, phases, limit))
        time.sleep(_PULSE)
    return ()


def _step(phase: Phase | None, steps: int) -> int:
    """How many steps a rank in this phase has done."""
    if phase is None or phase.order < (ranks.PHASES.index("step"), 0):
        return 0
    return phase.step if phase.step is not None else steps


def _blame(group: Group, phases: list[Phase | None], limit: float) -> list[str]:
    """Who keeps the others waiting: a stopped rank, else the one that came least far."""
    ours = processes.descendants()
    alive = {n: phase.pid for n, phase in enumerate(phases) if phase and phase.pid in ours}
    stopped = {n: pid for n, pid in alive.items() if processes.is_stopped(pid)}
    orders = [phase.order if phase else (-1, 0) for phase in phases]
    behind = [n for n, order in enumerate(orders) if order == min(orders)]
    problems = [f"no rank has moved on for {limit:.0f} s"]
    if stopped:
        problems += [f"rank {n} hangs: its process {p} is stopped" for n, p in stopped.items()]
    elif wrong := [n for n, phase in enumerate(phases) if phase and WRONG in phase.detail]:
        # Whoever did not take part goes on while the others wait, and has nothing that is right.
        problems += [f"rank {n}, {phases[n]}" for n in wrong]
    elif len(behind) < group.processes:
        problems += [f"rank {n} hangs in phase {phases[n] or 'not started'}" for n in behind]
    else:
        problems.append(f"all ranks stand in phase {phases[0] or 'not started'}")
    for pid in alive.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)  # the trainer answers with its stacks
    time.sleep(_DUMP)
    for rank, phase in enumerate(phases):
        where = _innermost(ranks.log_tail(group.folder, rank, 200)) or "it did not answer"
        problems.append(f"rank {rank}, phase {phase or 'not started'}: {where}")
    return problems


def _innermost(log: list[str]) -> str:
    """The innermost frame of the main thread, from faulthandler's last dump in a log."""
    heads = [n for n, line in enumerate(log) if line.startswith("Current thread")]
    return log[heads[-1] + 1].strip() if heads and heads[-1] + 1 < len(log) else ""
