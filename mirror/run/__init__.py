"""mirror run: a command in the current generation, under the settings that verify found.

A Python script is launched (script.py): by the environment's own interpreter, once for each GPU,
its output kept by rank, its failure explained. Any other command is run as it stands (plain.py): it
has the terminal to itself.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from mirror import detached, logs
from mirror.core.progress import Progress, Quiet
from mirror.errors import MachineError, UsageError
from mirror.run import devices
from mirror.run.failure import JobError
from mirror.run.plain import Plain
from mirror.run.script import Script
from mirror.store import environment
from mirror.store.generations import Root

__all__ = ["JobError", "Plain", "Script", "prepare", "run"]


def run(
    root: Root,
    *,
    gpus: int | None = None,
    processes: int | None = None,
    command: Sequence[str],
    log: Path | None = None,
    progress: Progress | None = None,
) -> int:
    """Run `command` in the current generation of `root`; returns its exit code, 128+N for signal N.

    gpus, processes, command: as for `prepare`. log: a new or empty folder for a script's output;
    None for a fresh one under the root's log. A detached run has its own.
    Raises JobError, which explains, when a script fails; UsageError and MachineError when it could
    not be started.
    """
    job = prepare(root, gpus=gpus, processes=processes, command=command)
    here = detached.here()
    if isinstance(job, Plain):
        if log is not None and here is None:
            raise UsageError(
                "--log is for the output of a Python script; other commands keep the terminal",
                hint="Send their output to a file yourself (> FILE), or add --detach.",
            )
        return job.run()
    folder = here or (logs.given(log) if log else logs.fresh(logs.places(root), "run"))
    return job.run(folder, progress or Quiet())


def prepare(
    root: Root, *, gpus: int | None, processes: int | None, command: Sequence[str]
) -> Plain | Script:
    """What is to be run, with every question asked that can be asked beforehand.

    command: a program and its arguments; or a Python script ("train.py", "-m", "module") and its
    arguments. gpus: a script runs once on each of so many, another command sees so many of the
    visible ones; None for a script on as many as verify proved if they are there, else on all, and
    once on a machine without any. processes: so many of a script, on the CPU.
    Raises UsageError when there is no such program or script, MachineError when nothing is
    installed or there are fewer GPUs.
    """
    if not command:
        raise UsageError("no command was given", hint="mirror run -- train.py")
    if gpus is not None and processes is not None:
        raise UsageError("--gpus runs a process on each GPU, --processes runs them on the CPU")
    table = _variables(root)
    if _is_script(command):
        python = root.current().python
        if not python.exists():
            raise MachineError(
                f"generation {root.current().number} has no Python: its bundle brought no wheels"
                " and no conda packages",
                hint="With a Python of the machine's: mirror run -- python3 "
                + (" ".join(command[:2]) if command[0] == "-m" else command[0]),
            )
        crew = devices.crew(root.current(), table, gpus=gpus, processes=processes)
        return Script(python, tuple(command), crew, table)
    program = shutil.which(command[0], path=table["PATH"])
    if program is None and command[0].endswith(".py"):
        raise UsageError(f"there is no {command[0]} in {os.getcwd()}")
    if program is None:
        raise UsageError(
            f"{command[0]} is neither in the environment nor on PATH",
            hint="Write the program and its arguments after --, as in: mirror run -- python x.py",
        )
    if processes is not None:
        raise UsageError(
            f"--processes is for a Python script, and {command[0]} is a program",
            hint="mirror run --processes 2 -- train.py",
        )
    if gpus is not None:
        table["CUDA_VISIBLE_DEVICES"] = ",".join(devices.first(gpus, table))
    return Plain((program, *command[1:]), table)


def _is_script(command: Sequence[str]) -> bool:
    """Whether it is a Python file that is there, or a module."""
    if command[0] == "-m":
        if len(command) < 2:
            raise UsageError("-m names no module", hint="mirror run -- -m package.train")
        return True
    return command[0].endswith(".py") and os.path.isfile(command[0])


def _variables(root: Root) -> dict[str, str]:
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
    return table
