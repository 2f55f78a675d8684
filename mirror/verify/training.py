"""Stages `single` and `multi`: one process trains, then many do, sharded and not, and go on.

- single: one process, the whole batch at once.
- multi: N processes under DDP, in passes, with loader workers, to the end; then, from the start,
  under FSDP, where they kill themselves on the way. Both save a checkpoint at half of the steps.
- resume: N new processes go on from both checkpoints, and must come to the same bits.

Few launches, since each costs the import of torch and transformers, and the start of NCCL.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mirror.verify import accelerate, diagnosis, judgement, ranks, runs
from mirror.verify.judgement import judge
from mirror.verify.launch import Limits, Outcome
from mirror.verify.report import Check, Training
from mirror.verify.runs import Plan, plan
from mirror.verify.subject import Subject

__all__ = ["Many", "Plan", "judge", "plan", "single"]

#: Of the launches: from the start, and from the checkpoints.
_FOLDERS = ("multi", "resume")
#: Steps between a checkpoint and the kill: what is lost, and must be done again.
_LOST = 2


def single(
    subject: Subject, python: Path, plan: Plan, limits: Limits | None = None
) -> tuple[list[Check], Training | None]:
    """One process on one GPU, or on the CPU."""
    job = runs.job(subject, python, plan, "single", 1)
    training, problems = runs.read(runs.run(job, subject, "one process", limits))
    if training is None:
        return _failed("run", problems, job.folder, 1), None
    checks = judge(training, 1, plan, subject.steps)
    if plan.precision != subject.precision:
        asked = subject.precision
        checks.append(Check("precision", "warn", f"{asked} needs a GPU: float32 was used"))
    return checks, training


class Many:
    """The runs of the stage `multi`.

    env: variables for all of them, such as NCCL's, over those of the machine. Their folders are
    multi and resume in the subject's, or for a second set multi-2 and resume-2, and so on.
    ddp_run: what the plain run reported, None until it has come to its end. further: the other
    runs that report losses of their own, with their names.
    """

    def __init__(
        self,
        subject: Subject,
        python: Path,
        plan: Plan,
        single: Training,
        limits: Limits | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._subject, self._python, self._plan = subject, python, plan
        self._single, self._limits, self._env = single, limits, env or {}
        before = len(list(subject.work.glob("multi*")))
        suffix = f"-{before + 1}" if before else ""
        self._first, self._second = (subject.work / f"{name}{suffix}" for name in _FOLDERS)
        self.ddp_run: Training | None = None
        self.further: list[tuple[str, Training]] = []
        # The sharded run from the start, and what was wrong where there is none.
        self._sharded: Training | None = None
        self._unsharded: list[Check] = []

    def run(self) -> list[Check]:
        """All of it; nothing goes on from a plain run with which something was wrong."""
        try:
            checks = self.train()
            if not any(check.verdict == "fail" for check in checks):
                checks += self.go_on()
        finally:
            self.clean()
        return checks

    def train(self) -> list[Check]:
        """From the start: what is to be said of it under DDP. Leaves checkpoints to `go_on`."""
        options = [] if self._no_checkpoint() else ["--save-after", str(self._half)]
        if not self._no_fsdp():
            options.append("--then-fsdp")
        if self._kills():
            options += ["--kill-after", str(self._last)]
        outcome = self._launch(self._first, f"{self._plan.world} processes", *options)
        tables = runs.tables(outcome, self._first, self._plan.processes)
        self.ddp_run, problems = self._read(tables, outcome, last=bool(self._no_fsdp()))
        if self.ddp_run is None:
            return _failed("run", problems, self._first, self._plan.processes)
        if not self._no_fsdp():
            self._sharded, problems = self._read(_inner(tables), outcome, last=not self._kills())
            if self._sharded and self._kills() and not _was_killed(outcome, self._first):
                self._sharded, problems = None, ["the ranks were to die by SIGKILL, and did not"]
            if self._sharded is None:
                self._unsharded = self._fsdp_failed("fsdp", problems, self._first)
        checks = judge(
            self.ddp_run, self._plan.world, self._plan, self._steps, against=self._single
        )
        return [*checks, judgement.fed(self.ddp_run, self._plan, self._steps)]

    def go_on(self) -> list[Check]:
        """New processes, from the checkpoints: what is to be said of that, and of FSDP at all."""
        if self.ddp_run is None:
            raise ValueError("there is nothing to go on from")
        if why_not := self._no_checkpoint():
            return [Check("resume", "skip", why_not), *self._judge_fsdp(self._sharded)]
        options = ["--no-collectives", "--resume", str(self._first)]
        both = self._kills() and self._sharded is not None
        if both:
            options += ["--then-fsdp", "--digest-after", str(self._last)]
        outcome = self._launch(self._second, "going on from checkpoints", *options)
        tables = runs.tables(outcome, self._second, self._plan.processes)
        again, problems = self._read(tables, outcome, last=not both)
        if again is None:
            checks = _failed("resume", problems, self._second, self._plan.processes)
        else:
            checks = [judgement.resumed(self.ddp_run, again)]
        if not both or self._sharded is None:
            return [*checks, *self._judge_fsdp(self._sharded)]
        if again is None:
            skipped = Check(judgement.KILLED, "skip", "the run that was to go on failed before it")
            return [*checks, judgement.sharded(self._sharded), skipped]
        found, problems = self._read(_inner(tables), outcome, last=True)
        if found is None:
            failed, *known = self._fsdp_failed(judgement.KILLED, problems, self._second)
            checks += [judgement.sharded(self._sharded)]
            return [*checks, judgement.lost(self._sharded, failed.evidence), *known]
        return [*checks, *self._judge_fsdp(found), judgement.survived(self._sharded, found)]

    def clean(self) -> None:
        """Remove the checkpoints: each is as large as three models."""
        for folder in (self._first, self._first / "fsdp"):
            for name in ("checkpoint", ".checkpoint.part"):
                with contextlib.suppress(OSError):
                    shutil.rmtree(folder / name)

    def _judge_fsdp(self, found: Training | None) -> list[Check]:
        """Of a sharded run to its end, or why there is none."""
        if found is None:
            return self._unsharded or [Check("fsdp", "skip", self._no_fsdp())]
        self.further.append(("fsdp", found))
        checks = [
            judgement.sharded(found),
            judgement.equals(found, self._single, "fsdp equals single"),
        ]
        if not self._kills():
            why_not = self._no_checkpoint() or f"FSDP 1 is not tried so ({self._versions})"
            checks.append(Check(judgement.KILLED, "skip", why_not))
        return checks

    def _fsdp_failed(self, check: str, problems: Sequence[str], folder: Path) -> list[Check]:
        """With what the ranks said last: their results alone are of the leg before."""
        processes = self._plan.processes
        tails = [
            "\n  ".join([f"rank {rank}, last phase {ranks.read_phase(folder, rank)}:", *tail])
            for rank in range(processes)
            if (tail := ranks.log_tail(folder, rank))
        ]
        return _failed(check, [*problems, *tails], folder, processes)

    @property
    def _steps(self) -> int:
        return self._subject.steps

    @property
    def _half(self) -> int:
        return self._steps // 2

    @property
    def _last(self) -> int:
        return min(self._half + _LOST, self._steps - 1)

    @property
    def _versions(self) -> str:
        first = self._single.ranks[0]
        return f"torch {first.torch}, accelerate {first.accelerate}"

    def _has_fsdp2(self) -> bool:
        first = self._single.ranks[0]
        return judgement.offers_fsdp2(first.torch, first.accelerate)

    def _kills(self) -> bool:
        """Whether the sharded run is killed; accelerate cannot resume FSDP 1 from its shards."""
        return not self._no_fsdp() and not self._no_checkpoint() and self._has_fsdp2()

    def _no_fsdp(self) -> str:
        """Why nothing is sharded; empty where it is."""
        if self._has_fsdp2() or self._plan.gpu:
            return ""
        return f"FSDP 2 needs torch 2.6 and accelerate 1.6, and FSDP 1 a GPU: {self._versions}"

    def _no_checkpoint(self) -> str:
        """Why no checkpoint can be tried; empty where it can."""
        if self._plan.nodes:
            return "nodes need a shared file system for a checkpoint, which verify does not ask for"
        if self._steps < _LOST + 1:
            return f"{self._steps} steps are too few to save, lose and repeat some"
        return ""

    def _read(
        self, tables: Sequence[Any], outcome: Outcome, *, last: bool
    ) -> tuple[Training | None, Sequence[str]]:
        """What all ranks reported of a leg; what came of the launch counts for the last leg."""
        if len(tables) < self._plan.world or (last and outcome.problems):
            return None, outcome.problems or ["not every rank left a result"]
        return runs.parse(tables, outcome.seconds)

    def _launch(self, folder: Path, label: str, *options: str) -> Outcome:
        workers = ("--workers", str(self._plan.workers))
        job = runs.job(
            self._subject,
            self._python,
            self._plan,
            folder.name,
            self._plan.processes,
            ("--accumulation", str(self._plan.accumulation), *workers, *options),
            self._env,
        )
        return runs.run(job, self._subject, label, self._limits)


def _inner(tables: Sequence[Any]) -> list[Any]:
    """The second leg's results, of the ranks that came to its end."""
    return [table["fsdp"] for table in tables if table.get("fsdp")]


def _was_killed(outcome: Outcome, folder: Path) -> bool:
    """Whether SIGKILL ended the ranks, which to the launcher is a failure."""
    codes = accelerate.exit_codes(folder / "launch.log")
    return bool(outcome.problems) and -9 in codes.values()


def _failed(name: str, problems: Sequence[str], folder: Path, processes: int) -> list[Check]:
    """What happened, and what it means as far as it is known by name."""
    known = diagnosis.known(folder, processes, problems)
    advice = f"The ranks' whole logs are in {folder}."
    return [Check(name, "fail", "\n".join(problems), advice), *diagnosis.checks(known)]
