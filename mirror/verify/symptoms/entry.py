"""What an entry of the dictionary holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

#: How much a symptom explains.
#: cause: what went wrong. general: that something did, as a signal or a code that has many causes.
#: echo: what a process says because another one is gone. notice: something harmless by itself.
#: Of causes, generals and echoes only the first kind that was found is told: so the ranks that
#: lost a peer never hide what killed it.
Level: TypeAlias = Literal["cause", "general", "echo", "notice"]
LEVELS: tuple[Level, ...] = ("cause", "general", "echo", "notice")


@dataclass(frozen=True, slots=True)
class Entry:
    """A symptom that is known by name.

    key: its name for programs; tests/logs/KEY.txt shows it.
    name: what people read. cause: why it happens. advice: what to do on a server without a network.
    patterns: literal texts, of which one stands in a line of the log; `*` stands for anything
        between, within the line. Case counts. Literals, so that no log can make the search slow.
    rungs: of the NCCL ladder, what is worth trying, the likeliest first.
    hides: keys of what need not be told beside this one: the same event, said in general words.
    source: where it was described ("nccl 1838" is issue 1838 of that project), or seen.
    """

    key: str
    name: str
    patterns: tuple[str, ...]
    cause: str
    advice: str
    level: Level = "cause"
    rungs: tuple[str, ...] = ()
    hides: tuple[str, ...] = ()
    source: str = ""
