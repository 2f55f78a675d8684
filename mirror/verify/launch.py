"""Start the trainer on one process or many, watch over it, and leave no process of it behind.

More than one process is started through accelerate, the way its users do, but with everything
stated: a user's own accelerate configuration, a busy port, a foreign interpreter or a scheduler's
variables have no say. What the ranks report decides, never the launcher's exit code: accelerate has
ways to run one process, or N processes that know nothing of each other, and to exit with 0.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mirror.core.artifact import Json
from mirror.verify import accelerate, child, processes, ranks, watch
from mirror.verify.nodes import Nodes
from mirror.verify.nodes.run import Run
from mirror.verify.watch import Limits

#: torch's launcher and ranks ask for the name of 127.0.0.1, as ::ffff:127.0.0.1, which hardly any
#: /etc/hosts has: so a name server is asked, and one that does not answer costs 10 s each time.
_RESOLVER = {"RES_OPTIONS": "timeout:1 attempts:1"}

__all__ = ["Job", "Limits", "Outcome", "command", "environ", "launch"]


@dataclass(frozen=True, slots=True)
class Job:
    """One run of the trainer.

    python: the environment's interpreter. folder: fresh, for all that the run leaves.
    processes: how many ranks on this machine. gpu: whether on GPUs, one each.
    arguments: the trainer's command and its options; it is told the folder besides.
    environ: the children's variables. steps: how many the progress counts.
    precision: "no" (float32), "bf16" or "fp16". accelerate: further tables of its configuration,
    such as {"distributed_type": "FSDP", "fsdp_config": {...}}.
    nodes: other machines that run the same job at the same time, with as many ranks each.
    """

    python: Path
    folder: Path
    processes: int
    gpu: bool
    arguments: tuple[str, ...]
    environ: Mapping[str, str] = field(hash=False)
    steps: int = 0
    precision: str = "no"
    accelerate: Mapping[str, Json] = field(default_factory=dict, hash=False)
    nodes: Nodes | None = field(default=None, hash=False)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a run: every rank's own result, as its JSON is, or the problems."""

    results: tuple[Mapping[str, Json], ...]
    problems: tuple[str, ...]
    seconds: float


def launch(
    job: Job, *, limits: Limits | None = None, stepped: Callable[[int], None] = lambda step: None
) -> Outcome:
    """Run the job to its end; `stepped` hears of the slowest rank's step.

    With other nodes the outcome is that of all, on each of them.
    Returns problems rather than raising; KeyboardInterrupt ends the whole process tree.
    """
    job.folder.mkdir(parents=True)
    begin = time.monotonic()
    run: Run | None = None
    if job.nodes:
        run, apart = job.nodes.begin(job.folder.name, job.processes)
        if run is None:
            return Outcome((), tuple(apart), time.monotonic() - begin)
    before = processes.descendants()
    with open(job.folder / "launch.log", "wb") as log:
        launcher = subprocess.Popen(
            command(job, run),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environ(job, run),
            cwd=job.folder,
            start_new_session=True,
        )
        try:
            halt = watch.watch(
                launcher.poll,
                _group(job, run),
                limits or Limits(),
                stepped,
            )
        finally:
            processes.end(before, launcher)
            with contextlib.suppress(subprocess.TimeoutExpired):
                launcher.wait(processes.GRACE)
    found: list[Mapping[str, Json]] = []
    problems = list(halt.lines) if halt else []
    if not halt:
        found, problems = _collect(job, run, launcher.returncode)
    if run:
        found, problems = run.end(found, [] if halt else problems, halt)
    return Outcome(() if problems else tuple(found), tuple(problems), time.monotonic() - begin)


def command(job: Job, run: Run | None = None) -> list[str]:
    """The command line: the trainer itself for one process, else through accelerate."""
    first, *options = job.arguments
    trainer = [child.trainer(), first, "--out", str(job.folder), *options]
    if job.processes == 1 and run is None:
        return [str(job.python), *trainer]
    launcher = accelerate.line(
        job.python,
        job.processes,
        precision=job.precision,
        folder=job.folder,
        settings=job.accelerate,
        rendezvous=run.rendezvous if run else None,
    )
    return [*launcher, *trainer]


def environ(job: Job, run: Run | None = None) -> dict[str, str]:
    """The launcher's variables."""
    table = run.environ(job.environ) if run else {**_RESOLVER, **job.environ}
    return accelerate.environ(table, job.processes, gpu=job.gpu)


def _group(job: Job, run: Run | None) -> watch.Group:
    first = run.first if run else 0
    return watch.Group(job.folder, job.processes, job.steps, first, run)


def _collect(job: Job, run: Run | None, code: int) -> tuple[list[Mapping[str, Json]], list[str]]:
    """Read what the ranks left; whoever left nothing is named, with the end of its log."""
    found: list[Mapping[str, Json]] = []
    problems: list[str] = []
    log = job.folder / "launch.log"
    codes = accelerate.exit_codes(log) if job.processes > 1 or run else {0: code}
    group = _group(job, run)
    for local, rank in enumerate(group.ranks):
        try:
            result = ranks.read_result(job.folder, rank)
        except ValueError as error:
            problems.append(f"{group.label(rank)}'s result is malformed: {error}")
            continue
        if result:
            found.append(result)
            continue
        phase = ranks.read_phase(job.folder, rank)
        how = f"; {child.ending(codes[local])}" if local in codes else ""
        tail = ranks.log_tail(job.folder, local) or ["(its log is empty)"]
        said = "\n".join(f"  {line}" for line in tail)
        name = group.label(rank)
        problems.append(f"{name} left no result, last phase {phase or 'none'}{how}\n{said}")
    if not problems and code != 0:
        problems.append(f"the launcher failed: {child.last_words(log)}")
    if not problems:
        problems += _strays(group, run.world if run else job.processes, found)
    # Those whose own code is known failed first; the others were ended because of them.
    problems.sort(key=lambda problem: "; it " not in problem.partition("\n")[0])
    return found, problems


def _strays(group: watch.Group, world: int, found: list[Mapping[str, Json]]) -> list[str]:
    """Processes that did not form one group of the size asked for; `found` has one a process."""
    return [
        f"process {rank} ran in a world of {result['world_size']} as its rank {result['rank']};"
        f" it was started as rank {rank} of {world}"
        for rank, result in zip(group.ranks, found, strict=True)
        if (result["rank"], result["world_size"]) != (rank, world)
    ]
