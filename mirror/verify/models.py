"""Stage `models`: does each bundled model load with no network, by id and by plain path?"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from mirror.verify import child
from mirror.verify.report import Check
from mirror.verify.subject import Subject

#: The check of the manifest's key of this name.
NAMED = "verify.model"

_TIMEOUT = 1800.0
_ADVICE = "Install the bundle again; if it stays so, the model was incomplete when it was built."


def check(subject: Subject, python: Path | None) -> Iterator[Check]:
    """Several checks a model, made by the environment's Python, or by this one without one."""
    models = subject.models
    if subject.named_model:
        yield _named(subject.named_model, list(models))
    with subject.progress.bar("loading models", len(models), "models") as advance:
        for number, (name, files) in enumerate(models.items()):
            work = subject.work / "models" / str(number)
            yield from _one(subject, python or Path(sys.executable), name, files, work)
            advance(1)


def _named(name: str, carried: list[str]) -> Check:
    """Whether the model that is to be trained is there: another one would prove nothing of it."""
    if name in carried:
        return Check(NAMED, "pass", name)
    there = ", ".join(carried) or "no models"
    return Check(
        NAMED,
        "fail",
        f"the manifest names {name}; the bundle carries {there}",
        "Add that model under `models:` in the manifest, or name one that is there; build again.",
    )


def _one(
    subject: Subject, python: Path, name: str, files: list[str], work: Path
) -> Iterator[Check]:
    work.mkdir(parents=True)
    listing = work / "files.json"
    listing.write_text(json.dumps(files), encoding="utf-8")
    folder = subject.generation.models / name
    answer, reason = child.ask(
        python,
        "models",
        ["--id", name, "--path", str(folder), "--files", str(listing)],
        environ=child.variables(subject.generation),
        folder=work,
        timeout=_TIMEOUT,
    )
    if answer is None:
        yield Check(name, "fail", reason, _ADVICE)
        return
    for found in answer:
        verdict = found["verdict"]
        advice = _ADVICE if verdict == "fail" else ""
        yield Check(f"{name}: {found['name']}", verdict, found["evidence"], advice)
