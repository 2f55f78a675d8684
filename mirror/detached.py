"""Work that goes on without the terminal it was started from, and how to follow it.

A detached run is a process in a session of its own: no terminal can hang it up, and no tmux, nohup
or systemd is needed. Everything about it is in its folder:

    output.log      what it says, both streams
    detached.json   what it is: its command line, its process, since when
    ended.json      how it ended, written by itself as its last act

A process id alone says little: it is used again, and another machine or container that shares the
folder has its own. So the record also holds when the process began, by the kernel, and where.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal, NoReturn, TypeAlias

from mirror.core.artifact import Json
from mirror.core.paths import shown
from mirror.core.text import human_size
from mirror.errors import MachineError, MirrorError, UsageError
from mirror.store import atomic

#: running: its process is there. ended: it left its exit code. lost: it is gone and left none.
#: elsewhere: it was started on another machine or in another container, which alone can tell.
State: TypeAlias = Literal["running", "ended", "lost", "elsewhere"]

#: Seconds between two looks at what it says.
_PULSE = 0.1
#: Of what was said before, so many bytes are shown.
_TAIL = 2**16
_RECORD, _OUTCOME, _LOG = "detached.json", "ended.json", "output.log"
_here: Path | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """A detached run.

    argv: its command line, without the program. pid, began: its process, and when that began, in
    the kernel's ticks since the machine started. host, boot, pids: the machine, which start of it,
    and the space that process ids count in. started: UTC, ISO 8601.
    """

    folder: Path
    argv: tuple[str, ...]
    pid: int
    began: int
    host: str
    boot: str
    pids: str
    started: str

    @property
    def name(self) -> str:
        """What it is called."""
        return self.folder.name

    @property
    def log(self) -> Path:
        """What it says."""
        return self.folder / _LOG

    @property
    def outcome(self) -> tuple[int, str] | None:
        """Its exit code, and when it ended; None while it has left none."""
        try:
            table = json.loads((self.folder / _OUTCOME).read_bytes())
            return int(table["code"]), str(table["ended"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    @property
    def state(self) -> State:
        """What became of it so far."""
        host, boot, pids = _place()
        if self.outcome:
            return "ended"
        if self.host != host or (self.boot == boot and self.pids != pids):
            return "elsewhere"
        if self.boot == boot and _began(self.pid) == self.began:
            return "running"
        return "ended" if self.outcome else "lost"  # it may just have ended

    def __str__(self) -> str:
        return f"{self.name} (mirror {shown(shlex.join(self.argv))}), since {self.started}"

    def lines(self) -> list[str]:
        """How to follow it, and how to end it."""
        follow = ["mirror", self.argv[0], "--attach", str(self.folder)]
        return [
            f"{self.name} goes on without this terminal (process {self.pid})",
            f"  follow it: {shlex.join(follow)}",
            f"  end it:    kill {self.pid}",
            f"  its log:   {self.log}",
        ]

    def to_json(self) -> dict[str, Json]:
        """The same, for programs."""
        outcome = self.outcome
        return {
            "name": self.name,
            "folder": str(self.folder),
            "log": str(self.log),
            "pid": self.pid,
            "started": self.started,
            "state": self.state,
            "exit_code": outcome[0] if outcome else None,
        }


def here() -> Path | None:
    """The folder of the detached run that this process is; None in any other process."""
    return _here


def detach(folder: Path, argv: Sequence[str], work: Callable[[], object]) -> Run:
    """Do `work` in a detached process; returns in this one as soon as that one is on its way.

    folder: exists, and is that run's. argv: the command line that the work is.
    The run's exit code is that of the SystemExit which `work` raises, 0 when it returns.
    Raises MachineError when another run is at work in the folder, or it cannot be written.
    """
    before = read(folder)
    if before and before.state == "running":
        raise MachineError(
            f"{before.name} is at work in {folder} (process {before.pid})",
            hint="Name another folder, or wait until it has ended.",
        )
    try:
        (folder / _OUTCOME).unlink(missing_ok=True)
        log = os.open(folder / _LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)
    except OSError as error:
        raise MachineError(f"{folder} cannot be written: {error.strerror}") from None
    sys.stdout.flush()
    sys.stderr.flush()
    told, tell = os.pipe()
    if os.fork() == 0:
        _become(folder, argv, work, log, tell)
    os.close(tell)
    os.close(log)
    with open(told, "rb") as answer:
        problem = answer.read().decode()
    run = read(folder)
    if problem != "on its way" or run is None:
        raise MachineError(f"the detached process did not start: {problem or 'it ended'}")
    return run


def _become(
    folder: Path, argv: Sequence[str], work: Callable[[], object], log: int, tell: int
) -> NoReturn:
    """Be the detached process, to its end."""
    global _here
    code = MirrorError.exit_code
    try:
        os.setsid()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        for descriptor, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, log), (2, log)):
            os.dup2(source, descriptor)
        # Nothing of whoever started this stays open: ssh would wait for it.
        os.dup2(tell, 3)
        for name in os.listdir("/proc/self/fd"):
            if int(name) > 3:
                with contextlib.suppress(OSError):
                    os.close(int(name))
        try:
            _write_record(folder, argv)
        except OSError as error:
            os.write(3, f"{error.filename}: {error.strerror}".encode())
            os._exit(code)
        os.write(3, b"on its way")
        os.close(3)
        _here = folder
        work()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 -- there is nobody above to tell
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        with contextlib.suppress(OSError):
            outcome = {"code": code, "ended": _now()}
            atomic.write(folder / _OUTCOME, json.dumps(outcome).encode())
        os._exit(code)


def read(folder: Path) -> Run | None:
    """The detached run of a folder, None when it has none."""
    try:
        table = json.loads((folder / _RECORD).read_bytes())
        table["argv"] = tuple(map(str, table["argv"]))
        return Run(folder=folder, **table)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def find(places: Iterable[Path], kind: str) -> list[Run]:
    """This user's detached runs of a kind, in folders KIND-... of these places; oldest first."""
    found = []
    for place in places:
        for folder in place.glob(f"{kind}-*"):
            with contextlib.suppress(OSError):
                run = read(folder)
                if run and (folder / _RECORD).stat().st_uid == os.geteuid():
                    found.append(run)
    return sorted(found, key=lambda run: (run.started, run.name))


def choose(places: Iterable[Path], kind: str, name: str) -> Run:
    """The run that a person means.

    name: the name of one, or its folder; empty for the one that is running, else the last.
    Raises UsageError when there is none of that name, or several are running; MachineError when
    there are none at all.
    """
    places = tuple(places)
    if name:
        folders = [Path(name), *(place / name for place in places)]
        chosen = next((run for folder in folders if (run := read(folder.absolute()))), None)
        if chosen:
            return chosen
    runs = find(places, kind)
    running = [run for run in runs if run.state == "running"]
    if name:
        raise UsageError(
            f"there is no detached run {shown(name)}",
            problems=[str(run) for run in running or runs[-5:]],
        )
    if len(running) > 1:
        raise UsageError(
            f"{len(running)} are running: name one",
            problems=[str(run) for run in running],
            hint=f"mirror {kind} --attach {running[-1].name}",
        )
    if not runs:
        raise MachineError(
            "nothing was started with --detach here",
            problems=[f"looked in {place}" for place in places],
        )
    return running[0] if running else runs[-1]


def attach(run: Run, write: Callable[[bytes], object], say: Callable[[str], object]) -> int:
    """Follow a run to its end; returns its exit code.

    write: takes what it says, as it comes; of what was said before only the end. say: takes lines
    about it. KeyboardInterrupt leaves the run as it is.
    Raises MachineError when it is gone without an exit code.
    """
    if run.state == "running":
        say(f"following {run}; Ctrl-C leaves it running")
    elif run.state == "elsewhere":
        say(f"{run.name} was started on {shown(run.host)}, and only there is seen whether it runs")
    with contextlib.suppress(FileNotFoundError), open(run.log, "rb") as file:
        skipped = max(os.fstat(file.fileno()).st_size - _TAIL, 0)
        if skipped:
            file.seek(skipped)
            skipped += len(file.readline())
            say(f"{human_size(skipped)} before this are in {run.log}")
        while True:
            state = run.state  # before the last look, so that nothing is missed
            while data := file.read(_TAIL):
                write(data)
            if state not in ("running", "elsewhere"):
                break
            time.sleep(_PULSE)
    outcome = run.outcome
    if outcome is None:
        raise MachineError(
            f"{run.name} is gone and left no exit code: it was killed, or the machine went down",
            hint=f"What it said: {run.log}",
        )
    code, ended = outcome
    say(f"{run.name} ended with exit code {code}, at {ended}")
    return code


def _write_record(folder: Path, argv: Sequence[str]) -> None:
    host, boot, pids = _place()
    pid = os.getpid()
    run = Run(folder, tuple(argv), pid, _began(pid) or 0, host, boot, pids, _now())
    table = asdict(run)
    del table["folder"]  # it may be moved
    atomic.write(folder / _RECORD, json.dumps(table, indent=2).encode())


def _place() -> tuple[str, str, str]:
    """This machine, which start of it, and the space that its process ids count in here."""
    boot = pids = ""
    with contextlib.suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        pids = os.readlink("/proc/self/ns/pid")
    return platform.node(), boot, pids


def _began(pid: int) -> int | None:
    """When the living process began, in ticks since the machine started; None without one."""
    try:
        # PID (NAME) STATE PPID ...; the name may hold anything. The 22nd field is what counts.
        rest = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if rest[0] in (b"Z", b"X") else int(rest[19])


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
