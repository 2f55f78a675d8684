"""Prove that this server trains, or say why it does not.

    store -> host -> environment -> models -> single -> multi

Each stage is one module; a later one runs only on what the earlier ones allow. The evidence comes
from the environment's own interpreter (trainer/), never from the one that runs mirror.
"""

from __future__ import annotations

import itertools
import json
import platform
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from pathlib import Path

import mirror
from mirror.core.artifact import Json
from mirror.core.paths import shown
from mirror.core.progress import Progress
from mirror.core.text import counted
from mirror.errors import MachineError, UsageError
from mirror.store import atomic
from mirror.store.environment import write_launch
from mirror.store.generations import Root
from mirror.verify import environment, host, models, page, processes, stack, store, training
from mirror.verify.launch import Limits
from mirror.verify.report import Check, Report, Stage, Training, document
from mirror.verify.subject import Subject

__all__ = ["verify"]


def verify(
    root: Root,
    *,
    gpus: int | None,
    report_folder: Path | None,
    progress: Progress,
    limits: Limits | None = None,
) -> Report:
    """Verify the current generation of `root`, and write the report.

    gpus: how many must be proved; None for all that are visible, and two CPU processes where there
    are none. report_folder: None for a fresh one under the root's log.
    Raises UsageError for less than one GPU, MachineError when nothing is installed or the report
    cannot be written. What is found wrong is in the report, whose verdict is then "fail".
    """
    if gpus is not None and gpus < 1:
        raise UsageError(f"--gpus {gpus}: at least one GPU can be asked for")
    started, begin = datetime.now(timezone.utc), time.monotonic()
    generation = root.current()
    index = generation.index()
    name = f"verify-{generation.path.name}-{started:%Y%m%dT%H%M%SZ}"
    folder = (report_folder or root.logs / name).absolute()
    subject = Subject(root, generation, index, gpus, _fresh(folder), progress)
    with processes.nothing_left_behind():
        course = _Course(subject, limits or Limits())
        course.run()
    report = Report(
        stages=tuple(course.stages),
        single=course.single,
        multi=course.multi,
        asked=gpus,
        facts=_facts(subject, course),
        started=started.isoformat(timespec="seconds"),
        seconds=time.monotonic() - begin,
        folder=folder,
    )
    _write(report)
    if course.multi and course.verdict("multi") == "pass":
        _record_launch(subject, report, course.multi)
    return report


class _Skip(Exception):  # noqa: N818 -- no error: the reason why a stage is not run
    """Raised in a stage that cannot be run."""


class _Course:
    """The stages in their order, and what each leaves to the later ones."""

    def __init__(self, subject: Subject, limits: Limits) -> None:
        self.subject = subject
        self.limits = limits
        self.stages: list[Stage] = []
        self.gpus: list[host.Gpu] = []
        self.stack: stack.Stack | None = None
        self.plan: training.Plan | None = None
        self.single: Training | None = None
        self.multi: Training | None = None

    def run(self) -> None:
        """All stages."""
        self._stage("store", self._store)
        self._stage("host", self._host)
        self._stage("environment", self._environment)
        self._stage("models", self._models)
        self._stage("single", self._train_single)
        self._stage("multi", self._train_multi)

    def verdict(self, stage: str, check: str | None = None) -> str:
        """Of a stage that has been, or of one check in it; "skip" for a check that was not made."""
        found = next(s for s in self.stages if s.name == stage)
        if check is None:
            return found.verdict
        return next((c.verdict for c in found.checks if c.name == check), "skip")

    def _store(self) -> Iterable[Check]:
        return store.check(self.subject)

    def _host(self) -> Iterable[Check]:
        found = host.visible_gpus()
        self.gpus = found or []
        return host.check(self.subject, found)

    def _environment(self) -> Iterable[Check]:
        self._need("store")
        checks = environment.conda(self.subject)
        if self.subject.python is None:
            if not checks:
                raise _Skip("the bundle brought no environment")
            return checks
        found, self.stack = environment.check(self.subject, self.subject.python)
        checks += found
        if self.stack:
            checks.append(stack.gpus(self.stack, self.subject.gpus, len(self.gpus)))
        return checks

    def _models(self) -> Iterable[Check]:
        self._need("store")
        if not self.subject.revisions and not self.subject.named_model:
            raise _Skip("the bundle brought no models")
        return models.check(self.subject, self.subject.python)

    def _train_single(self) -> Iterable[Check]:
        self._need("store")
        self._need("host", "gpus")
        self._need("models", models.NAMED)
        if self.subject.python is None or self.stack is None:
            reason = "there is no environment with a working torch and accelerate"
            if self.subject.gpus is None:
                raise _Skip(reason)
            asked = counted(self.subject.gpus, "GPU")
            return [Check("run", "fail", f"{asked} asked for, but {reason}")]
        self._need("environment", "torch's gpus")
        self.plan = training.plan(self.subject, len(self.stack.gpus))
        checks, self.single = training.single(
            self.subject, self.subject.python, self.plan, self.limits
        )
        return checks

    def _train_multi(self) -> Iterable[Check]:
        self._need("single")
        self._need("host", "loopback")
        if self.subject.python is None or self.plan is None or self.single is None:
            raise _Skip("one process did not train")
        if self.plan.processes == 1:
            raise _Skip("on one GPU there is nothing to run together")
        checks, self.multi = training.multi(
            self.subject, self.subject.python, self.plan, self.single, self.limits
        )
        return checks

    def _need(self, stage: str, check: str | None = None) -> None:
        if self.verdict(stage, check) == "fail":
            raise _Skip(f"{stage}{f' ({check})' if check else ''} failed")

    def _stage(self, name: str, look: Callable[[], Iterable[Check]]) -> None:
        begin = time.monotonic()
        try:
            checks = tuple(look())
        except _Skip as reason:
            checks = (Check("stage", "skip", str(reason)),)
        stage = Stage(name, checks, time.monotonic() - begin)
        self.stages.append(stage)
        for check in checks:
            self.subject.progress.detail(shown(f"{check.verdict}  {check.name}: {check.evidence}"))
        self.subject.progress.step(f"{name}: {stage.verdict}, {stage.summary}")


def _fresh(folder: Path) -> Path:
    """A new folder in the report's for logs and results: those of an older run prove nothing."""
    names = itertools.chain(["logs"], (f"logs-{n}" for n in itertools.count(2)))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            try:
                (folder / name).mkdir()
                return folder / name
            except FileExistsError:
                continue
    except OSError as error:
        raise MachineError(
            f"the report cannot be written to {folder}: {error.strerror}",
            hint="Name a folder of your own with --report DIR.",
        ) from None
    raise AssertionError("there is always another number")


def _facts(subject: Subject, course: _Course) -> dict[str, str]:
    """The head of the report: which bundle, on which machine."""
    torch = course.stack
    facts = {
        "bundle": f"{subject.index.name} {subject.index.version}",
        "digest": subject.index.digest,
        "generation": str(subject.generation.number),
        "root": str(subject.root.path),
        "host": platform.node(),
        "driver": host.driver(course.gpus),
        "torch": torch.torch if torch else "",
        "accelerate": torch.accelerate if torch else "",
        "mirror": mirror.__version__,
    }
    return {name: value for name, value in facts.items() if value}


def _write(report: Report) -> None:
    text = json.dumps(document(report), indent=2, ensure_ascii=False) + "\n"
    atomic.write(report.folder / "report.json", text.encode())
    atomic.write(report.folder / "report.html", page.html(report).encode())


def _record_launch(subject: Subject, report: Report, multi: Training) -> None:
    """Write launch.json: the settings under which many processes trained rightly."""
    first = multi.ranks[0]
    settings: dict[str, Json] = {
        "world_size": first.world_size,
        "backend": first.backend,
        "precision": first.precision,
        "env": {},  # a plain run passed: nothing has to be set
        "verified": report.started,
        "report": str(report.folder),
    }
    try:
        write_launch(subject.generation, subject.root.path, settings)
    except OSError as error:
        subject.progress.warn(
            f"{subject.generation.launch_file} cannot be written: {error.strerror}"
        )
