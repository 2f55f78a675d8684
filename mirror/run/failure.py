"""Why a launched script failed: which rank, with what last words, and what is known of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mirror.core.paths import shown
from mirror.errors import MirrorError
from mirror.run.output import file_of
from mirror.verify import accelerate, child, ranks, symptoms

#: Lines of a rank that is not the first one that failed.
_SHORT = 3


class JobError(MirrorError):
    """The script that `mirror run` launched ended with an exit code of its own, which is ours."""

    def __init__(self, message: str, code: int, *, problems: list[str], hint: str) -> None:
        super().__init__(message, problems=problems, hint=hint)
        self.exit_code = code


@dataclass(frozen=True, slots=True)
class Ending:
    """How a launched script ended.

    folder: with its logs. code: of the process that was started: the script's own if `processes` is
    1, else the launcher's; -N for signal N.
    """

    name: str
    folder: Path
    processes: int
    code: int


def explain(ending: Ending) -> JobError:
    """Everything that its logs tell. Of one process, the last lines were just seen: not again."""
    logs = {rank: _read(ending.folder, rank) for rank in range(ending.processes)}
    if ending.processes == 1:
        said = f"{ending.name}: {child.ending(ending.code)}"
        known = symptoms.diagnose(f"{logs[0]}\n{said}")
        return _failed(said, ending.code, symptoms.render(known), ending.folder)
    log = ending.folder / "launch.log"
    codes = accelerate.exit_codes(log)
    known = symptoms.diagnose_all(
        {f"rank {rank}": text for rank, text in logs.items()}
        | {"the launcher": symptoms.excerpt(log)}
    )
    if not codes:
        said = f"{ending.name}: its launcher failed: {child.ending(ending.code)}"
        text = symptoms.excerpt(log)
        lines = _lines(text, ranks.TAIL)
        if "No module named 'accelerate'" in text:
            said = f"{ending.name}: several processes need accelerate, which the environment lacks"
            lines = ["  Carry it in the bundle, or start them yourself: mirror run -- torchrun ..."]
        return _failed(said, ending.code, [*lines, *symptoms.render(known)], ending.folder)
    culprit = _culprit(codes, logs)
    if not _all_echoes(symptoms.diagnose(logs[culprit])) and _all_echoes(known):
        known = []  # that the others miss it says nothing new
    # One that was ended because of another has no code that says anything.
    code = codes.get(culprit, next(iter(codes.values())))
    how = child.ending(codes[culprit]) if culprit in codes else "it raised an exception"
    problems = _lines(logs[culprit], ranks.TAIL) or ["(it said nothing)"]
    for rank in codes.keys() - {culprit}:
        problems += [f"rank {rank}: {child.ending(codes[rank])}", *_lines(logs[rank], _SHORT)]
    said = f"{ending.name}, rank {culprit} of {ending.processes}: {how}; its last lines:"
    return _failed(said, code, [*problems, *symptoms.render(known)], ending.folder)


def _failed(said: str, code: int, problems: list[str], folder: Path) -> JobError:
    ours = code if code >= 0 else 128 - code
    return JobError(said, ours, problems=problems, hint=f"Every rank's output: {folder}")


def _read(folder: Path, rank: int) -> str:
    """What a rank wrote, its standard error after its standard output."""
    files = (file_of(folder, rank, name) for name in ("stdout", "stderr"))
    return "\n".join(symptoms.excerpt(file) for file in files if file)


def _lines(text: str, count: int) -> list[str]:
    """The last lines that say something, fit to be printed."""
    return [f"  {shown(line)}" for line in text.splitlines() if line.strip()][-count:]


def _culprit(codes: dict[int, int], logs: dict[int, str]) -> int:
    """The rank to look at: the first that failed, unless it only says that another is gone.

    The one that raised an exception may take longer to end than the others to miss it.
    """
    first = next(iter(codes))
    if _all_echoes(symptoms.diagnose(logs[first])):
        for rank, text in logs.items():
            raised = "Traceback (most recent call last)" in text
            if raised and not _all_echoes(symptoms.diagnose(text)):
                return rank
    return first


def _all_echoes(known: Sequence[symptoms.Symptom]) -> bool:
    """Whether there are symptoms, and all are what ranks say that lost another one."""
    levels = {entry.key: entry.level for entry in symptoms.TABLE}
    return {levels[symptom.key] for symptom in known} == {"echo"}
