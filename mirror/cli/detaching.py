"""Going on without a terminal, and following what did."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from mirror.errors import Interrupted

if TYPE_CHECKING:
    from mirror.console import Console
    from mirror.store.generations import Root


def go_on_alone(console: Console, folder: Path) -> int:
    """This same command, detached: in a process that keeps what it says in `folder`."""
    from mirror import detached
    from mirror.cli import main

    started = detached.detach(folder.absolute(), sys.argv[1:], main)
    console.result(started.lines(), started.to_json())
    return 0


def follow(console: Console, root: Root, kind: str, name: str) -> int:
    """Show what a detached run says until it ends; returns its exit code."""
    from mirror import detached, logs

    followed = detached.choose(logs.places(root), kind, name)
    if not name and followed.state != "running":
        console.step(f"nothing is running; the last was {followed}")
    stream = sys.stderr if console.as_json else sys.stdout

    def write(data: bytes) -> None:
        while data:
            data = data[os.write(stream.fileno(), data) :]

    try:
        code = detached.attach(followed, write, console.step)
    except (KeyboardInterrupt, BrokenPipeError):
        console.step(f"{followed.name} goes on; mirror {kind} --attach follows it again")
        return Interrupted.exit_code
    if console.as_json:
        console.result([], followed.to_json())
    return code
