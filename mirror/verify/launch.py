"""Start the trainer on one process or many, watch over it, and leave no process of it behind.

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
import socket
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from mirror.core.artifact import Json
from mirror.verify import child, processes, ranks, watch
from mirror.verify.watch import Limits

__all__ = ["Job", "Limits", "Outcome", "command", "environ", "launch"]


@dataclass(frozen=True, slots=True)
class Job:
    """One run of the trainer.

    python: the environment's interpreter. folder: fresh, for all that the run leaves.
    processes: how many ranks. gpu: whether on GPUs, one each.
    arguments: the trainer's command and its options; it is told the folder besides.
    environ: the children's variables. steps: how many the progress counts.
    precision: "no" (float32), "bf16" or "fp16".
    """

    python: Path
    folder: Path
    processes: int
    gpu: bool
    arguments: tuple[str, ...]
    environ: Mapping[str, str] = field(hash=False)
    steps: int = 0
    precision: str = "no"


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
            hang = watch.watch(
                launcher.poll,
                watch.Group(job.folder, job.processes, job.steps),
                limits or Limits(),
                stepped,
            )
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
    first, *options = job.arguments
    trainer = [child.trainer(), first, "--out", str(job.folder), *options]
    if job.processes == 1:
        return [str(job.python), *trainer]
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
        *trainer,
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


def _collect(job: Job, code: int, seconds: float) -> Outcome:
    """Read what the ranks left; whoever left nothing is named, with the end of its log."""
    found: list[Mapping[str, Json]] = []
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


def _strays(job: Job, found: list[Mapping[str, Json]]) -> list[str]:
    """Processes that did not form one group of the size asked for; `found` has one a process."""
    return [
        f"process {number} ran in a world of {result['world_size']} as its rank {result['rank']};"
        f" it was started as rank {number} of {job.processes}"
        for number, result in enumerate(found)
        if (result["rank"], result["world_size"]) != (number, job.processes)
    ]


def _rank_codes(log: Path) -> dict[int, int]:
    """The exit codes that torch's launcher reports for the ranks which failed by themselves."""
    text = log.read_text(encoding="utf-8", errors="replace")
    found = re.findall(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+)", text)
    return {int(rank): int(code) for code, rank in found}
