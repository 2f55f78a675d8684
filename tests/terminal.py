"""A person at a terminal who types what a program asks for."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Opening a terminal without having one makes it the session's own.
_START = "import os, sys; os.open(sys.argv[1], os.O_RDWR); os.execvp(sys.argv[2], sys.argv[2:])"


@dataclass(frozen=True)
class Typed:
    """How it ended. screen: all that the terminal showed. out: stdout, which is none."""

    code: int
    screen: str
    out: str


def typed(
    command: Sequence[str],
    answers: Sequence[tuple[str, str]],
    environment: Mapping[str, str],
    *,
    cwd: str | None = None,
) -> Typed:
    """Run a command at a terminal; answer each question, once it is asked, with a line."""
    ours, theirs = os.openpty()
    screen = b""
    with subprocess.Popen(
        [sys.executable, "-c", _START, os.ttyname(theirs), *command],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=dict(environment),
        cwd=cwd,
        start_new_session=True,
    ) as process:
        os.close(theirs)
        todo, seen, limit = list(answers), 0, time.monotonic() + 120
        while time.monotonic() < limit:
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    data = os.read(ours, 4096)
                except OSError:  # nobody is there any more
                    break
                if not data:
                    break
                screen += data
            if todo and todo[0][0].encode() in screen[seen:]:
                seen = len(screen)
                # The question is shown a moment before what is typed is no longer.
                time.sleep(0.3)
                os.write(ours, f"{todo.pop(0)[1]}\n".encode())
        assert process.stdout is not None
        out = process.stdout.read().decode()
        with contextlib.suppress(OSError):
            os.close(ours)
        code = process.wait(60)
    assert not todo, screen
    return Typed(code, screen.decode(), out)
