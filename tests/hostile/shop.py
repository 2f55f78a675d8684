"""One hostile input, given to the real command; and everything that it must not have done."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeAlias

import pytest
from click.testing import CliRunner

from mirror.bundle import layout
from mirror.cli import cli
from tests import bundles

FILES = {
    "files/a": b"hello\n",
    "files/m": random.Random(1).randbytes(300_000),
    "files/z": b"end",
}


@dataclass
class Shop:
    """A folder with a right bundle in it, and a place for a wrong one.

    patch: of the environment that the command is started in.
    """

    folder: Path
    patch: pytest.MonkeyPatch

    @property
    def root(self) -> Path:
        """Where it is to be installed."""
        return self.folder / "root"

    @cached_property
    def sources(self) -> bundles.Sources:
        """What the right bundle is made of."""
        return bundles.sources(self.folder / "in", FILES)

    @cached_property
    def data(self) -> bytes:
        """The right bundle."""
        return self.sources.pack(self.folder / "right.tar.gz")

    @property
    def index(self) -> bytes:
        """Its index."""
        return self.sources.index.to_bytes()

    @property
    def tar(self) -> bytearray:
        """The tar in it; a fresh copy."""
        return bytearray(gzip.decompress(self.data))

    def header(self, path: str) -> int:
        """Where in the tar the header of this file is."""
        return self.tar.index(layout.member_header(path, len(FILES[path]), 0o644))

    def bundle(self, data: bytes) -> list[object]:
        """Arguments: a bundle of these bytes."""
        path = self.folder / "wrong.tar.gz"
        path.write_bytes(data)
        return [path]

    def framed(self, tar: bytes) -> list[object]:
        """Arguments: a bundle with this tar in right framing."""
        return self.bundle(bundles.framed(tar))

    def headed(self, index: bytes) -> list[object]:
        """Arguments: a bundle with this index, which ships nothing."""
        return self.framed(layout.head(index, b"") + layout.END)

    def run(self, *arguments: object) -> tuple[int, str]:
        """The command in this process: exit code and all that it says."""
        umask = os.umask(0o022)
        try:
            done = CliRunner().invoke(cli, [str(argument) for argument in arguments])
        finally:
            os.umask(umask)
        if done.exception and not isinstance(done.exception, SystemExit):
            return done.exit_code, f"Traceback: {done.exception!r}"
        return done.exit_code, done.output


#: Makes the input; returns what `mirror install` is to be given.
Make: TypeAlias = Callable[[Shop], Sequence[object]]


@dataclass(frozen=True)
class Row:
    """One input. code: the exit code of what refuses it. says: what stands in the message.

    untouched: whether not even the root may be there then; else it may have whole blobs.
    """

    name: str
    code: int
    says: str
    make: Make
    untouched: bool = True


def complaints(row: Row, folder: Path) -> list[str]:
    """Give the input to `mirror install`: what was not as promised, a line each."""
    with pytest.MonkeyPatch.context() as patch:
        home = folder / "home"
        home.mkdir()
        for name in [name for name in os.environ if name.startswith("MIRROR_")]:
            patch.delenv(name)
        patch.setenv("HOME", str(home))
        patch.setenv("XDG_CONFIG_HOME", str(folder / "config"))
        shop = Shop(folder, patch)
        names = row.make(shop)
        before = state(folder, shop.root)
        installed = os.path.lexists(shop.root / "current")
        generation = os.readlink(shop.root / "current") if installed else None
        code, said = shop.run("install", *names, "--root", shop.root)
        found = [] if code == row.code else [f"exit code {code}, not {row.code}"]
        if not re.search(row.says, said):
            found.append(f"the message says nothing of {row.says}")
        if any(not line.isprintable() for line in said.splitlines()) or "Traceback" in said:
            found.append("the message is not fit to be printed")
        if len(said) > 20_000:
            found.append(f"the message is {len(said):,} characters long")
        if state(folder, shop.root) != before:
            found.append("something outside of the root has changed")
        if generation is None:
            found += list(left(shop.root, row.untouched))
        elif os.readlink(shop.root / "current") != generation:
            found.append("another generation is in use")
        return [f"{line}: {said!r:.500}" for line in found]


def state(folder: Path, but: Path | None = None) -> dict[str, tuple[int, int, int, int]]:
    """Every file below a folder, with what changes when it is written."""
    found = {}
    for above, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if Path(above, name) != but]
        for name in (*folders, *files):
            at = os.lstat(os.path.join(above, name))
            key = os.path.relpath(os.path.join(above, name), folder)
            found[key] = (at.st_ino, at.st_mode, at.st_size, at.st_mtime_ns)
    return found


def left(root: Path, untouched: bool) -> list[str]:
    """What is in a root that must not be: all but whole blobs, lock and log; or anything at all."""
    if untouched:
        return ["the root was made"] if os.path.lexists(root) else []
    wrong = []
    for path in root.rglob("*"):
        if path.is_symlink() or (path.is_file() and not _allowed(path, root)):
            wrong.append(f"{path.relative_to(root)} was left")
    if (root / "generations").exists() and list((root / "generations").iterdir()):
        wrong.append("a generation was left")
    return wrong


def _allowed(path: Path, root: Path) -> bool:
    if path == root / "log" / "audit.jsonl":
        lines = path.read_text(encoding="utf-8").splitlines()
        return all(line.isprintable() and json.loads(line) for line in lines)
    return path == root / "lock" or _whole(path)


def _whole(path: Path) -> bool:
    return path.name == hashlib.sha256(path.read_bytes()).hexdigest()
