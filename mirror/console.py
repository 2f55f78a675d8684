"""The only module that prints: results to stdout, everything else to stderr."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, NoReturn, TextIO

from mirror.core.text import human_size, human_time
from mirror.errors import MirrorError

if TYPE_CHECKING:
    from mirror.core.artifact import Json
    from mirror.core.progress import Advance

#: Seconds between two looks of a bar, and before the first; between two lines of a log.
_REFRESH = 0.2
_DELAY = 0.3
_REPORT = 30.0


class Console:
    """What one command says, and how: a Progress for the use cases, and results."""

    def __init__(
        self, *, as_json: bool = False, quiet: bool = False, verbose: bool = False
    ) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.verbose = verbose
        self._since = time.monotonic()
        terminal = _is_terminal(sys.stderr) and os.environ.get("TERM") != "dumb"
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
    def bar(
        self,
        label: str,
        total: int,
        unit: str = "B",
        *,
        done: int = 0,
        names: Callable[[], Sequence[str]] = tuple,
    ) -> Iterator[Advance]:
        """How far it is, with rate, time left and what is worked on: a bar on a terminal.

        A log has none of it; with -v it gets a line every 30 seconds. With -q there is nothing.
        """
        count = _Count(done)
        if self._bars:
            with _meter(label, total, unit, count, names) as show, _repeated(show, _REFRESH):
                yield count.advance
        elif self.verbose and not self.quiet:
            report = _Report(label, total, unit, count, self._say)
            with _repeated(report.say, _REPORT):
                yield count.advance
        else:
            yield count.advance

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


class _Count:
    """How many are done; may grow in any thread."""

    def __init__(self, done: int) -> None:
        self.done = done
        self._lock = Lock()

    def advance(self, amount: int) -> None:
        with self._lock:
            self.done += amount


class _Report:
    """Lines that tell how far a long work is."""

    def __init__(
        self, label: str, total: int, unit: str, count: _Count, say: Callable[[str], None]
    ) -> None:
        self._label, self._total, self._unit = label, total, unit
        self._count, self._say = count, say
        self._last, self._since = count.done, time.monotonic()

    def say(self) -> None:
        """One line, with the rate since the last."""
        done, now = self._count.done, time.monotonic()
        gained, seconds = done - self._last, now - self._since
        self._last, self._since = done, now
        if self._unit == "B":
            text = f"{human_size(done)} of {human_size(self._total)}"
            text += f", {human_size(round(max(gained, 0) / seconds))}/s"
        else:
            text = f"{done:,} of {self._total:,} {self._unit}"
        if gained > 0:
            text += f", {human_time((self._total - done) * seconds / gained)} left"
        self._say(f"  {self._label}: {text}")


@contextmanager
def _meter(
    label: str, total: int, unit: str, count: _Count, names: Callable[[], Sequence[str]]
) -> Iterator[Callable[[], None]]:
    """A bar, and a line below it with what is worked on; yields what draws both anew."""
    from tqdm import tqdm

    with ExitStack() as lines:
        meter = lines.enter_context(
            tqdm(
                desc=f"  {label}",
                total=total,
                initial=count.done,
                unit=unit,
                unit_scale=True,
                leave=False,
                delay=_DELAY,
                miniters=0,
                dynamic_ncols=True,
                file=sys.stderr,
            )
        )
        below: list[tqdm[NoReturn]] = []

        def show() -> None:
            if not meter.update(count.done - meter.n):
                return
            text = fitted(names(), (meter.ncols or 80) - 5)
            if text and not below:  # not before the bar is there: short work shows neither
                line = tqdm(bar_format="{desc}", leave=False, position=1, file=sys.stderr)
                below.append(lines.enter_context(line))
            for line in below:
                line.set_description_str(f"    {text}")

        yield show


@contextmanager
def _repeated(work: Callable[[], None], seconds: float) -> Iterator[None]:
    """Do it every so often, in a thread, until the block ends."""
    over = Event()

    def repeat() -> None:
        while not over.wait(seconds):
            work()

    thread = Thread(target=repeat, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def fitted(names: Sequence[str], width: int) -> str:
    """The first names, as many as fit beside the number of the others; long ones are cut."""
    text = ""
    for shown, name in enumerate(names):
        rest = len(names) - shown - 1
        more = f" and {rest} more" if rest else ""
        longer = f"{text}, {name}" if text else name
        if len(longer) + len(more) > width:
            if text:
                return f"{text} and {rest + 1} more"
            keep = max(width - len(more) - 1, 1)
            return f"…{name[-keep:]}{more}"
        text = longer
    return text


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def _write(stream: TextIO | None, text: str) -> None:
    """Print, also to a terminal whose encoding lacks a character.

    When nobody can be told (a closed stream, a pipe whose reader has left, a log on a full disk),
    the work goes on, and its exit code says how it ended. Raises OSError for a result on a full
    disk.
    """
    if stream is None:
        return
    encoding = stream.encoding or "utf-8"
    try:
        print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)
    except OSError as error:
        if stream is sys.stdout and not isinstance(error, BrokenPipeError):
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
