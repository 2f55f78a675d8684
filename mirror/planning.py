"""What an install will do, decided before anything is written."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mirror import machine
from mirror.core import compat
from mirror.core.artifact import Artifact
from mirror.core.index import Index, total_size
from mirror.core.progress import Progress
from mirror.core.text import human_size
from mirror.ecosystems import environment
from mirror.ecosystems.conda import deploy as conda
from mirror.ecosystems.models import into_cache
from mirror.errors import MachineError, TargetError, UsageError
from mirror.store.generations import Root

#: Wheels and conda packages unpack to about this many times their size (measured: 2.5 to 4).
_UNPACKED = 4
_BLOCK = 4096
_SPARE_BYTES = 64 * 10**6


@dataclass(frozen=True, slots=True)
class Wish:
    """How the person wants it installed. Each may be left out.

    python: to make the environment from. over: an environment to layer over, untouched.
    into: an environment to install into, in place of one of its own.
    cache: a cache of the Hub to put models, datasets and spaces into besides.
    """

    python: Path | None = None
    over: Path | None = None
    into: Path | None = None
    cache: Path | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What an install will do, decided before anything is written.

    python: the interpreter that the environment is made from; None when conda brings it, or when
        the bundle has no use for an environment.
    over: the environment that it is layered over.
    into: the environment that it is installed into, and changes: what that does there.
    space: bytes that will be written to the root, at most.
    cache: what will be added to a cache of the Hub.
    """

    index: Index
    python: Path | None
    over: machine.Interpreter | None
    into: Path | None
    changes: environment.Changes | None
    space: int
    cache: into_cache.Additions | None


def make_plan(
    index: Index, arriving: Sequence[Artifact], root: Root, wish: Wish, progress: Progress
) -> Plan:
    """Decide how the bundle will be installed here. Raises TargetError when it does not fit.

    arriving: what this and the bundles that are installed with it ship.
    Writes nothing. Raises MachineError when there is not enough space, or when something in the
    way would have to be changed.
    """
    facts = compat.Facts(machine.this_platform(), machine.this_glibc())
    found = list(compat.problems(index, facts))
    if found:
        raise TargetError(
            f"the bundle does not fit this machine ({platform.node()})",
            problems=found,
            hint="Build it again with this machine as its target.",
        )
    target = index.target
    interpreter, chosen, changes = None, None, None
    if not target and (wish.python or wish.over or wish.into):
        raise UsageError(
            "the bundle has no use for an environment: it holds neither wheels nor conda packages",
            hint="Leave out --python, --over and --into.",
        )
    if target and wish.into:
        changes = _into(index, wish.into)
    elif target:
        chosen = environment.choose_over(target.provided, wish.over)
        if not conda.brings_python(index.of_kind("conda")):
            interpreter = _interpreter(target.python, wish.python, chosen)
    _require_writable(root)
    if target and not wish.into:
        _require_executable(root)
    new = {a.sha256: a for a in arriving if not root.blobs.has(a.sha256, a.size)}
    packages = total_size(index.of_kind("wheels") + index.of_kind("conda") + index.of_kind("tool"))
    # A file fills up its last block, and the link to it in a cache of the Hub takes one too.
    blocks = _BLOCK * 2 * len(index.artifacts)
    space = total_size(list(new.values())) + _UNPACKED * packages + blocks + _SPARE_BYTES
    free = machine.free_bytes(root.path)
    if free < space:
        raise MachineError(
            f"{root.path} has {human_size(free)} free; this needs {human_size(space)}",
            hint="Make room, or choose another file system with --root DIR.",
        )
    cache = into_cache.consider(index.artifacts, wish.cache, root, progress) if wish.cache else None
    into = wish.into.absolute() if changes and wish.into else None
    return Plan(index, interpreter, chosen, into, changes, space, cache)


def _require_executable(root: Root) -> None:
    flags = os.statvfs(_there(root.path)).f_flag
    if flags & getattr(os, "ST_NOEXEC", 0):
        raise MachineError(
            f"{root.path} is on a file system that is mounted noexec: no program and no library of"
            " an environment there would run",
            hint="Choose another with --root DIR, or have it mounted with exec.",
        )


def _there(folder: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def _require_writable(root: Root) -> None:
    """Say so before anything about space, which a place that cannot be written lacks too."""
    folder = _there(root.path)
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise MachineError(
            f"the root {root.path} cannot be written",
            hint="Choose another with --root DIR, or set MIRROR_ROOT.",
        )


def _into(index: Index, into: Path) -> environment.Changes:
    """What an existing environment would become. Raises TargetError when it does not fit."""
    target = index.target
    assert target is not None  # noqa: S101 -- only such a bundle has use for an environment
    found = machine.ask(machine.interpreter_of(into), everything=True)
    if found.version != target.python:
        raise TargetError(
            f"the bundle is for Python {target.python}; {into} has Python {found.version}"
        )
    over = f"Layer over it instead: --over {into}"
    if index.of_kind("conda"):
        raise TargetError(
            "conda packages are linked only into an environment that mirror makes", hint=over
        )
    if found.managed:
        raise MachineError(
            f"{into} belongs to the system's package manager (EXTERNALLY-MANAGED)", hint=over
        )
    closed = [p for p in found.site_folders[:1] if not os.access(p, os.W_OK)]
    if closed:
        raise MachineError(f"{closed[0]} cannot be written", hint=over)
    environment.choose_over(target.provided, into)
    changes = environment.changes(found, index.of_kind("wheels"))
    if changes.broken:
        raise TargetError(
            f"installing into {into} would break what is there", problems=changes.broken, hint=over
        )
    return changes


def _interpreter(wanted: str, asked: Path | None, over: machine.Interpreter | None) -> Path:
    """The interpreter to make the environment from: exactly the target's Python."""
    if asked or over:
        found = machine.ask(machine.interpreter_of(asked)) if asked else over
        assert found is not None  # noqa: S101 -- one of the two is given
        if found.version != wanted:
            raise TargetError(
                f"the bundle is for Python {wanted}; {found.path} is Python {found.version}",
                hint=f"Name a Python {wanted} with --python, or build for {found.version}.",
            )
        return found.path
    python = machine.find_python(wanted)
    if python is None:
        raise TargetError(
            f"the bundle is for Python {wanted}, and none is on PATH here",
            hint=f"Name one with --python PATH, or add python={wanted} under `conda:` in the"
            " manifest to carry one.",
        )
    return python
