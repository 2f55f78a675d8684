"""What verify found: values, their JSON (docs/verify.md has the schema) and a table in text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from mirror.core.artifact import Json
from mirror.core.paths import shown
from mirror.core.text import counted, human_size, human_time
from mirror.verify.bandwidth import Bandwidth
from mirror.verify.ranks import Rank

FORMAT = 1
Verdict: TypeAlias = Literal["pass", "warn", "fail", "skip"]
#: From harmless to bad: the worst of a stage's checks is the stage's.
_ORDER: Sequence[Verdict] = ("skip", "pass", "warn", "fail")


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at: what was read, and what to do about it."""

    name: str
    verdict: Verdict
    evidence: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class Stage:
    """Checks that belong together; a stage that was not run has one check that says why."""

    name: str
    checks: tuple[Check, ...]
    seconds: float = 0.0

    @property
    def verdict(self) -> Verdict:
        """The worst of its checks; "skip" when all were skipped."""
        return worst(check.verdict for check in self.checks)

    @property
    def summary(self) -> str:
        """On one line: how many checks passed, or why the stage was skipped."""
        if self.verdict == "skip":
            return shown(self.checks[0].evidence) if self.checks else "nothing to check"
        passed = sum(check.verdict == "pass" for check in self.checks)
        return f"{passed} of {counted(len(self.checks), 'check')} passed"


@dataclass(frozen=True, slots=True)
class Training:
    """One training run: every rank's own report.

    losses: of the global batch at every step, in nats.
    tolerance: largest difference that rounding may make to a step's loss.
    """

    ranks: tuple[Rank, ...]
    seconds: float

    @property
    def losses(self) -> tuple[float, ...]:
        """As rank 0 reports them."""
        return self.ranks[0].losses

    @property
    def tolerance(self) -> float:
        """As the trainer states it for this precision."""
        return self.ranks[0].tolerance

    @property
    def bandwidth(self) -> Bandwidth:
        """What the ranks' collectives measured."""
        return Bandwidth.of(row for rank in self.ranks for row in rank.collectives)

    def largest_difference(self, other: Training) -> float:
        """Between the losses of two runs, step by step; infinite when they are of two lengths."""
        if len(self.losses) != len(other.losses):
            return float("inf")
        differences = (abs(a - b) for a, b in zip(self.losses, other.losses, strict=True))
        return max((d if d == d else float("inf") for d in differences), default=float("inf"))


@dataclass(frozen=True, slots=True)
class Report:
    """All that one run of verify found.

    asked: what --gpus said; None when it was left out.
    facts: name -> text, about the bundle and the machine, for the head of the page.
    started: UTC, ISO 8601.
    """

    stages: tuple[Stage, ...]
    single: Training | None
    multi: Training | None
    asked: int | None
    facts: dict[str, str]
    started: str
    seconds: float
    folder: Path

    @property
    def verdict(self) -> Verdict:
        """The worst of all stages."""
        return worst(stage.verdict for stage in self.stages)

    @property
    def gpus(self) -> int:
        """On how many GPUs training was proved."""
        passed = {stage.name for stage in self.stages if stage.verdict in ("pass", "warn")}
        proved = [
            training
            for name, training in (("single", self.single), ("multi", self.multi))
            if training and name in passed and training.ranks[0].on_gpu
        ]
        return max((len(training.ranks) for training in proved), default=0)

    @property
    def headline(self) -> str:
        """The first line: whether it passed, and what was, or was not, proved."""
        if self.verdict == "fail":
            failed = [stage.name for stage in self.stages if stage.verdict == "fail"]
            return f"Verification failed: {', '.join(failed)}."
        best = self.multi or self.single
        if best is None:
            reasons = [s.checks[0].evidence for s in self.stages if s.name == "single"]
            return f"Training was not proved: {'; '.join(reasons)}."
        rank, count = best.ranks[0], len(best.ranks)
        if not rank.on_gpu:
            how = f"{count} CPU processes trained together ({rank.backend})"
            alone = "one CPU process trained"
            return f"No GPU was proved: {how if count > 1 else alone}."
        if count == 1:
            return f"Proved: one process trained on 1 GPU ({rank.gpu})."
        return f"Proved: {count} processes trained on {count} GPUs ({rank.gpu}, {rank.backend})."


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of them; "skip" for none."""
    return max(verdicts, key=_ORDER.index, default="skip")


def document(report: Report) -> dict[str, Json]:
    """The report as report.json holds it."""
    multi = report.multi
    return {
        "format": FORMAT,
        "verdict": report.verdict,
        "headline": report.headline,
        "gpus_asked": report.asked,
        "gpus_proved": report.gpus,
        "facts": report.facts,
        "started": report.started,
        "seconds": round(report.seconds, 3),
        "stages": [
            {
                "name": stage.name,
                "verdict": stage.verdict,
                "seconds": round(stage.seconds, 3),
                "checks": [
                    {
                        "name": check.name,
                        "verdict": check.verdict,
                        "evidence": check.evidence,
                        "advice": check.advice,
                    }
                    for check in stage.checks
                ],
            }
            for stage in report.stages
        ],
        "single": _training(report.single) if report.single else None,
        "multi": _training(multi) | _against(multi, report.single) if multi else None,
    }


def _training(training: Training) -> dict[str, Json]:
    first = training.ranks[0]
    return {
        "world_size": first.world_size,
        "backend": first.backend,
        "precision": first.precision,
        "model": first.model,
        "steps": first.steps,
        "batch": first.batch,
        "losses": [_number(loss) for loss in training.losses],
        "tolerance": training.tolerance,
        "tokens_per_second": _number(first.tokens_per_second),
        "seconds": round(training.seconds, 3),
        "ranks": [rank.to_json() for rank in training.ranks],
    }


def _against(multi: Training, single: Training | None) -> dict[str, Json]:
    if single is None:
        return {"single_losses": None, "largest_difference": None}
    return {
        "single_losses": [_number(loss) for loss in single.losses],
        "largest_difference": _number(multi.largest_difference(single)),
    }


def _number(value: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return value if abs(value) < float("inf") else None


def lines(report: Report) -> list[str]:
    """The report for a terminal: the headline, a line a stage, what was not passed, the ranks."""
    width = max(len(stage.name) for stage in report.stages)
    rows = [report.headline, ""]
    for stage in report.stages:
        took = f", {human_time(stage.seconds)}" if stage.seconds >= 0.1 else ""
        rows.append(f"  {stage.name:<{width}}  {stage.verdict:<4}  {stage.summary}{took}")
        if stage.verdict == "skip":
            continue
        for check in stage.checks:
            if check.verdict != "pass":
                rows += _explained(check, width)
    for name, training in (("single", report.single), ("multi", report.multi)):
        if training:
            rows += ["", *_ranks(name, training)]
    rows += ["", f"report: {report.folder / 'report.html'}"]
    # Names and logs come from outside: nothing in them may move the cursor.
    return [shown(row) for row in rows]


def _explained(check: Check, width: int) -> list[str]:
    first, *more = check.evidence.splitlines() or [""]
    indent = " " * (width + 4)
    rows = [f"{indent}{check.verdict:<4}  {check.name}: {first}"]
    rows += [f"{indent}      {line}" for line in more]
    rows += [f"{indent}      -> {line}" for line in check.advice.splitlines()]
    return rows


def _ranks(name: str, training: Training) -> list[str]:
    first = training.ranks[0]
    loss = f"loss {training.losses[0]:.3f} -> {training.losses[-1]:.3f}"
    rows = [f"  {name}: {first.steps} steps, {loss}, {first.tokens_per_second:,.0f} tokens/s"]
    for rank in training.ranks:
        where = f"{rank.device} {rank.gpu} {rank.gpu_uuid}".strip()
        of = f"rank {rank.rank} of {rank.world_size}"
        backend = rank.backend or "alone"
        rows.append(f"    {of}  {backend}  {where}  {human_size(rank.peak_memory)}")
    return rows
