"""Stages `single` and `multi`: one process trains, then many, and what they report is judged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mirror.core.text import human_size, human_time
from mirror.verify import child
from mirror.verify.launch import Job, Limits, launch
from mirror.verify.ranks import Rank
from mirror.verify.report import Check, Training
from mirror.verify.subject import Subject

#: Samples a step: at least this many, and a multiple of the number of processes.
_BATCH = 24
#: How many CPU processes stand in for GPUs that are not there.
CPU_PROCESSES = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """How training will be tried: `processes` in the stage `multi`, one GPU each or on the CPU."""

    processes: int
    gpu: bool
    precision: str

    @property
    def batch(self) -> int:
        """Samples a step: the same for one process and for many, and evenly split."""
        return self.processes * max(1, -(-_BATCH // self.processes))


def plan(subject: Subject, gpus: int) -> Plan:
    """On all usable GPUs, or as many as were asked for; on the CPU without any."""
    if not gpus:
        # accelerate has no fp16 on the CPU; bf16 it has.
        precision = "no" if subject.precision == "fp16" else subject.precision
        return Plan(CPU_PROCESSES, gpu=False, precision=precision)
    return Plan(subject.gpus or gpus, gpu=True, precision=subject.precision)


def single(
    subject: Subject, python: Path, plan: Plan, limits: Limits | None = None
) -> tuple[list[Check], Training | None]:
    """One process on one GPU, or on the CPU."""
    training, problems = _run(subject, python, plan, 1, limits)
    if training is None:
        return _failed(problems), None
    checks = judge(training, 1, plan, subject.steps)
    if plan.precision != subject.precision:
        asked = subject.precision
        checks.append(Check("precision", "warn", f"{asked} needs a GPU: float32 was used"))
    return checks, training


def multi(
    subject: Subject, python: Path, plan: Plan, single: Training, limits: Limits | None = None
) -> tuple[list[Check], Training | None]:
    """Many processes through accelerate, held against the single one."""
    training, problems = _run(subject, python, plan, plan.processes, limits)
    if training is None:
        return _failed(problems), None
    return judge(training, plan.processes, plan, subject.steps, against=single), training


def judge(
    training: Training, world: int, plan: Plan, steps: int, *, against: Training | None = None
) -> list[Check]:
    """Every check on a run of `world` processes; a run of many is held `against` that of one."""
    checks = list(_own(training, world, plan, steps))
    if against:
        checks += [*_together(training, plan), _equals(training, against)]
    return checks


def _run(
    subject: Subject, python: Path, plan: Plan, processes: int, limits: Limits | None
) -> tuple[Training | None, Sequence[str]]:
    name = "single" if processes == 1 else "multi"
    job = Job(
        python=python,
        folder=subject.work / name,
        processes=processes,
        gpu=plan.gpu,
        arguments=(
            *("train", "--steps", str(subject.steps), "--batch", str(plan.batch)),
            *("--precision", plan.precision),
            *(("--model", str(subject.model)) if subject.model else ()),
        ),
        steps=subject.steps,
        precision=plan.precision,
        environ=child.variables(subject.generation),
    )
    label = "one process" if processes == 1 else f"{processes} processes"
    with subject.progress.bar(f"training, {label}", subject.steps, "steps") as advance:
        done = 0

        def stepped(step: int) -> None:
            nonlocal done
            advance(step - done)
            done = step

        outcome = launch(job, limits=limits, stepped=stepped)
    if outcome.problems:
        return None, outcome.problems
    try:
        found = tuple(Rank.from_json(result) for result in outcome.results)
    except ValueError as error:
        return None, [f"a rank's result is malformed: {error}"]
    return Training(found, outcome.seconds), []


def _failed(problems: Sequence[str]) -> list[Check]:
    advice = "The ranks' whole logs are in the report's folder."
    return [Check("run", "fail", "\n".join(problems), advice)]


def _own(training: Training, world: int, plan: Plan, steps: int) -> Iterator[Check]:
    """What one run must show, alone or in a group."""
    first = training.ranks[0]
    seen = {rank.rank: rank.world_size for rank in training.ranks}
    yield _check(
        "world size",
        seen == dict.fromkeys(range(world), world),
        f"ranks {_all(seen)} report a world of {_all(seen.values())}; {world} wanted",
        "The processes did not form the group that was asked for: what they report proves nothing.",
    )
    devices = [rank.device for rank in training.ranks]
    uuids = [rank.gpu_uuid for rank in training.ranks if rank.gpu_uuid]
    right = all(rank.on_gpu == plan.gpu for rank in training.ranks)
    alone = not plan.gpu or (len(set(devices)) == world and len(set(uuids)) == len(uuids))
    yield _check(
        "devices",
        right and alone,
        ", ".join(f"{r.device} {r.gpu} {r.gpu_uuid}".strip() for r in training.ranks),
        "Each rank must have a GPU of its own." if plan.gpu else "",
    )
    yield Check("model", "pass", _model(training))
    share, allowed = first.loss_share, first.loss_share_allowed
    yield _check(
        "loss",
        len(training.losses) == steps and share <= allowed,  # false for NaN, too
        f"{training.losses[0]:.4f} -> {training.losses[-1]:.4f} nats in {len(training.losses)}"
        f" steps; the last are {share:.2f} of the first, at most {allowed:.2f} is right",
        "The model did not learn a task that it must learn.",
    )
    peak = max(rank.peak_memory for rank in training.ranks)
    yield Check(
        "speed",
        "pass",
        f"{first.tokens_per_second:,.0f} tokens/s, at most {human_size(peak)} a rank,"
        f" {human_time(training.seconds)} with the start",
    )


def _model(training: Training) -> str:
    model = training.ranks[0].model
    text = f"{model['name']}, {model['parameters']:,} parameters"
    return f"{text} ({model['reason']})" if model["reason"] else text


def _together(training: Training, plan: Plan) -> Iterator[Check]:
    """What the ranks of a group must agree on."""
    wanted = "nccl" if plan.gpu else "gloo"
    backends = {rank.backend for rank in training.ranks}
    yield _check("backend", backends == {wanted}, f"{_all(backends)}, where {wanted} is wanted")
    results = [(rank.rank, found) for rank in training.ranks for found in rank.collectives]
    wrong = [f"rank {n}: {f['name']} of {f['bytes']} B" for n, f in results if not f["right"]]
    counts = {len(rank.collectives) for rank in training.ranks}
    yield _check(
        "collectives",
        not wrong and 0 not in counts and len(counts) == 1,
        "wrong values: " + "; ".join(wrong)
        if wrong
        else f"{len(results)} results of all_reduce, broadcast and all_gather, every value checked",
        "Data is damaged on its way between the processes.",
    )
    sums = {checksum for rank in training.ranks for checksum in rank.checksums}
    reported = {len(rank.checksums) for rank in training.ranks}
    yield _check(
        "parameters",
        len(sums) == 1 and reported == {len(training.ranks)},
        f"sha256 {_all(s[:16] for s in sums)} on {len(training.ranks)} ranks",
        "The ranks' models have come apart: gradients were not averaged rightly.",
    )


def _equals(multi: Training, single: Training) -> Check:
    """Whether many processes computed what one did, step by step."""
    difference, tolerance = multi.largest_difference(single), single.tolerance
    return _check(
        "equals single",
        difference <= tolerance,
        f"losses differ by at most {difference:.1e} nats; rounding may make {tolerance:.0e}",
        "Many processes do not compute what one does: gradients or batches are wrong.",
    )


def _check(name: str, right: bool, evidence: str, advice: str = "") -> Check:
    return Check(name, "pass", evidence) if right else Check(name, "fail", evidence, advice)


def _all(values: Iterable[object]) -> str:
    return ", ".join(sorted({str(value) for value in values}))
