"""One training run: what it is asked for, how it is started, and what its ranks reported."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mirror.core.artifact import Json
from mirror.verify import child, ranks
from mirror.verify.launch import Job, Limits, Outcome, launch
from mirror.verify.nodes import Nodes
from mirror.verify.ranks import Rank
from mirror.verify.report import Training
from mirror.verify.subject import Subject

#: Samples a step: at least this many, and a multiple of processes and passes.
_BATCH = 24
#: Passes a step of many processes: gradients are gathered over as many batches of the loader.
_ACCUMULATION = 2
#: Loader processes a rank, in a run of many.
_WORKERS = 2
#: How many CPU processes stand in for GPUs that are not there.
CPU_PROCESSES = 2
#: Parameters of the largest bundled model that is trained. On a GPU, AdamW in float32 and DDP's
#: buckets take 20 bytes a parameter (7 GB), a checkpoint 12; on the CPU it is a matter of time.
_LARGEST_ON_GPU = 350_000_000
_LARGEST_ON_CPU = 4_000_000
#: Bytes a parameter, with as much again left for activations.
_BYTES = 40


@dataclass(frozen=True, slots=True)
class Plan:
    """How training will be tried.

    processes: of the stage `multi` on this machine, one GPU each or on the CPU.
    largest: parameters of the largest bundled model that is trained.
    nodes: the machines that train together, as many processes on each; None for this one.
    """

    processes: int
    gpu: bool
    precision: str
    largest: int = _LARGEST_ON_CPU
    nodes: Nodes | None = field(default=None, hash=False)

    @property
    def world(self) -> int:
        """How many processes train together."""
        return self.processes * (self.nodes.count if self.nodes else 1)

    @property
    def accumulation(self) -> int:
        """Passes a step of many processes."""
        return _ACCUMULATION

    @property
    def workers(self) -> int:
        """Loader processes a rank, in a run of many."""
        return _WORKERS

    @property
    def batch(self) -> int:
        """Samples a step: the same for one process and for many, and evenly split."""
        parts = self.world * self.accumulation
        return parts * max(1, -(-_BATCH // parts))


def plan(
    subject: Subject, gpus: int, *, memory: int | None = None, nodes: Nodes | None = None
) -> Plan:
    """On all usable GPUs, or as many as were asked for; on the CPU without any.

    memory: bytes of the smallest GPU, where known: what is trained must fit in it.
    """
    if not gpus:
        # accelerate has no fp16 on the CPU; bf16 it has.
        precision = "no" if subject.precision == "fp16" else subject.precision
        return Plan(CPU_PROCESSES, gpu=False, precision=precision, nodes=nodes)
    largest = _LARGEST_ON_GPU if memory is None else min(_LARGEST_ON_GPU, memory // _BYTES)
    processes = subject.gpus or gpus
    return Plan(processes, gpu=True, precision=subject.precision, largest=largest, nodes=nodes)


def job(
    subject: Subject,
    python: Path,
    plan: Plan,
    name: str,
    processes: int,
    options: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
) -> Job:
    """A run with a folder of this name. options: of `trainer train`, beyond what all runs have.

    env: variables over those of the machine.
    """
    arguments = ["train", "--steps", str(subject.steps), "--batch", str(plan.batch)]
    arguments += ["--precision", plan.precision, "--largest", str(plan.largest)]
    if subject.model:
        arguments += ["--model", str(subject.model)]
        arguments += ["--trust-remote-code"] if _brings_code(subject) else []
    return Job(
        python=python,
        folder=subject.work / name,
        processes=processes,
        gpu=plan.gpu,
        arguments=(*arguments, *options),
        steps=subject.steps,
        precision=plan.precision,
        environ=child.variables(subject.generation) | dict(env or {}),
        nodes=plan.nodes if name != "single" else None,
    )


def _brings_code(subject: Subject) -> bool:
    """Whether the model's own Python code is in the bundle: only where its manifest trusts it."""
    return any(
        subject.generation.path / revision.path == subject.model
        and any(file.endswith(".py") for file in revision.files)
        for revision in subject.revisions
    )


def run(job: Job, subject: Subject, label: str, limits: Limits | None) -> Outcome:
    """Launch it, with its progress shown."""
    with subject.progress.bar(f"training, {label}", subject.steps, "steps") as advance:
        done = 0

        def stepped(step: int) -> None:
            nonlocal done
            if step > done:  # a second leg counts from the start again
                advance(step - done)
                done = step

        return launch(job, limits=limits, stepped=stepped)


def read(outcome: Outcome) -> tuple[Training | None, Sequence[str]]:
    """What the ranks reported, or why that is nothing to judge."""
    if outcome.problems:
        return None, outcome.problems
    return parse(outcome.results, outcome.seconds)


def parse(
    results: Sequence[Mapping[str, Json]], seconds: float
) -> tuple[Training | None, Sequence[str]]:
    """The ranks' reports as values, or what is wrong with them."""
    try:
        return Training(tuple(Rank.from_json(result) for result in results), seconds), ()
    except ValueError as error:
        return None, [f"a rank's result is malformed: {error}"]


def tables(outcome: Outcome, folder: Path, processes: int) -> list[Mapping[str, Json]]:
    """What the ranks wrote, also of a launch that failed after they had written it."""
    if outcome.results:
        return list(outcome.results)
    found = []
    for rank in range(processes):
        with contextlib.suppress(ValueError):  # is named among the outcome's problems
            found.append(ranks.read_result(folder, rank))
    return [table for table in found if table]
