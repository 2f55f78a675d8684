"""A command of mirror, run under the tracer in a child that has everything imported already."""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

# What the commands import late, so that no child has to.
import mirror.build
import mirror.cli
import mirror.console
import mirror.gc
import mirror.install
import mirror.project
from tests.faults.calls import CHANGING, NAMES, SYNCS, WRITES, Call, decoded, written
from tests.faults.ptrace import Stop, Tracer

_WHOLE_SYNCS = [number for number, name in NAMES.items() if name in ("sync", "syncfs")]


@dataclass(frozen=True, slots=True)
class Command:
    """What is run, where, and which folders are looked at."""

    arguments: Sequence[str]
    folder: Path
    watched: Sequence[Path]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: its exit code, negative for a signal; what it said; what it called.

    hit: the call that was killed, refused or held up; None when it was never reached.
    """

    code: int
    said: str
    calls: list[Call]
    hit: Call | None = None


def run(command: Command) -> Ended:
    """Run it, and see how it ends."""
    return _traced(command, _WHOLE_SYNCS)


def record(command: Command) -> Ended:
    """Run it, and note every call that may change a watched folder, with the bytes written."""
    return _traced(command, CHANGING, whole=True)


def listed(command: Command) -> Ended:
    """Run it, and note every call that touches a watched folder, reads too."""
    return _traced(command, NAMES)


def killed(command: Command, at: int) -> Ended:
    """Run it until before its changing call number `at`, from 0; then kill -9."""
    return _traced(command, CHANGING, at, "kill")


def refused(command: Command, at: int, number: int, *, reads: bool = False) -> Ended:
    """Have call number `at` fail with an error; of all calls, or of those that change something."""
    return _traced(command, NAMES if reads else CHANGING, at, "refuse", number)


def held_up(command: Command, at: int, rival: Command) -> tuple[Ended, Ended | None]:
    """Run another command while it stands before its changing call number `at`.

    The second is None when that call was never reached.
    """
    seen: list[Ended] = []
    ended = _traced(command, CHANGING, at, "wait", meanwhile=lambda: seen.append(_alone(rival)))
    return ended, seen[0] if seen else None


def _alone(command: Command) -> Ended:
    """Run it without a tracer, while one waits for others."""
    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if not child:
            _work(command, said.fileno())
        _, status = os.waitpid(child, 0)
        return Ended(os.waitstatus_to_exitcode(status), _read(said.fileno()), [])


def _traced(
    command: Command,
    numbers: Sequence[int] | Mapping[int, str],
    at: int = -1,
    act: str = "",
    number: int = 0,
    *,
    meanwhile: Callable[[], None] = lambda: None,
    whole: bool = False,
) -> Ended:
    watched = tuple(f"{os.path.realpath(folder)}" for folder in command.watched)
    calls: list[Call] = []
    begun: dict[int, Call] = {}
    waiting: deque[tuple[Stop, Call]] = deque()
    hit = None
    with tempfile.TemporaryFile() as said:
        tracer = Tracer(numbers, lambda: _work(command, said.fileno()))
        for stop in tracer.stops():
            if stop.result is not None:
                call = replace(begun.pop(stop.thread), result=stop.result)
                if call.name in WRITES:
                    data, place = written(stop)
                    call = replace(call, data=data, at=place)
                calls.append(call)
                tracer.go_on(stop)
                if waiting and not _busy(begun):
                    then, call = waiting.popleft()
                    begun[then.thread] = replace(call, since=len(calls))
                    tracer.go_on(then, until_done=True)
                continue
            call = decoded(stop)
            # The power is never cut here, and to wait for every disk of the machine takes long.
            skipped = stop.number in _WHOLE_SYNCS
            go_on = partial(tracer.refuse, stop, 0) if skipped else partial(tracer.go_on, stop)
            if not _touches(call, watched) or (numbers is CHANGING and not call.changes):
                go_on()
                continue
            if whole and skipped:
                calls.append(replace(call, since=len(calls), result=0))
                go_on()
                continue
            if whole and _busy(begun):
                waiting.append((stop, call))  # or nobody could tell which of the two was first
                continue
            if whole:
                begun[stop.thread] = replace(call, since=len(calls))
                tracer.go_on(stop, until_done=True)
                continue
            calls.append(call)
            if len(calls) - 1 != at:
                go_on()
                continue
            hit = call
            if act == "kill":
                tracer.kill()
            elif act == "refuse":
                tracer.refuse(stop, number)
            else:
                meanwhile()
                go_on()
        assert tracer.status is not None, "the child has ended"
        return Ended(tracer.status, _read(said.fileno()), calls, hit)


def _busy(begun: Mapping[int, Call]) -> bool:
    """Whether something is changed just now; a sync may take its time beside other calls."""
    return any(call.name not in SYNCS for call in begun.values())


def _touches(call: Call, watched: tuple[str, ...]) -> bool:
    if call.name == "sync":
        return True
    return any(
        path == folder or path.startswith(folder + "/") for path in call.paths for folder in watched
    )


def _work(command: Command, said: int) -> int:
    """In the child: the command line as a process of its own has it; never returns."""
    code = 120
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(said, 1)
        os.dup2(said, 2)
        os.chdir(command.folder)
        os.environ.update(command.environment)
        sys.argv = ["mirror", *command.arguments]
        try:
            mirror.cli.main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001 -- told in what it said, and by the code
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _read(file: int) -> str:
    size = os.fstat(file).st_size
    return os.pread(file, size, 0).decode(errors="replace")
