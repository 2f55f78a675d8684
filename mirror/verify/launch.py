"""Start one training run, watch over it, and leave no process of it behind.

More than one process is started through accelerate, the way its users do, but with everything
stated: a user's own accelerate configuration, a busy port, a foreign interpreter or a scheduler's
variables have no say. What the ranks report decides, never the launcher's exit code: accelerate has
ways to run one process, or N processes that know nothing of each other, and to exit with 0.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mirror.verify import child, processes, ranks
from mirror.verify.ranks import Phase, Rank

#: Seconds between two looks at the ranks.
_PULSE = 0.05
#: Seconds that stacks are waited for after they were asked for.
_DUMP = 2.0


@dataclass(frozen=True, slots=True)
class Job:
    """One training run.

    python: the environment's interpreter. folder: fresh, for all that the run leaves.
    processes: how many ranks. gpu: whether on GPUs, one each.
    model: a bundled model's folder, or None for the trainer's own.
    environ: the children's variables.
    """

    python: Path
    folder: Path
    processes: int
    gpu: bool
    steps: int
    batch: int
    precision: str
    model: Path | None
    environ: Mapping[str, str]


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
class Outcome:
    """What came of a run: every rank's report, or the problems."""

    ranks: tuple[Rank, ...]
    problems: tuple[str, ...]
    seconds: float


def launch(
    job: Job, *, limits: Limits | None = None, stepped: Callable[[int], None] = lambda step: None
) -> Outcome:
    """Run the job to its end; `stepped` hears of the slowest rank's step.

    Returns problems rather than raising; KeyboardInterrupt ends the whole process tree.
    """
    job.folder.mkdir(parents=True)
    begin = time.monotonic()
    before = processes.descendants()
    with open(job.folder / "launch.log", "wb") as log:
        launcher = subprocess.Popen(
            command(job),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environ(job),
            cwd=job.folder,
            start_new_session=True,
        )
        try:
            hang = _watch(job, launcher, limits or Limits(), stepped)
        finally:
            processes.end(before, launcher)
            with contextlib.suppress(subprocess.TimeoutExpired):
                launcher.wait(processes.GRACE)
    seconds = time.monotonic() - begin
    if hang:
        return Outcome((), hang, seconds)
    return _collect(job, launcher.returncode, seconds)


def command(job: Job) -> list[str]:
    """The command line: the trainer itself for one process, else through accelerate."""
    training = [child.trainer(), "train", "--out", str(job.folder)]
    training += ["--steps", str(job.steps), "--batch", str(job.batch)]
    training += ["--precision", job.precision]
    training += ["--model", str(job.model)] if job.model else []
    if job.processes == 1:
        return [str(job.python), *training]
    config = job.folder / "accelerate.json"
    config.write_text(
        json.dumps(
            {
                "compute_environment": "LOCAL_MACHINE",
                "distributed_type": "MULTI_GPU",
                "num_machines": 1,
                "num_processes": job.processes,
                "mixed_precision": job.precision,
                "use_cpu": False,
            }
        ),
        encoding="utf-8",
    )
    return [
        *(str(job.python), "-m", "accelerate.commands.launch"),
        *("--config_file", str(config), "--multi_gpu", "--num_machines", "1"),
        *("--num_processes", str(job.processes), "--mixed_precision", job.precision),
        *("--dynamo_backend", "no", "--main_process_port", str(_free_port())),
        *("--num_cpu_threads_per_process", str(_threads(job.processes))),
        *("--log_dir", str(job.folder / "log"), "--tee", "3"),
        *training,
    ]


def environ(job: Job) -> dict[str, str]:
    """The launcher's variables.

    `--multi_gpu` with ACCELERATE_USE_CPU is how accelerate runs several CPU processes that know of
    each other: `--cpu` runs one.
    """
    table = {**job.environ, "OMP_NUM_THREADS": str(_threads(job.processes))}
    if job.gpu:
        visible = job.environ.get("CUDA_VISIBLE_DEVICES")
        devices = visible.split(",") if visible else [str(n) for n in range(job.processes)]
        table["CUDA_VISIBLE_DEVICES"] = ",".join(devices[: job.processes])
    else:
        table["ACCELERATE_USE_CPU"] = "true"
        table["CUDA_VISIBLE_DEVICES"] = ""
    return table


def _threads(count: int) -> int:
    """Threads of arithmetic a process: half the cores between them, since others live here too."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(8, (cores or 1) // 2 // count))


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _watch(
    job: Job,
    launcher: subprocess.Popen[bytes],
    limits: Limits,
    stepped: Callable[[int], None],
) -> tuple[str, ...]:
    """Wait until the launcher ends; returns who hangs, when no rank moves on for too long."""
    seen: list[Phase | None] = []
    moved = time.monotonic()
    while launcher.poll() is None:
        phases = [ranks.read_phase(job.folder, rank) for rank in range(job.processes)]
        now = time.monotonic()
        if phases != seen:
            seen, moved = phases, now
            stepped(min(_step(phase, job.steps) for phase in phases))
        started = all(phase and phase.order > (ranks.PHASES.index("init"), 0) for phase in phases)
        limit = limits.stall if started else limits.start
        if now - moved > limit:
            return tuple(_blame(job, phases, limit))
        time.sleep(_PULSE)
    return ()


def _step(phase: Phase | None, steps: int) -> int:
    """How many steps a rank in this phase has done."""
    if phase is None or phase.order < (ranks.PHASES.index("step"), 0):
        return 0
    return phase.step if phase.step is not None else steps


def _blame(job: Job, phases: list[Phase | None], limit: float) -> list[str]:
    """Who keeps the others waiting: a stopped rank, else the one that came least far."""
    ours = processes.descendants()
    alive = {n: phase.pid for n, phase in enumerate(phases) if phase and phase.pid in ours}
    stopped = {n: pid for n, pid in alive.items() if processes.is_stopped(pid)}
    orders = [phase.order if phase else (-1, 0) for phase in phases]
    behind = [n for n, order in enumerate(orders) if order == min(orders)]
    problems = [f"no rank has moved on for {limit:.0f} s"]
    if stopped:
        problems += [f"rank {n} hangs: its process {p} is stopped" for n, p in stopped.items()]
    elif len(behind) < job.processes:
        problems += [f"rank {n} hangs in phase {phases[n] or 'not started'}" for n in behind]
    else:
        problems.append(f"all ranks stand in phase {phases[0] or 'not started'}")
    for pid in alive.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR1)  # the trainer answers with its stacks
    time.sleep(_DUMP)
    for rank, phase in enumerate(phases):
        where = _innermost(ranks.log_tail(job.folder, rank, 200)) or "it did not answer"
        problems.append(f"rank {rank}, phase {phase or 'not started'}: {where}")
    return problems


def _innermost(log: list[str]) -> str:
    """The innermost frame of the main thread, from faulthandler's last dump in a log."""
    heads = [n for n, line in enumerate(log) if line.startswith("Current thread")]
    return log[heads[-1] + 1].strip() if heads and heads[-1] + 1 < len(log) else ""


def _collect(job: Job, code: int, seconds: float) -> Outcome:
    """Read what the ranks left; whoever left nothing is named, with the end of its log."""
    found: list[Rank] = []
    problems: list[str] = []
    codes = _rank_codes(job.folder / "launch.log") if job.processes > 1 else {0: code}
    for rank in range(job.processes):
        try:
            result = ranks.read_result(job.folder, rank)
        except ValueError as error:
            problems.append(f"rank {rank}'s result is malformed: {error}")
            continue
        if result:
            found.append(result)
            continue
        phase = ranks.read_phase(job.folder, rank)
        how = f"; {child.ending(codes[rank])}" if rank in codes else ""
        tail = ranks.log_tail(job.folder, rank) or ["(its log is empty)"]
        said = "\n".join(f"  {line}" for line in tail)
        problems.append(f"rank {rank} left no result, last phase {phase or 'none'}{how}\n{said}")
    if not problems and code != 0:
        problems.append(f"the launcher failed: {child.last_words(job.folder / 'launch.log')}")
    if not problems:
        problems += _strays(job, found)
    # Those whose own code is known failed first; the others were ended because of them.
    problems.sort(key=lambda problem: "; it " not in problem.partition("\n")[0])
    return Outcome(tuple(found), tuple(problems), seconds)


def _strays(job: Job, found: list[Rank]) -> list[str]:
    """Processes that did not form one group of the size asked for; `found` has one a process."""
    return [
        f"process {number} ran in a world of {rank.world_size} as its rank {rank.rank};"
        f" it was started as rank {number} of {job.processes}"
        for number, rank in enumerate(found)
        if (rank.rank, rank.world_size) != (number, job.processes)
    ]


def _rank_codes(log: Path) -> dict[int, int]:
    """The exit codes that torch's launcher reports for the ranks which failed by themselves."""
    text = log.read_text(encoding="utf-8", errors="replace")
    found = re.findall(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)", text)
    return {int(rank): int(code) for code, rank in found}
