"""What was unpacked of a package, judged before rattler links it: the very files that it will read.

An archive's own list of members can be read in more than one way; a folder cannot.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from mirror.core.artifact import Json
from mirror.core.paths import shown
from mirror.ecosystems.conda.archives import Contents, Entry, contents

_PATHS = "info/paths.json"
#: Bytes that a package's own description may have; the largest known list of files has a tenth.
_LONGEST = 256 * 2**20
#: What conda-build wrote for the prefix in the days of info/has_prefix, where it says nothing.
_OLD_PREFIX = "/opt/anaconda1anaconda2anaconda3"


@dataclass(slots=True)
class _Tree:
    """Everything in a folder, by its path: files, symbolic links with their targets, folders."""

    files: set[str] = field(default_factory=set)
    links: dict[str, str] = field(default_factory=dict)
    folders: set[str] = field(default_factory=set)


def judge(folder: Path, record: Mapping[str, Json]) -> Contents:
    """What the package in `folder` installs.

    record: its channel's. Empty folders are taken out of the package's list, since rattler cannot
    link them: they are in the answer.
    Raises ValueError that says why rattler must not be given it.
    """
    tree = _tree(folder)
    for path in tree.links:
        if path == "info" or str(PurePosixPath(path).parent) == "info":
            raise ValueError(f"{shown(path)} is a symbolic link, where the package is described")
    index = _document(folder / "info/index.json")
    for key in ("name", "version", "build"):
        if index.get(key) != record.get(key):
            raise ValueError(
                f"it is {key} {shown(str(index.get(key)))}, and its channel has"
                f" {shown(str(record.get(key)))}"
            )
    if _PATHS in tree.files:
        entries = list(_entries(folder / _PATHS))
    elif "info/files" in tree.files:
        entries = list(_old_entries(folder / "info", tree))
    else:
        raise ValueError(f"it has no {_PATHS}")
    found = contents(entries, tree.links, python=index.get("noarch") == "python")
    for path in found.files:
        if path not in tree.files and path not in tree.links:
            wrong = "is a folder" if path in tree.folders else "it does not hold"
            raise ValueError(f"it lists {shown(path)}, which {wrong}")
    if found.folders:
        _take_out_folders(folder / _PATHS)
    return found


def size_of(folder: Path) -> int:
    """Bytes that a folder takes on the disk, about: no file counts less than a block.

    Also while somebody writes to it.
    """
    total, waiting = 0, [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as found:
                for item in found:
                    total += max(item.stat(follow_symlinks=False).st_size, 4096)
                    if item.is_dir(follow_symlinks=False):
                        waiting.append(item.path)
        except FileNotFoundError:
            continue
    return total


def _tree(folder: Path) -> _Tree:
    tree, waiting = _Tree(), [""]
    while waiting:
        above = waiting.pop()
        with os.scandir(folder / above) as found:
            for item in found:
                path = f"{above}{item.name}"
                if item.is_symlink():
                    tree.links[path] = os.readlink(item.path)
                elif item.is_dir(follow_symlinks=False):
                    tree.folders.add(path)
                    waiting.append(f"{path}/")
                else:
                    tree.files.add(path)
    return tree


def _document(file: Path) -> dict[str, Json]:
    """A JSON object of the package's description."""
    try:
        if file.stat().st_size > _LONGEST:
            raise ValueError
        found = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise ValueError(f"it has no info/{file.name}") from None
    except (ValueError, RecursionError):
        raise ValueError(f"its info/{file.name} is malformed") from None
    if not isinstance(found, dict):
        raise ValueError(f"its info/{file.name} is malformed")
    return found


def _entries(file: Path) -> Iterator[Entry]:
    listed = _document(file).get("paths")
    for item in listed if isinstance(listed, list) else [None]:
        path = item.get("_path") if isinstance(item, dict) else None
        if not isinstance(item, dict) or not isinstance(path, str):
            raise ValueError(f"its {_PATHS} is malformed")
        yield Entry(
            path=_plain(path),
            kind=str(item.get("path_type")),
            prefix=str(item.get("prefix_placeholder") or ""),
            binary=item.get("file_mode") == "binary",
        )


def _old_entries(info: Path, tree: _Tree) -> Iterator[Entry]:
    """From info/files and info/has_prefix, as rattler reads them where there is no paths.json."""
    prefixes = {}
    if "info/has_prefix" in tree.files:
        for line in _lines(info / "has_prefix"):
            words = [word.strip("\"'") for word in shlex.split(line, posix=False)]
            prefix, mode, path = words if len(words) == 3 else (_OLD_PREFIX, "text", line.strip())
            prefixes[_plain(path)] = (prefix, mode == "binary")
    for line in _lines(info / "files"):
        path = _plain(line)
        kind = "softlink" if path in tree.links else "hardlink"
        yield Entry(path, kind, *prefixes.get(path, ("", False)))


def _lines(file: Path) -> list[str]:
    if file.stat().st_size > _LONGEST:
        raise ValueError(f"its info/{file.name} is malformed")
    return [line for line in file.read_text("utf-8", "replace").splitlines() if line.strip()]


def _plain(path: str) -> str:
    """./a//b -> a/b; what begins at the root still does."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return "/".join(["", *parts] if path.startswith("/") else parts)


def _take_out_folders(file: Path) -> None:
    document = _document(file)
    listed = document["paths"]
    assert isinstance(listed, list)  # noqa: S101 -- it was read before
    files = [item for item in listed if item["path_type"] != "directory"]
    file.unlink()  # it may be a hard link
    file.write_text(json.dumps({**document, "paths": files}), encoding="utf-8")
