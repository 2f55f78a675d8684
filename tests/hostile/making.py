"""Heads of bundles with any index, of any size; and the command that is pointed at them."""

from __future__ import annotations

import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mirror.bundle import layout
from mirror.core.artifact import Json
from mirror.core.index import canonical
from tests import bundles
from tests import memory as measuring

CHECKOUT = Path(__file__).resolve().parents[2]
HASH = "0" * 64


def table(**keys: Json) -> dict[str, Json]:
    """The document of a right index that lists nothing; keys: in place of its own."""
    known: dict[str, Json] = {
        "format": 1,
        "name": "demo",
        "version": "1",
        "tool": "0.1",
        "lock": HASH,
        "target": None,
        "verify": {},
        "base": None,
        "artifacts": [],
    }
    return {**known, **keys}


def index(**keys: Json) -> bytes:
    """Its canonical bytes."""
    return canonical(table(**keys)) + b"\n"


def described(path: str, **keys: Json) -> dict[str, Json]:
    """An artifact's table, of an empty file at this path."""
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    return {"kind": "files", "path": path, "size": 0, "sha256": empty, **keys}


def spliced(verify: bytes, artifacts: bytes = b"") -> bytes:
    """An index with these bytes as its section `verify` and between the brackets of its list."""
    return (
        index()
        .replace(b'"verify":{}', b'"verify":%s' % verify)
        .replace(b'"artifacts":[]', b'"artifacts":[%s]' % artifacts)
    )


def write(path: Path, data: bytes, signature: bytes = b"", rest: bytes = layout.END) -> Path:
    """A bundle with this index, in right framing; rest: of the tar, after the head."""
    with open(path, "wb") as file:
        bundles.write_framed(file, layout.head(data, signature) + rest)
    return path


@dataclass(frozen=True)
class Ended:
    """A command that ended. peak: of its resident memory, in bytes. seconds: of the wall clock."""

    code: int
    out: bytes
    err: str
    peak: int
    seconds: float


def mirror(
    folder: Path,
    *arguments: object,
    wrapper: Sequence[str] = (),
    memory: int = 4 * 2**30,
    seconds: int = 120,
    takes: int | None = None,
) -> Ended:
    """The real command, in a home of its own below `folder`, with less of the machine.

    memory: bytes of address space. seconds: of the processor. takes: how many bytes of its output
    are read before the pipe is closed; None for all.
    """
    home = folder / "home"
    home.mkdir(exist_ok=True)
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MIRROR_", "XDG_", "SSH_"))}
    environment = kept | {
        "HOME": str(home),
        "PYTHONPATH": str(CHECKOUT),
        "PYTHONDONTWRITEBYTECODE": "1",
    }

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))

    begin = time.monotonic()
    with open(folder / "stderr", "w+b") as said, tempfile.TemporaryFile() as most:
        process = subprocess.Popen(
            [*wrapper, *measuring.command(most, *arguments)],
            stdout=subprocess.PIPE,
            stderr=said,
            env=environment,
            preexec_fn=limit,
            pass_fds=[most.fileno()],
        )
        assert process.stdout
        out = process.stdout.read(-1 if takes is None else takes)
        process.stdout.close()
        process.wait()
        said.seek(0)
        err = said.read().decode(errors="backslashreplace")
        peak = measuring.peak(most)
    return Ended(process.returncode, out, err, peak, time.monotonic() - begin)


def repeated(unit: bytes, size: int) -> bytes:
    """So many bytes of it, less than one more; for lists: without the last comma."""
    return (unit * (size // len(unit)))[: -1 if unit.endswith(b",") else None]
