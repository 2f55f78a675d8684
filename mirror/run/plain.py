"""A command that is run as it stands, and keeps the terminal."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType

from mirror.errors import UsageError

#: Signals that are passed on to the command, where the system has them.
_PASSED = ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGCONT")
#: Of these, what a terminal sends to everybody in the foreground by itself.
_FROM_TERMINAL = ("SIGINT", "SIGQUIT", "SIGWINCH")


@dataclass(frozen=True, slots=True)
class Plain:
    """A program by its path, its arguments, and its variables."""

    command: tuple[str, ...]
    variables: Mapping[str, str] = field(hash=False)

    def run(self) -> int:
        """Run it to its end; returns its exit code, 128+N for signal N.

        Raises UsageError when the system cannot run it.
        """
        try:
            process = subprocess.Popen(self.command, env=self.variables)
        except OSError as error:
            raise UsageError(f"{self.command[0]} cannot be run: {error.strerror}") from None
        with _passing_on(process):
            code = process.wait()
        return code if code >= 0 else 128 - code


@contextmanager
def _passing_on(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Whatever signal comes to mirror goes to the command, once."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        if signal.Signals(number).name in _FROM_TERMINAL and _in_foreground():
            return  # the terminal has sent it to the command, too
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)

    known = [getattr(signal, name) for name in _PASSED if hasattr(signal, name)]
    old = {n: signal.signal(n, pass_on) for n in known if signal.getsignal(n) != signal.SIG_IGN}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _in_foreground() -> bool:
    """Whether this process's group is the one that a terminal sends its signals to."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
