"""The report for a terminal: a run of eight GPUs that passed fits on one screen of 80 x 40."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Sequence

from mirror.core.paths import shown
from mirror.core.text import counted, human_size, human_time
from mirror.verify import ladder
from mirror.verify.ladder import Measured
from mirror.verify.ranks import Rank
from mirror.verify.report import Check, Report, Stage, Training
from mirror.verify.units import binary, difference, rate

#: Longer lines are folded, at spaces only: a path or a variable stays whole, to be copied.
COLUMNS = 80
#: More ranks than this that are alike are one line.
_ALIKE = 4
#: Lines of one check's evidence; the page has all.
_EVIDENCE = 40
#: Of those of the stage `store`: a line a file, and the first says how many.
_FILES = 21
#: The check whose evidence is the rungs: they have a table of their own.
_LADDER = "ladder"


def lines(report: Report) -> list[str]:
    """The headline, a line a stage, what was not passed, the training runs, the NCCL settings."""
    rows = [*_folded("", report.headline), "", *_stages(report)]
    for name, training in (("single", report.single), ("multi", report.multi)):
        if training:
            rows += ["", *_training(name, training)]
    if report.further:
        rows.append("")
    for name, training in report.further:
        peak = human_size(max(rank.peak_memory for rank in training.ranks))
        rows += _folded("  ", f"{_head(name, training)}, up to {peak} a rank")
    if report.rungs:
        rows += ["", *_rungs(report.rungs)]
    return [*rows, "", shown(f"report: {report.folder / 'report.html'}")]


def _stages(report: Report) -> Iterator[str]:
    width = max((len(stage.name) for stage in report.stages), default=0)
    for stage in report.stages:
        took = f", {human_time(stage.seconds)}" if stage.seconds >= 0.1 else ""
        head = f"  {shown(stage.name):<{width}}  {stage.verdict:<4}  "
        yield from _folded(head, f"{stage.summary}{took}")
        yield from _unpassed(stage, " " * (width + 4), report.rungs)


def _unpassed(stage: Stage, indent: str, rungs: Sequence[Measured]) -> Iterator[str]:
    if stage.verdict == "skip":
        return  # its line says why
    for check in stage.checks:
        if check.verdict == "pass":
            continue
        brief = bool(rungs) and check.name == _LADDER
        most = _FILES if stage.name == "store" else _EVIDENCE
        yield from _explained(check, indent, 1 if brief else most)


def _explained(check: Check, indent: str, most: int) -> Iterator[str]:
    first, *more = check.evidence.splitlines() or [""]
    yield from _folded(f"{indent}{check.verdict:<4}  ", f"{check.name}: {first}")
    for line in more[: most - 1]:
        yield from _folded(f"{indent}      ", line)
    if (left := len(more) - most + 1) > 0 and most > 1:
        yield f"{indent}      ... {counted(left, 'more line')} in the report"
    for line in check.advice.splitlines():
        yield from _folded(f"{indent}      -> ", line)


def _training(name: str, training: Training) -> Iterator[str]:
    yield from _folded("  ", _head(name, training))
    for ranks in _alike(training.ranks):
        for row in [_together(ranks)] if len(ranks) > _ALIKE else map(_alone, ranks):
            yield from _folded("    ", row)
    if found := _bandwidth(training):
        yield from _folded("    ", found)


def _head(name: str, training: Training) -> str:
    first = training.ranks[0]
    loss = f"loss {training.losses[0]:.3f} -> {training.losses[-1]:.3f}"
    return f"{name}: {first.steps} steps, {loss}, {first.tokens_per_second:,.0f} tokens/s"


def _alike(ranks: Iterable[Rank]) -> Iterable[list[Rank]]:
    groups: dict[tuple[object, ...], list[Rank]] = {}
    for rank in ranks:
        key = (rank.world_size, rank.backend, rank.gpu, rank.on_gpu)
        groups.setdefault(key, []).append(rank)
    return groups.values()


def _alone(rank: Rank) -> str:
    # As torch has it, without "GPU-"; nvidia-smi takes its beginning, too.
    where = " ".join(filter(None, (rank.device, rank.gpu, rank.gpu_uuid[:8])))
    of = f"rank {rank.rank} of {rank.world_size}"
    return f"{of}  {rank.backend or 'alone'}  {where}  {human_size(rank.peak_memory)}"


def _together(ranks: Sequence[Rank]) -> str:
    first = ranks[0]
    kind = first.gpu or first.device.partition(":")[0]
    low, *_, high = (human_size(n) for n in sorted(rank.peak_memory for rank in ranks))
    memory = low if low == high else f"{low} to {high}"
    return f"{len(ranks)} ranks of {first.world_size}  {first.backend or 'alone'}  {kind}  {memory}"


def _bandwidth(training: Training) -> str:
    found = training.bandwidth
    size, speed = found.at_largest().get("all_reduce", (0, 0.0))
    parts = [f"all_reduce {rate(speed)} at {binary(size)}"] if speed else []
    if slowest := found.slowest_pair():
        (a, b), speed = slowest
        parts.append(f"slowest pair {a} -> {b} {rate(speed)}")
    return ", ".join(parts)


def _rungs(rungs: Sequence[Measured]) -> Iterator[str]:
    """Every rung with its price; the fastest that is right has a star."""
    best = ladder.best(rungs)
    fastest = best.speed if best else 0.0
    yield "    all_reduce          slowest pair  under these NCCL settings"
    for rung in rungs:
        right = rung.result == "right"
        pair = rung.bandwidth.slowest_pair() if right else None
        cells = (
            f"{rate(rung.speed) if right else rung.result:<10}",
            f"{'' if rung is best else difference(rung.speed, fastest):>6}",
            f"{rate(pair[1]) if pair else '':<12}",
        )
        mark = "*" if rung is best else " "
        yield from _folded(f"  {mark} {'  '.join(cells)}  ", str(rung.rung))


def _folded(head: str, text: str) -> list[str]:
    """A line; what is too long goes on below its text. Names and logs come from outside: nothing in
    them may move the cursor.
    """
    text = shown(text.expandtabs(4))
    if len(head) + len(text) <= COLUMNS:
        return [head + text]
    return textwrap.wrap(
        text,
        COLUMNS,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )
