"""Processes that this one started, directly or not: found, and ended whatever happens."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

#: Seconds between the request to end (SIGTERM) and the end (SIGKILL), and after that.
GRACE = 5.0
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


@contextmanager
def nothing_left_behind() -> Iterator[None]:
    """Whatever is started inside and still runs at the exit is ended, however the exit comes.

    On Linux this process adopts the orphans among its descendants, so that none escapes: each of
    torch's workers is a session of its own, and outlives a launcher that is killed. SIGTERM and a
    lost terminal (SIGHUP) end the block as Ctrl-C does; while it cleans up, all three are ignored.
    """
    _adopt(True)
    before = descendants()
    with _handlers(_interrupt, signal.SIGTERM, signal.SIGHUP):
        try:
            yield
        finally:
            with _handlers(signal.SIG_IGN, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                end(before)
                _adopt(False)


def _adopt(orphans: bool) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(orphans), 0, 0, 0)


def ended_with_us() -> None:
    """In a child before it becomes its program: SIGTERM comes to it when this process is gone.

    However that went, SIGKILL as well. For subprocess's `preexec_fn`, in a process of one thread.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def children(pid: int) -> set[int]:
    """The ids of the living processes that the process `pid` has started and not lost."""
    return {child for child, (parent, state) in _table().items() if parent == pid and state != "Z"}


def descendants() -> set[int]:
    """The ids of the living processes below this one."""
    return _living(_table())


def end(before: set[int], launcher: subprocess.Popen[bytes] | None = None) -> None:
    """End every descendant that is not in `before`, and reap those that nobody else will.

    All are asked, then forced; only `launcher`, if given, is asked for the others: it knows how to
    end them.
    """
    for attempt in (signal.SIGTERM, signal.SIGKILL):
        living = descendants() - before
        asked = {launcher.pid} & living if launcher and attempt == signal.SIGTERM else set()
        for pid in asked or living:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, attempt)
        if _all_ended(before, launcher):
            return


def _all_ended(before: set[int], launcher: subprocess.Popen[bytes] | None) -> bool:
    """Wait for GRACE; whether nobody is left then.

    A look at all processes takes a while, and one whose parent ends meanwhile can be missed: only
    two looks in a row that find nobody, alive or dead, are believed.
    """
    me, empty = os.getpid(), 0
    deadline = time.monotonic() + GRACE
    while time.monotonic() < deadline:
        if launcher:
            launcher.poll()
        table = _table()
        dead = {pid for pid, row in table.items() if row == (me, "Z")} - before
        for pid in dead - ({launcher.pid} if launcher else set()):  # its Popen reaps that one
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        empty = 0 if dead or _living(table) - before else empty + 1
        if empty == 2:
            return True
        time.sleep(0.01)
    return False


def is_stopped(pid: int) -> bool:
    """Whether somebody stopped it (SIGSTOP, a debugger)."""
    return _table().get(pid, (0, ""))[1] in ("T", "t")


def _living(table: dict[int, tuple[int, str]]) -> set[int]:
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in table.items():
        children.setdefault(parent, []).append(pid)
    found: set[int] = set()
    waiting = [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), [])
        found.update(below)
        waiting += below
    return {pid for pid in found if table[pid][1] != "Z"}


def _table() -> dict[int, tuple[int, str]]:
    """Every process: id -> (parent's id, state's letter)."""
    if sys.platform == "linux":
        return dict(_from_proc())
    done = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,state="], capture_output=True, text=True, check=True
    )
    rows = (line.split() for line in done.stdout.splitlines())
    return {int(pid): (int(parent), state[0]) for pid, parent, state in rows}


def _from_proc() -> Iterator[tuple[int, tuple[int, str]]]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):  # it has just ended
                # PID (NAME) STATE PPID ...; the name may hold anything, parentheses too.
                rest = (folder / "stat").read_bytes().rpartition(b")")[2].split()
                yield int(folder.name), (int(rest[1]), rest[0].decode())


@contextmanager
def _handlers(action: signal._HANDLER, *numbers: signal.Signals) -> Iterator[None]:
    """Handle these signals so for a while; those that are ignored (nohup) stay ignored.

    Only the main thread may set handlers; on another one this does nothing.
    """
    main = threading.current_thread() is threading.main_thread()
    changed = [n for n in numbers if main and signal.getsignal(n) != signal.SIG_IGN]
    old = {number: signal.signal(number, action) for number in changed}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
