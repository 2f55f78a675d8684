"""Which files of a folder on the builder are carried."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from mirror.errors import UsageError

#: What version control, Python and desktops leave in folders: never part of what a person means.
JUNK = frozenset(
    {
        ".git",
        ".hg",
        ".svn",
        "__pycache__",
        ".ipynb_checkpoints",
        ".DS_Store",
        "Thumbs.db",
        "desktop.ini",
    }
)


def files_in(
    folder: Path, *, leave_out: Callable[[str], bool] | None = None, folder_links: bool = False
) -> dict[str, Path]:
    """Every file below `folder`, in the order of their names: relative path with / -> file.

    Links to files stand for those files; links to folders are not followed. With folder_links,
    those stand among the files.
    leave_out: whether a folder, by its relative path with /, is not looked into.
    Raises UsageError that names what is missing or cannot be read.
    """
    if not folder.is_dir():
        raise UsageError(f"the folder {folder} is missing")
    found: dict[str, str] = {}  # of a hundred thousand, each Path takes longer than its look-up
    problems: list[str] = []
    waiting = [(os.fspath(folder), "")]
    while waiting:
        above, inside = waiting.pop()
        try:
            with os.scandir(above) as listed:
                entries = [entry for entry in listed if entry.name not in JUNK]
        except OSError as error:
            problems.append(str(error))
            continue
        for entry in entries:
            name = inside + entry.name
            match _kind(entry):
                case "folder" if leave_out and leave_out(name):
                    pass
                case "folder" if not entry.is_symlink():
                    waiting.append((entry.path, f"{name}/"))
                case "folder" if not folder_links:
                    pass
                case "file" | "folder":
                    found[name] = entry.path
                case problem:
                    problems.append(f"{Path(entry.path)} {problem}")
    if problems:
        raise UsageError(f"the folder {folder} cannot be carried", problems=sorted(problems))
    return {name: Path(found[name]) for name in sorted(found)}


def _kind(entry: os.DirEntry[str]) -> str:
    """ "file", "folder", or what is wrong with it."""
    try:
        if entry.is_file():
            return "file"
        if entry.is_dir():
            return "folder"
    except OSError as error:
        if error.errno != errno.ELOOP:
            return f"cannot be read: {error.strerror}"
    return "is a link to nothing" if entry.is_symlink() else "is no regular file"
