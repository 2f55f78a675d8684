"""Stages `single` and `multi`: one process trains, then many do, in three ways.

- single: one process, the whole batch at once.
- ddp: N processes, in passes, with loader workers; they save a checkpoint at half of the steps.
- resume: N new processes go on from it, and must come to the same bits.
- fsdp: N processes, each with a part of the model; they save, kill themselves, and new ones go on.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from mirror.verify import accelerate, diagnosis, judgement, ranks, runs
from mirror.verify.judgement import judge
from mirror.verify.launch import Limits, Outcome
from mirror.verify.ranks import Rank
from mirror.verify.report import Check, Training
from mirror.verify.runs import Plan, plan
from mirror.verify.subject import Subject

__all__ = ["Many", "Plan", "judge", "plan", "single"]

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
    """The runs of the stage `multi`, each of which can be asked for by itself.

    env: variables for all of them, such as NCCL's, over those of the machine. Their folders are
    multi, resume, fsdp and fsdp-resumed in the subject's, or for a second set multi-2 and so on.
    ddp_run: what the plain run reported, None until it has passed to its end. further: the other
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
        self._suffix = f"-{before + 1}" if before else ""
        self.ddp_run: Training | None = None
        self.further: list[tuple[str, Training]] = []

    def run(self) -> list[Check]:
        """All of them; the later ones only where nothing was wrong with the plain one."""
        checks = self.ddp()
        if not any(check.verdict == "fail" for check in checks):
            checks += [*self.resume(), *self.fsdp()]
        return checks

    def ddp(self) -> list[Check]:
        """DDP with accumulation and loader workers; leaves a checkpoint to `resume`."""
        more = () if self._no_checkpoint() else ("--save-after", str(self._half))
        outcome = self._launch("multi", f"{self._plan.world} processes", *more)
        self.ddp_run, problems = runs.read(outcome)
        if self.ddp_run is None:
            _remove_checkpoint(self._folder("multi"))
            return self._failed("run", "multi", problems)
        checks = judge(
            self.ddp_run, self._plan.world, self._plan, self._steps, against=self._single
        )
        return [*checks, judgement.fed(self.ddp_run, self._plan, self._steps)]

    def resume(self) -> list[Check]:
        """New processes go on from the checkpoint of `ddp`, which is removed."""
        if self.ddp_run is None:
            raise ValueError("there is nothing to resume")
        if why_not := self._no_checkpoint():
            return [Check("resume", "skip", why_not)]
        folder = self._folder("multi")
        try:
            outcome = self._launch(
                "resume",
                "going on from a checkpoint",
                *("--no-collectives", "--resume", str(folder / "checkpoint")),
            )
        finally:
            _remove_checkpoint(folder)
        again, problems = runs.read(outcome)
        if again is None:
            return self._failed("resume", "resume", problems)
        return [judgement.resumed(self.ddp_run, again)]

    def fsdp(self) -> list[Check]:
        """FSDP; and where checkpoints can be tried, it is killed on the way and goes on."""
        first = self._single.ranks[0]
        newest = judgement.offers_fsdp2(first.torch, first.accelerate)
        versions = f"torch {first.torch}, accelerate {first.accelerate}"
        if not newest and not self._plan.gpu:
            why_not = (
                f"FSDP 2, which works on the CPU, needs torch 2.6 and accelerate 1.6: {versions}"
            )
            return [Check("fsdp", "skip", why_not)]
        why_not = self._no_checkpoint()
        if not newest:
            why_not = f"FSDP 2 needs torch 2.6 and accelerate 1.6; this is FSDP 1 ({versions})"
        if why_not:
            checks = self._fsdp_once()
            return [*checks, Check(judgement.KILLED, "skip", why_not)]
        return self._fsdp_killed()

    def _fsdp_once(self) -> list[Check]:
        outcome = self._launch("fsdp", "sharded (FSDP)", "--parallel", "fsdp", "--no-collectives")
        found, problems = runs.read(outcome)
        if found is None:
            return self._failed("fsdp", "fsdp", problems)
        return self._judge_fsdp(found)

    def _fsdp_killed(self) -> list[Check]:
        folder, options = self._folder("fsdp"), ("--parallel", "fsdp", "--no-collectives")
        last = min(self._half + _LOST, self._steps - 1)
        try:
            outcome = self._launch(
                "fsdp",
                "sharded (FSDP), until it is killed",
                *(*options, "--save-after", str(self._half), "--kill-after", str(last)),
            )
            killed, problems = _read_killed(outcome, folder, self._plan.processes)
            if killed is None:
                return self._failed("fsdp", "fsdp", problems)
            outcome = self._launch(
                "fsdp-resumed",
                "sharded (FSDP), going on",
                *(*options, "--resume", str(folder / "checkpoint"), "--digest-after", str(last)),
            )
        finally:
            _remove_checkpoint(folder)
        found, problems = runs.read(outcome)
        if found is None:
            return [judgement.sharded(killed), judgement.lost(killed, "\n".join(problems))]
        return [*self._judge_fsdp(found), judgement.survived(killed, found)]

    def _judge_fsdp(self, found: Training) -> list[Check]:
        self.further.append(("fsdp", found))
        return [
            judgement.sharded(found),
            judgement.equals(found, self._single, "fsdp equals single"),
        ]

    @property
    def _steps(self) -> int:
        return self._subject.steps

    @property
    def _half(self) -> int:
        return self._steps // 2

    def _no_checkpoint(self) -> str:
        """Why no checkpoint can be tried; empty where it can."""
        if self._plan.nodes:
            return "nodes need a shared file system for a checkpoint, which verify does not ask for"
        if self._steps < _LOST + 1:
            return f"{self._steps} steps are too few to save, lose and repeat some"
        return ""

    def _failed(self, check: str, run: str, problems: Sequence[str]) -> list[Check]:
        return _failed(check, problems, self._folder(run), self._plan.processes)

    def _folder(self, name: str) -> Path:
        return self._subject.work / f"{name}{self._suffix}"

    def _launch(self, name: str, label: str, *options: str) -> Outcome:
        workers = ("--workers", str(self._plan.workers))
        job = runs.job(
            self._subject,
            self._python,
            self._plan,
            f"{name}{self._suffix}",
            self._plan.processes,
            ("--accumulation", str(self._plan.accumulation), *workers, *options),
            self._env,
        )
        return runs.run(job, self._subject, label, self._limits)


def _read_killed(
    outcome: Outcome, folder: Path, processes: int
) -> tuple[Training | None, Sequence[str]]:
    """What ranks reported that then killed themselves, which to the launcher is a failure."""
    try:
        results = [ranks.read_result(folder, rank) for rank in range(processes)]
        found = tuple(Rank.from_json(result) for result in results if result)
    except ValueError as error:
        return None, [f"a rank's result is malformed: {error}"]
    if len(found) < processes or any(rank.killed_after is None for rank in found):
        return None, outcome.problems or ["not every rank reported before it was to be killed"]
    codes = accelerate.exit_codes(folder / "launch.log")
    if not outcome.problems or -9 not in codes.values():
        said = ", ".join(f"rank {rank}: {code}" for rank, code in codes.items()) or "none"
        return None, [f"the ranks were not killed by SIGKILL; exit codes: {said}"]
    return Training(found, outcome.seconds), []


def _remove_checkpoint(folder: Path) -> None:
    """It is as large as three models, and has served."""
    for name in ("checkpoint", ".checkpoint.part"):
        with contextlib.suppress(OSError):
            shutil.rmtree(folder / name)


def _failed(name: str, problems: Sequence[str], folder: Path, processes: int) -> list[Check]:
    """What happened, and what it means as far as it is known by name."""
    known = diagnosis.known(folder, processes, problems)
    advice = f"The ranks' whole logs are in {folder}."
    return [Check(name, "fail", "\n".join(problems), advice), *diagnosis.checks(known)]
