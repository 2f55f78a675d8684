"""What verify found: values, and their JSON (report.schema.json beside this file).

The other two forms are mirror/verify/screen.py, for a terminal, and mirror/verify/page.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from mirror.core.artifact import Json
from mirror.core.paths import shown
from mirror.core.text import counted
from mirror.verify.bandwidth import Bandwidth
from mirror.verify.ranks import Rank

if TYPE_CHECKING:
    from mirror.verify.host import Topology
    from mirror.verify.ladder import Measured

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
    rungs: the NCCL settings that were measured, in the order in which they were tried.
    topology: what lies between the GPUs; None where there are none, or nothing tells.
    further: training runs beyond `single` and `multi`, with their names: ("fsdp", ...).
    """

    stages: tuple[Stage, ...]
    single: Training | None
    multi: Training | None
    asked: int | None
    facts: dict[str, str]
    started: str
    seconds: float
    folder: Path
    rungs: tuple[Measured, ...] = ()
    topology: Topology | None = None
    further: tuple[tuple[str, Training], ...] = ()

    @property
    def trainings(self) -> tuple[tuple[str, Training], ...]:
        """Every training run that ended well enough to report, with its name."""
        named = (("single", self.single), ("multi", self.multi), *self.further)
        return tuple((name, training) for name, training in named if training)

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
        if [stage.name for stage in self.stages] == ["store"]:
            return "Every byte is the one that was installed."
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
    """The report as report.json holds it: what JSON has no number for is null."""
    single, multi = report.single, report.multi
    table: dict[str, Json] = {
        "format": FORMAT,
        "verdict": report.verdict,
        "headline": report.headline,
        "gpus_asked": report.asked,
        "gpus_proved": report.gpus,
        "facts": report.facts,
        "started": report.started,
        "seconds": round(report.seconds, 3),
        "stages": [_stage(stage) for stage in report.stages],
        "single": _training(single) if single else None,
        "multi": _training(multi) | _against(multi, single) | _bandwidth(multi) if multi else None,
        "further": {
            name: _training(training) | _against(training, single)
            for name, training in report.further
        },
        "rungs": [rung.to_json() for rung in report.rungs],
        "topology": _topology(report.topology) if report.topology else None,
    }
    return {key: _sound(value) for key, value in table.items()}


def _stage(stage: Stage) -> dict[str, Json]:
    return {
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


def _training(training: Training) -> dict[str, Json]:
    first = training.ranks[0]
    return {
        "world_size": first.world_size,
        "backend": first.backend,
        "precision": first.precision,
        "parallel": first.parallel,
        "accumulation": first.accumulation,
        "model": first.model,
        "steps": first.steps,
        "batch": first.batch,
        "losses": training.losses,
        "tolerance": training.tolerance,
        "tokens_per_second": first.tokens_per_second,
        "samples_per_second": first.samples_per_second,
        "resumed_after": first.resumed_after,
        "seconds": round(training.seconds, 3),
        "ranks": [rank.to_json() for rank in training.ranks],
    }


def _against(training: Training, single: Training | None) -> dict[str, Json]:
    return {
        "single_losses": single.losses if single else None,
        "largest_difference": training.largest_difference(single) if single else None,
    }


def _bandwidth(training: Training) -> dict[str, Json]:
    found = training.bandwidth
    return {
        "bandwidth": {
            "collectives": {
                name: {str(size): speed for size, speed in table.items()}
                for name, table in found.collectives.items()
            },
            "pairs": [
                {"pair": list(pair), "bandwidth": speed} for pair, speed in found.pairs.items()
            ],
        }
    }


def _topology(topology: Topology) -> dict[str, Json]:
    return {
        "gpus": list(topology.gpus),
        "links": [
            {
                "pair": list(pair),
                "link": topology.links.get(pair),
                "state": topology.states.get(pair),
                "promised": topology.promised(pair),
            }
            for pair in topology.pairs
        ],
    }


def _sound(value: Json) -> Json:
    """JSON has no NaN and no infinity, and UTF-8 no halves of characters, as file names may."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, Mapping):
        return {str(_sound(key)): _sound(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_sound(inner) for inner in value]
    return value
