"""Machines as their own tools print them: tests/machines, whose README says how to add one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from mirror.hardware import Answer
from mirror.verify.host.machine import Command, Machine, Room

MACHINES = Path(__file__).parent / "machines"


def file_name(command: Command) -> str:
    """Of a command's output; the README's shell function gives the same."""
    return re.sub(r"[^A-Za-z0-9.-]+", "_", " ".join(command))


class Captured(Machine):
    """A machine of tests/machines, perhaps with some of its texts changed."""

    def __init__(self, name: str | Path) -> None:
        super().__init__()
        self.folder = MACHINES / name
        text = (self.folder / "files").read_text(encoding="utf-8", errors="replace")
        parts = re.split(r"(?m)^\n?==> (.+) <==\n", text)[1:]
        self.files = dict(zip(parts[::2], parts[1::2], strict=True))
        self.paths = set((self.folder / "paths").read_text(encoding="utf-8").split())
        lines = (self.folder / "env").read_text(encoding="utf-8").splitlines()
        self.variables = {k: v for k, _, v in (line.partition("=") for line in lines)}
        self.answers: dict[Command, Answer | None] = {}
        self.loopback = True

    @property
    def environ(self) -> Mapping[str, str]:
        return self.variables

    @property
    def home(self) -> str:
        return self.variables["HOME"]

    @property
    def processor(self) -> str:
        return "x86_64"

    @property
    def glibc(self) -> str:
        return ""

    def read(self, path: str) -> str | None:
        return self.files.get(path)

    def names(self, folder: str) -> list[str]:
        start = folder.rstrip("/") + "/"
        known = self.paths | self.files.keys()
        return sorted({p[len(start) :].partition("/")[0] for p in known if p.startswith(start)})

    def exists(self, path: str) -> bool:
        return path in self.paths or path in self.files

    def room(self, folder: str) -> Room | None:
        rows = [line.split() for line in self.said("df", "-PB1").splitlines()[1:]]
        inside = [r for r in rows if folder == r[5] or folder.startswith(r[5].rstrip("/") + "/")]
        best = max(inside, key=lambda row: len(row[5]), default=None)
        return Room(int(best[1]), int(best[3])) if best else None

    def talks_to_itself(self) -> str:
        return "" if self.loopback else "Network is unreachable"

    def run(self, command: Command, limit: float) -> Answer | None:
        if command in self.answers:
            return self.answers[command]
        file = self.folder / file_name(command)[:200]
        if not file.is_file():
            return None
        code = file.with_name(f"{file.name}.rc")
        number = int(code.read_text(encoding="ascii")) if code.is_file() else 0
        if number == 127:  # how a shell says that there is no such program
            return None
        return Answer(number, file.read_text(encoding="utf-8", errors="replace"))

    # -- what differs on this machine from the captured one

    def said(self, *command: str) -> str:
        """What a command prints there."""
        answer = self.run(command, 0)
        assert answer is not None, command
        return answer.out

    def says(self, *command: str, out: str | None, code: int | None = 0) -> Captured:
        """A command answers this instead; None: there is no such program."""
        self.answers[command] = None if out is None else Answer(code, out)
        self._answers.pop(command, None)
        return self

    def edit(self, command: Command, old: str, new: str, count: int = -1) -> Captured:
        """Change a command's output; `old` has to be in it."""
        text = self.said(*command)
        assert old in text, old
        answer = self.run(command, 0)
        return self.says(
            *command, out=text.replace(old, new, count), code=answer.code if answer else 0
        )

    def edit_file(self, path: str, old: str, new: str) -> Captured:
        """Change a file's text; `old` has to be in it."""
        assert old in self.files[path], old
        self.files[path] = self.files[path].replace(old, new)
        return self
