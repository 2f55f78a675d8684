"""The tables of docs/symptoms.md, made from the dictionary: `python -m tests.symptoms`."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import ModuleType

from mirror.verify import symptoms
from mirror.verify.symptoms.entry import Entry

DOC = Path(__file__).parents[1] / "docs" / "symptoms.md"
LOGS = Path(__file__).parent / "logs"


def tables() -> str:
    """A section for each topic, from the first heading to the end of the document."""
    return "\n".join(
        f"## {_title(topic)}\n"
        "| symptom | why | what to do | known from |\n|---|---|---|---|\n"
        f"{''.join(map(_row, topic.ENTRIES))}"
        for topic in symptoms.TOPICS
    )


def written() -> tuple[str, str]:
    """The document's introduction, which is written by hand, and its tables."""
    text = DOC.read_text(encoding="utf-8")
    begin = text.index("\n## ") + 1
    return text[:begin], text[begin:]


def _title(topic: ModuleType) -> str:
    return (inspect.getdoc(topic) or "").splitlines()[0].rstrip(".")


def _row(entry: Entry) -> str:
    name = f"**{entry.name}**" if entry.level == "cause" else f"*{entry.name}*"
    known = [entry.source]
    if entry.rungs:
        known.append("rungs: " + ", ".join(entry.rungs))
    cells = (
        "<br>".join([name, *map(_code, entry.patterns)]),
        _prose(entry.cause),
        _prose(entry.advice),
        "<br>".join(known),
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _prose(text: str) -> str:
    """A text whose asterisks and angle brackets mean themselves, outside code."""
    parts = text.split("`")
    parts[::2] = [part.replace("*", "\\*").replace("<", "&lt;") for part in parts[::2]]
    return "`".join(parts)


def _code(pattern: str) -> str:
    """A text as code; one with a backtick in it wants two around it."""
    return f"`` {pattern} ``" if "`" in pattern else f"`{pattern.strip()}`"


if __name__ == "__main__":
    DOC.write_text(written()[0] + tables(), encoding="utf-8")
