"""The dictionary: what a failed job's output means, and what to do about it.

`diagnose` is given what the ranks wrote. The entries stand in tables by topic, in the order in
which they are told; docs/symptoms.md is made from them. It is a guess from words, by people who met
the same words before: it decides no verdict.

A log is whatever a program printed, so nothing in it is trusted: only its beginning and its end are
read, each pattern passes over them once, and what is quoted from it has its control characters
escaped.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mirror.core.paths import shown
from mirror.verify.symptoms import (
    distributed,
    files,
    gpus,
    libraries,
    models,
    nccl,
    packages,
    processes,
    scripts,
    services,
)
from mirror.verify.symptoms.entry import LEVELS, Entry

#: The tables, in the order in which symptoms are told.
TOPICS = (gpus, nccl, distributed, libraries, packages, models, files, services, scripts, processes)
#: Every entry.
TABLE: tuple[Entry, ...] = tuple(entry for topic in TOPICS for entry in topic.ENTRIES)

#: How much of a log is read, in characters: what was warned of at the start, and how it ended.
_HEAD, _TAIL = 1_000_000, 4_000_000
#: Lines of a log that may begin like a pattern and go on differently, before it is given up.
_TRIES = 10_000
#: Longest quotation from a log, and what of it may stand before the words that were recognised.
_QUOTED, _BEFORE = 300, 100
#: What colours a terminal.
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True, slots=True)
class Symptom:
    """Something known that a log shows; the fields of mirror.verify.symptoms.entry.Entry.

    evidence: the first line that shows it, escaped, at most 300 characters.
    where: the names of the logs that show it.
    """

    name: str
    cause: str
    advice: str
    rungs: tuple[str, ...] = ()
    source: str = ""
    key: str = ""
    evidence: str = ""
    where: tuple[str, ...] = ()


def diagnose(text: str) -> list[Symptom]:
    """What is known by name in this log, what explains most first; empty when nothing is.

    Of a long text only the first million and the last four million characters count.
    """
    return diagnose_all({"": text})


def diagnose_all(logs: Mapping[str, str]) -> list[Symptom]:
    """The same for one job's several logs, by the name that each is to be called ("rank 2").

    What only repeats that another process is gone is told when no log says why.
    """
    lines: dict[str, str] = {}
    where: dict[str, list[str]] = {}
    for log, text in logs.items():
        read = _readable(text)
        for entry in TABLE:
            line = _first_line(read, entry.patterns)
            if line is not None:
                lines.setdefault(entry.key, line)
                where.setdefault(entry.key, []).append(log)
    return [
        Symptom(
            name=entry.name,
            cause=entry.cause,
            advice=entry.advice,
            rungs=entry.rungs,
            source=entry.source,
            key=entry.key,
            evidence=_quoted(lines[entry.key]),
            where=tuple(log for log in where[entry.key] if log),
        )
        for entry in _told([entry for entry in TABLE if entry.key in lines])
    ]


def excerpt(file: Path) -> str:
    """What `diagnose` reads of a log: its beginning and its end; empty when there is no such file.

    At most 5 MB of it are read, whatever its size.
    """
    try:
        with open(file, "rb") as log:
            size = os.fstat(log.fileno()).st_size
            data = log.read(_HEAD if size > _HEAD + _TAIL else _HEAD + _TAIL)
            if size > _HEAD + _TAIL:
                log.seek(size - _TAIL)
                data += b"\n" + log.read(_TAIL)
    except OSError:
        return ""
    return data.decode("utf-8", "replace")


def render(symptoms: Iterable[Symptom]) -> list[str]:
    """Lines for a terminal: of each its name, the line that shows it, its cause and the advice."""
    rows: list[str] = []
    for symptom in symptoms:
        rows += [
            symptom.name,
            f"  seen:  {symptom.evidence}{_of(symptom.where)}",
            f"  why:   {symptom.cause}",
            f"  do:    {symptom.advice}",
        ]
        if symptom.source:
            rows.append(f"  known: {symptom.source}")
    return rows


def _of(logs: Sequence[str]) -> str:
    """Which logs show it, in brackets; of many the first ones."""
    if not logs:
        return ""
    more = f" and {len(logs) - 4} more" if len(logs) > 4 else ""
    return f"  ({', '.join(shown(log) for log in logs[:4])}{more})"


def _told(found: Sequence[Entry]) -> list[Entry]:
    """Of what was found, what is worth telling, in its order."""
    hidden = {key for entry in found for key in entry.hides}
    left = [entry for entry in found if entry.key not in hidden]
    *ranked, last = ([entry for entry in left if entry.level == level] for level in LEVELS)
    return next(filter(None, ranked), []) + last


def _readable(text: str) -> str:
    """The beginning and the end of a log as plain lines: no colours, no lines drawn over."""
    if len(text) > _HEAD + _TAIL:
        text = f"{text[:_HEAD]}\n{text[-_TAIL:]}"
    if "\x1b" in text:
        text = _COLOUR.sub("", text)
    return text.replace("\r", "\n")


def _first_line(text: str, patterns: Sequence[str]) -> str | None:
    """The first line that one of the patterns fits; None for none."""
    places = [place for pattern in patterns if (place := _place(text, pattern.split("*")))]
    if not places:
        return None
    start, end = min(places)
    return text[start:end]


def _place(text: str, literals: Sequence[str]) -> tuple[int, int] | None:
    """Where the first line is that has these literals one after the other.

    Taking each at its first place after the one before finds them wherever they are at all, so no
    line is looked at twice.
    """
    first, *others = literals
    at = 0
    for _ in range(_TRIES):
        at = text.find(first, at)
        if at < 0:
            return None
        end = text.find("\n", at)
        end = end if end >= 0 else len(text)
        reached = at + len(first)
        for literal in others:
            reached = text.find(literal, reached, end)
            if reached < 0:
                break
            reached += len(literal)
        else:
            before = max(at - _BEFORE, 0)
            return max(text.rfind("\n", before, at) + 1, before), end
        at = end
    return None


def _quoted(line: str) -> str:
    """A line as it may be printed."""
    line = shown(line[: _QUOTED + 1].strip())
    return line if len(line) <= _QUOTED else f"{line[: _QUOTED - 1]}…"
