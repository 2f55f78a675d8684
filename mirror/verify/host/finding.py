"""How several facts become one check."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mirror.verify.report import Check, Verdict, worst


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is not as it should be: what was read, and what to do about it."""

    verdict: Verdict
    what: str
    advice: str


def judged(name: str, facts: Iterable[str], problems: Sequence[Problem]) -> Check:
    """A check that passes unless there are problems; they stand before the facts."""
    evidence = "\n".join([*(problem.what for problem in problems), *facts])
    lines = (line for problem in problems for line in problem.advice.splitlines())
    advice = "\n".join(dict.fromkeys(lines))
    verdict = worst(problem.verdict for problem in problems) if problems else "pass"
    return Check(name, verdict, evidence, advice)


def of(gpus: Iterable[int]) -> str:
    """Names them: "GPU 3", "GPUs 0-3, 6"."""
    numbers = sorted(set(gpus))
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    parts = [str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs]
    return f"GPU{'s' if len(numbers) > 1 else ''} {', '.join(parts)}"


def grouped(values: Iterable[tuple[int, str]]) -> list[str]:
    """A line for each value that differs: "GPUs 0-7: x16 of x16"."""
    table: dict[str, list[int]] = {}
    for gpu, value in values:
        table.setdefault(value, []).append(gpu)
    return [f"{of(gpus)}: {value}" for value, gpus in table.items()]
