"""What is in a root: its generations, and what is none of its parts."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from mirror.core.paths import shown
from mirror.core.text import counted
from mirror.store.generation import Generation
from mirror.store.generations import Root

#: What lies in a root: docs/format.md.
_LAYOUT = {"store", "generations", "current", "lock", "tmp", "log", "baseline.json"}
_SHA256 = re.compile(r"[0-9a-f]{64}")


def generations(root: Root) -> list[Generation]:
    """The complete ones, and the one in use even if its record has gone; oldest first."""
    found = root.generations()
    number = in_use(root)
    if number is not None and number not in {generation.number for generation in found}:
        found.append(Generation(root.path / "generations" / f"{number:06d}"))
    return sorted((g for g in found if g.path.is_dir()), key=lambda g: g.number)


def in_use(root: Root) -> int | None:
    """The number of the generation that `current` points at, complete or not; None for none."""
    with suppress(OSError, ValueError):
        return int(os.path.basename(os.readlink(root.path / "current")))
    return None


def strays(root: Root) -> list[str]:
    """What in the root is none of its parts, a line each; not in tmp/ and log/."""
    return [shown(line) for line in _strays(root)]


def _strays(root: Root) -> Iterator[str]:
    for path in _names(root.path):
        if path.name not in _LAYOUT:
            yield f"{path} is no part of a root"
    store = root.blobs.folder
    for path in _names(store):
        if path.name == "tmp":
            if left := len(_names(path)):
                yield f"{path} has {counted(left, 'file')} that an interrupted install left"
        elif path.name != "sha256":
            yield f"{path} is no part of a store"
    for folder in _names(store / "sha256"):
        if not re.fullmatch(r"[0-9a-f]{2}", folder.name) or not folder.is_dir():
            yield f"{folder} is no part of a store"
            continue
        for path in _names(folder):
            if not _SHA256.fullmatch(path.name) or path.name[:2] != folder.name:
                yield f"{path} is no blob"
    complete = {generation.path for generation in generations(root)}
    for path in _names(root.path / "generations"):
        if path in complete or (path.suffix in (".pin", ".new") and path.stem.isdecimal()):
            continue
        if path.stem.isdecimal() and (path.suffix == ".new" or path.is_dir()):
            yield f"{path} was left by an interrupted install; the next one removes it"
        else:
            yield f"{path} is no generation"


def _names(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
