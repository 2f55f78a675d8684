"""What a failed run's output means: the dictionary, applied to all that its ranks wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mirror.verify import symptoms
from mirror.verify.report import Check


def known(folder: Path, processes: int, problems: Sequence[str]) -> list[symptoms.Symptom]:
    """Of a job in `folder`: its ranks' logs, its launcher's, and what was found wrong with it."""
    logs = {
        f"rank {rank}": "\n".join(
            symptoms.excerpt(file)
            for file in sorted(folder.glob(f"log/*/attempt_0/{rank}/std*.log"))
        )
        for rank in range(processes)
    }
    # Only the launcher's log has exit codes; a single process has no log but this one.
    logs["the launcher"] = symptoms.excerpt(folder / "launch.log")
    logs["the end"] = "\n".join(problems)
    return symptoms.diagnose_all(logs)


def checks(found: Sequence[symptoms.Symptom]) -> list[Check]:
    """A check a symptom, for the report of a run that failed."""
    return [
        Check(
            symptom.name,
            "fail",
            f"{symptom.evidence}\n{symptom.cause}"
            + (f"\nknown: {symptom.source}" if symptom.source else ""),
            symptom.advice,
        )
        for symptom in found
    ]
