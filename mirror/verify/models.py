"""Stage `models`: does each bundled revision load with no network, by id and by plain path?

Of datasets and spaces, the files are looked at; what reads them is not known here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from mirror.ecosystems.models.bundled import Revision
from mirror.verify import child
from mirror.verify.report import Check
from mirror.verify.subject import Subject

#: The check of the manifest's key of this name.
NAMED = "verify.model"

_TIMEOUT = 1800.0
_ADVICE = "Install the bundle again; if it stays so, the model was incomplete when it was built."


def check(subject: Subject, python: Path | None) -> Iterator[Check]:
    """Several checks a revision, made by the environment's Python, or by this one without one."""
    found = subject.revisions
    if subject.named_model:
        yield _named(subject.named_model, subject.models)
    with subject.progress.bar("loading models", len(found), "models") as advance:
        for number, revision in enumerate(found):
            work = subject.work / "models" / str(number)
            yield from _one(subject, python or Path(sys.executable), revision, work)
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


def _one(subject: Subject, python: Path, revision: Revision, work: Path) -> Iterator[Check]:
    name = revision.path.removeprefix("models/")
    work.mkdir(parents=True)
    # In a file, since names that the bundle's maker has chosen are no arguments.
    about = {
        "kind": revision.kind,
        "repo": revision.repo,
        "revisions": [*revision.refs, revision.commit],
        "folder": str(subject.generation.path / revision.path),
        "files": list(revision.files),
    }
    question = work / "question.json"
    question.write_text(json.dumps(about), encoding="utf-8")
    answer, reason = child.ask(
        python,
        "models",
        ["--about", str(question)],
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
