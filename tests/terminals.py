"""A real terminal for a program: one may type into it, and pull its plug."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

#: Seconds that a slow machine may take for anything.
PATIENCE = 300


class Terminal:
    """A program that has a terminal of its own; to be used with `with`."""

    def __init__(
        self,
        command: Sequence[object],
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._ours, theirs = pty.openpty()
        self._open = True
        self.screen = ""
        # setsid makes it the controlling terminal, so that Ctrl-C and a lost line are signals.
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *map(str, command)],
            cwd=cwd,
            env=environment,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._ours, keys)

    def wait_for(self, text: str, count: int = 1) -> None:
        """Wait until the screen has shown a text so many times."""
        deadline = time.monotonic() + PATIENCE
        while self.screen.count(text) < count:
            assert time.monotonic() < deadline, self.screen
            assert self._read() or self.screen.count(text) >= count, self.screen

    def ended(self) -> int:
        """Wait for the program's end, showing what it says; its exit code."""
        while self._read():
            pass
        return self.process.wait(PATIENCE)

    def close(self) -> None:
        """Pull the plug: the line is gone, as when ssh is cut."""
        if self._open:
            self._open = False
            os.close(self._ours)

    def _read(self) -> bool:
        """Take what there is; False when the program has closed its side."""
        ready, _, _ = select.select([self._ours], [], [], PATIENCE)
        assert ready, self.screen
        try:
            data = os.read(self._ours, 2**16)
        except OSError:  # as Linux tells that nobody has it open any more
            return False
        self.screen += data.decode(errors="replace")
        return bool(data)
