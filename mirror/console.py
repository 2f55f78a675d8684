"""The only module that prints: results to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import TYPE_CHECKING, TextIO

from mirror.core.text import human_time
from mirror.errors import MirrorError

if TYPE_CHECKING:
    from mirror.core.artifact import Json
    from mirror.core.progress import Advance


class Console:
    """What one command says, and how: a Progress for the use cases, and results."""

    def __init__(
        self, *, as_json: bool = False, quiet: bool = False, verbose: bool = False
    ) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.verbose = verbose
        self._since = time.monotonic()
        terminal = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._bars = terminal and not quiet
        self._colour = terminal and "NO_COLOR" not in os.environ

    def step(self, text: str) -> None:
        """One line for one finished step, with the seconds since the one before."""
        now = time.monotonic()
        seconds, self._since = now - self._since, now
        if not self.quiet:
            took = f"  ({human_time(seconds)})" if seconds >= 0.05 else ""
            self._say(f"{self._paint('·', 32)} {text}{self._paint(took, 2)}")

    def detail(self, text: str) -> None:
        """A line that only -v shows."""
        if self.verbose:
            self._say(f"  {text}")

    def warn(self, text: str) -> None:
        """Something that did not stop the work but that a person must read."""
        self._say(f"{self._paint('warning:', 33)} {text}")

    @contextmanager
    def bar(self, label: str, total: int, unit: str = "B") -> Iterator[Advance]:
        """A bar with rate and time left on a terminal; silence elsewhere."""
        if not self._bars:
            yield lambda amount: None
            return
        from tqdm import tqdm

        lock = Lock()
        with tqdm(
            desc=f"  {label}",
            total=total,
            unit=unit,
            unit_scale=True,
            leave=False,
            delay=0.3,
            dynamic_ncols=True,
            file=sys.stderr,
        ) as meter:

            def advance(amount: int) -> None:
                with lock:
                    meter.update(amount)

            yield advance

    def result(self, lines: Sequence[str], document: Json) -> None:
        """What the command was asked for: lines for people, or one JSON document."""
        if self.as_json:
            _write(sys.stdout, json.dumps(document, indent=2, sort_keys=True))
        else:
            _write(sys.stdout, "\n".join(lines))

    def error(self, error: MirrorError) -> None:
        """What went wrong, where, and what to do next."""
        if self.as_json:
            document = {
                "error": {
                    "exit_code": error.exit_code,
                    "message": error.message,
                    "problems": list(error.problems),
                    "hint": error.hint,
                }
            }
            _write(sys.stdout, json.dumps(document, indent=2, sort_keys=True))
        self._say(f"{self._paint('error:', 31)} {error.message}")
        for problem in error.problems:
            self._say("\n".join(f"  {line}" for line in problem.splitlines()))
        if error.hint:
            self._say(error.hint)

    def _say(self, text: str) -> None:
        if self._bars:
            from tqdm import tqdm

            with tqdm.external_write_mode(file=sys.stderr):
                _write(sys.stderr, text)
        else:
            _write(sys.stderr, text)

    def _paint(self, text: str, code: int) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour and text else text


def _write(stream: TextIO, text: str) -> None:
    """Print, also to a terminal whose encoding lacks a character."""
    encoding = stream.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)
