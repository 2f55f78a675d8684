"""What mirror's launch adds to the training that it watches over."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from mirror.verify import accelerate, child
from mirror.verify.launch import Job, launch
from tests.bench.rows import Added, Group, Row, run

#: Two CPU processes; on GPUs, whose number is given, one process each.
_GPUS = int(os.environ.get("MIRROR_BENCH_GPUS", "0"))
_PROCESSES = _GPUS or 2
_TRAIN = ("train", "--steps", "40", "--batch", "24", "--precision", "no", "--largest", "4000000")


class Launching(Group):
    """The trainer as `mirror verify` starts it, against a bare `accelerate launch` of the same.

    Two CPU processes, or as many GPUs as MIRROR_BENCH_GPUS says. Both train alike; mirror's side
    has the heartbeats read, every rank's result gathered, and no process left behind.
    """

    name = "launching"
    aims = (Added("mirror's launch", "accelerate launch", 3.0),)

    def __init__(self, folder: Path, scratch: Path, size: int) -> None:
        self.scratch = scratch
        run(sys.executable, "-c", "import torch, accelerate", folder=folder)

    def rows(self) -> list[Row]:
        """Each starts the ranks anew."""
        return [
            Row("mirror's launch", self.launch),
            Row("accelerate launch", self.bare),
        ]

    def launch(self) -> None:
        found = launch(self.job())
        if found.problems:
            command = ["mirror's launch"]
            raise subprocess.CalledProcessError(1, command, stderr="\n".join(found.problems))

    def job(self) -> Job:
        return Job(
            python=Path(sys.executable),
            folder=self.scratch / "run",
            processes=_PROCESSES,
            gpu=bool(_GPUS),
            arguments=_TRAIN,
            environ=dict(os.environ),
            steps=40,
        )

    def bare(self) -> None:
        out = self.scratch / "run"
        out.mkdir()
        kind = ["--multi_gpu"] if _PROCESSES > 1 else []  # also of CPU processes that are a group
        run(
            *(sys.executable, "-m", "accelerate.commands.launch", *kind, "--num_machines", "1"),
            *("--num_processes", str(_PROCESSES), "--mixed_precision", "no"),
            *("--dynamo_backend", "no", "--main_process_port", str(accelerate.free_port())),
            *(child.trainer(), "train", "--out", out, *_TRAIN[1:]),
            folder=self.scratch,
            variables={
                # As many threads as mirror's ranks have: this is about what surrounds the training.
                "OMP_NUM_THREADS": accelerate.environ({}, _PROCESSES, gpu=True)["OMP_NUM_THREADS"],
                **({} if _GPUS else accelerate.ON_CPU),
            },
        )
