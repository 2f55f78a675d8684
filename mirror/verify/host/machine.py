"""All that the host's checks read of a machine, in one value: tests put captured texts there."""

from __future__ import annotations

import os
import platform
import shutil
import socket
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeAlias

from mirror import hardware, machine
from mirror.hardware import Answer

#: A program and its arguments.
Command: TypeAlias = tuple[str, ...]
#: More of a file than this says nothing about a machine.
_LARGEST = 2**20
#: For programs that ask a driver, which may have to start all GPUs first; seconds.
_LIMIT = 60.0


class Room(NamedTuple):
    """Of a file system: its size, and what an ordinary user can still write; bytes."""

    total: int
    free: int


class Machine:
    """This machine. Each program is run once, whatever asks for its answer."""

    def __init__(self) -> None:
        self._answers: dict[Command, Answer | None] = {}

    @property
    def environ(self) -> Mapping[str, str]:
        """The variables that children will inherit."""
        return os.environ

    @property
    def home(self) -> str:
        """The user's own folder."""
        return str(Path.home())

    @property
    def processor(self) -> str:
        """The instruction set: "x86_64"."""
        return platform.machine()

    @property
    def glibc(self) -> str:
        """The C library's version ("2.36"); empty where it is another one."""
        return machine.this_glibc()

    def read(self, path: str) -> str | None:
        """A file's text; None when it cannot be read."""
        try:
            with open(path, "rb") as file:
                return file.read(_LARGEST).decode("utf-8", "replace")
        except OSError:
            return None

    def names(self, folder: str) -> list[str]:
        """What a folder holds, in order; nothing when it cannot be read."""
        try:
            return sorted(os.listdir(folder))
        except OSError:
            return []

    def exists(self, path: str) -> bool:
        """Whether there is something by this name."""
        return os.path.lexists(path)

    def room(self, folder: str) -> Room | None:
        """In the file system of `folder`; None when there is none."""
        try:
            used = shutil.disk_usage(folder)
        except OSError:
            return None
        return Room(used.total, used.free)

    def talks_to_itself(self) -> str:
        """Why processes of this machine cannot reach each other on 127.0.0.1; empty: they can."""
        try:
            with socket.socket() as listener:
                listener.bind(("127.0.0.1", 0))
                listener.listen(1)
                with socket.create_connection(listener.getsockname(), timeout=5):
                    return ""
        except OSError as error:
            return error.strerror or str(error)

    def tool(self, *command: str, limit: float = _LIMIT) -> Answer | None:
        """What a program answers; None when it is not here."""
        if command not in self._answers:
            self._answers[command] = self.run(command, limit)
        return self._answers[command]

    def ask(self, commands: Iterable[Command]) -> None:
        """Run these all at once, so that `tool` has their answers."""
        missing = [command for command in commands if command not in self._answers]
        if missing:
            with ThreadPoolExecutor(len(missing)) as pool:
                answers = pool.map(lambda command: self.run(command, _LIMIT), missing)
                self._answers.update(zip(missing, answers, strict=True))

    def run(self, command: Command, limit: float) -> Answer | None:
        """Run a program; `tool` remembers what it says."""
        return hardware.answer(*command, limit=limit)


def words(answer: Answer | None, program: str) -> str:
    """Why a program gave no usable answer, on one line."""
    if answer is None:
        return f"there is no {program}"
    if answer.code is None:
        return f"{program} does not answer"
    lines = [line.strip() for line in f"{answer.out}\n{answer.err}".splitlines() if line.strip()]
    said = " ".join(lines)[:300] or "it said nothing"
    return f"{program} ended with exit code {answer.code}: {said}"


#: What tells a container, and what to call it.
_MARKS = (
    ("KUBERNETES_SERVICE_HOST", "Kubernetes"),
    ("APPTAINER_CONTAINER", "Apptainer"),
    ("SINGULARITY_CONTAINER", "Singularity"),
)
_FILES = (("/.dockerenv", "Docker"), ("/run/.containerenv", "Podman"))


def container(here: Machine) -> str:
    """What kind of container this is in ("Docker"); empty in none, or in one that hides it."""
    for variable, name in _MARKS:
        if variable in here.environ:
            return name
    for path, name in _FILES:
        if here.exists(path):
            return name
    groups = here.read("/proc/1/cgroup") or ""
    if any(mark in groups for mark in ("/docker", "/kubepods", "/lxc", "containerd")):
        return "a container"
    return "a container" if here.environ.get("container") else ""
