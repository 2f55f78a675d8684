"""mirror run: a command in the current generation, under the settings that verify found."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from mirror.errors import MachineError, UsageError
from mirror.store import environment
from mirror.store.generations import Root

#: Signals that are passed on to the command, where the system has them.
_PASSED = ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGCONT")
#: Of these, what a terminal sends to everybody in the foreground by itself.
_FROM_TERMINAL = ("SIGINT", "SIGQUIT", "SIGWINCH")


def run(root: Root, *, gpus: int | None, command: Sequence[str]) -> int:
    """Run `command` in the current generation of `root`; returns its exit code, 128+N for signal N.

    gpus: how many of the visible GPUs it sees; None for all.
    Raises UsageError when there is no such program, MachineError when nothing is installed or there
    are fewer GPUs.
    """
    if not command:
        raise UsageError("no command was given", hint="mirror run -- python train.py")
    variables = _variables(root, gpus)
    program = shutil.which(command[0], path=variables["PATH"])
    if program is None:
        raise UsageError(
            f"{command[0]} is neither in the environment nor on PATH",
            hint="Write the program and its arguments after --, as in: mirror run -- python x.py",
        )
    try:
        process = subprocess.Popen([program, *command[1:]], env=variables)
    except OSError as error:
        raise UsageError(f"{program} cannot be run: {error.strerror}") from None
    with _passing_on(process):
        code = process.wait()
    return code if code >= 0 else 128 - code


def _variables(root: Root, gpus: int | None) -> dict[str, str]:
    generation = root.current()
    table = dict(os.environ)
    for name in ("PYTHONHOME", "__PYVENV_LAUNCHER__"):
        table.pop(name, None)
    table |= environment.variables(generation)
    table["MIRROR_ROOT"] = str(root.path)
    prefix = [str(folder) for folder in environment.path_prefix(generation)]
    table["PATH"] = os.pathsep.join([*prefix, table.get("PATH", os.defpath)])
    # Every rank of a launcher finds the project's own packages, wherever its script lies.
    paths = [os.getcwd(), table.get("PYTHONPATH", "")]
    table["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    if gpus is not None:
        table["CUDA_VISIBLE_DEVICES"] = ",".join(_first(gpus, table))
    return table


def _first(gpus: int, table: dict[str, str]) -> list[str]:
    """The first GPUs of those that are visible now."""
    from mirror.verify import host

    found = host.visible_gpus()
    visible = table.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        entries = [entry.strip() for entry in visible.split(",") if entry.strip()]
    else:
        entries = [gpu.index for gpu in found or ()]
    count = len(entries) if found is None else min(len(entries), len(found))
    if count < gpus:
        seen = "nvidia-smi is not here" if found is None else f"nvidia-smi sees {len(found)}"
        raise MachineError(
            f"{gpus} GPUs were asked for, and {count} are visible ({seen}; CUDA_VISIBLE_DEVICES is"
            f" {visible if visible is not None else 'not set'})",
            hint="Ask for fewer with --gpus.",
        )
    return entries[:gpus]


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
