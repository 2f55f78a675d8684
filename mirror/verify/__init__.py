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
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime, timezone
from pathlib import Path

import mirror
from mirror import logs
from mirror.core.artifact import Json
from mirror.core.index import Index
from mirror.core.progress import Progress
from mirror.core.text import counted
from mirror.errors import MachineError, UsageError
from mirror.store import atomic
from mirror.store.environment import write_launch
from mirror.store.generations import Root
from mirror.verify import baseline, host, nodes, page, processes, remedy, store
from mirror.verify.course import Course
from mirror.verify.launch import Limits
from mirror.verify.report import Check, Report, Stage, Training, document
from mirror.verify.subject import Subject

__all__ = ["verify", "verify_store"]


def verify(
    root: Root,
    *,
    gpus: int | None,
    report_folder: Path | None,
    progress: Progress,
    limits: Limits | None = None,
    climb: bool = False,
    checks: Sequence[str] = (),
    group: nodes.Group | None = None,
    save_baseline: bool = False,
) -> Report:
    """Verify the current generation of `root`, and write the report.

    gpus: how many must be proved; None for all that are visible, and two CPU processes where there
    are none. report_folder: None for a fresh one under the root's log. climb: measure every rung
    of the NCCL ladder. checks: "ray" and "vllm", beside those that the manifest asks for.
    group: the machines that verify together, each of which calls this; None for this one alone.
    save_baseline: keep this run's figures, for later runs to be held against.
    Raises UsageError for less than one GPU, MachineError when nothing is installed or the report
    cannot be written. What is found wrong is in the report, whose verdict is then "fail".
    """
    if gpus is not None and gpus < 1:
        raise UsageError(f"--gpus {gpus}: at least one GPU can be asked for")
    started, begin = datetime.now(timezone.utc), time.monotonic()
    generation = root.current()
    index = generation.index()
    folder = report_folder or logs.fresh([root.logs], f"verify-{generation.path.name}")
    if group and report_folder:  # which may be one and the same on all of them, under srun
        folder /= f"node-{group.node}"
    folder = folder.absolute()
    subject = Subject(root, generation, index, gpus, _fresh(folder), progress)
    with processes.nothing_left_behind(), _meeting(group, index, progress) as others:
        course = Course(subject, limits or Limits(), climb=climb, checks=checks, nodes=others)
        course.run()
        if others:
            compared = others.compare(course.stages, str(folder))
            course.stages.append(Stage("nodes", tuple(compared)))
    course.stages += _baseline(subject, course, started, save_baseline)
    report = Report(
        stages=tuple(course.stages),
        single=course.single,
        multi=course.multi,
        asked=gpus,
        facts=_facts(subject, course),
        started=started.isoformat(timespec="seconds"),
        seconds=time.monotonic() - begin,
        folder=folder,
        rungs=course.settled.rungs if course.settled else (),
        topology=course.topology,
        further=course.further,
    )
    _write(report)
    if course.settled and course.multi and course.verdict("multi") in ("pass", "warn"):
        _record_launch(subject, report, course.settled, course.multi, group)
    return report


def verify_store(
    root: Root,
    *,
    number: int | None = None,
    everything: bool = False,
    report_folder: Path | None,
    progress: Progress,
) -> Report:
    """Only look whether every byte is the one that was installed, and write the report.

    number: of the generation; None for the one in use. everything: all generations, and all blobs.
    Raises MachineError when there is no such generation or the report cannot be written.
    """
    started, begin = datetime.now(timezone.utc), time.monotonic()
    chosen = None if everything else store.choose(root, number)
    folder = report_folder or logs.fresh(logs.places(root), "verify-store")
    checks = store.self_check(root, chosen, progress)
    facts = {"root": str(root.path), "host": platform.node(), "mirror": mirror.__version__}
    if chosen:
        facts["generation"] = str(chosen[0].number)
    seconds = time.monotonic() - begin
    report = Report(
        stages=(Stage("store", tuple(checks), seconds),),
        single=None,
        multi=None,
        asked=None,
        facts=facts,
        started=started.isoformat(timespec="seconds"),
        seconds=seconds,
        folder=folder.absolute(),
    )
    _write(report)
    return report


def _meeting(
    group: nodes.Group | None, index: Index, progress: Progress
) -> AbstractContextManager[nodes.Nodes | None]:
    """The other nodes, once all are there; None on a machine alone."""
    if group is None:
        return nullcontext()
    return nodes.together(
        group,
        digest=index.digest,
        bundle=f"{index.name} {index.version}",
        say=progress.step,
    )


def _baseline(subject: Subject, course: Course, started: datetime, save: bool) -> list[Stage]:
    """A stage when there are figures of an earlier run to be held against, or to be kept."""
    file = subject.root.path / "baseline.json"
    failed = any(stage.verdict == "fail" for stage in course.stages)
    if course.single is None or failed:
        if save:
            kept = Check("baseline", "skip", "nothing was kept: there is no run that passed")
            return [Stage("baseline", (kept,))]
        return []
    now = baseline.of(course.single, course.multi, started.isoformat(timespec="seconds"))
    checks: list[Check] = []
    try:
        if old := baseline.load(file):
            checks.append(baseline.compare(old, now))
    except ValueError as error:
        advice = "Take a new one with --save-baseline."
        checks.append(Check("baseline", "warn", f"{file} cannot be read: {error}", advice))
    if save:
        baseline.save(now, file)
        checks.append(Check("saved", "pass", f"{counted(len(now.figures), 'figure')} in {file}"))
    return [Stage("baseline", tuple(checks))] if checks else []


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


def _facts(subject: Subject, course: Course) -> dict[str, str]:
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
    report.folder.mkdir(parents=True, exist_ok=True)
    atomic.write(report.folder / "report.json", text.encode())
    atomic.write(report.folder / "report.html", page.html(report).encode())


def _record_launch(
    subject: Subject,
    report: Report,
    settled: remedy.Settled,
    multi: Training,
    group: nodes.Group | None,
) -> None:
    """Write launch.json: the settings under which many processes trained rightly, and the price."""
    first = multi.ranks[0]
    settings: dict[str, Json] = {
        "world_size": first.world_size // (group.nodes if group else 1),  # on this machine
        "backend": first.backend,
        "precision": first.precision,
        "env": settled.env,
        "rungs": [rung.to_json() for rung in settled.rungs],
        "verified": report.started,
        "report": str(report.folder),
    }
    try:
        write_launch(subject.generation, subject.root.path, settings)
    except OSError as error:
        subject.progress.warn(
            f"{subject.generation.launch_file} cannot be written: {error.strerror}"
        )
