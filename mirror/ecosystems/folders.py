"""Which files of a folder on the builder are carried."""

from __future__ import annotations

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
    found: dict[str, Path] = {}
    problems: list[str] = []
    for above, folders, names in os.walk(folder, onerror=lambda error: problems.append(str(error))):
        inside = Path(above).relative_to(folder)
        folders[:] = [
            name
            for name in folders
            if name not in JUNK and not (leave_out and leave_out((inside / name).as_posix()))
        ]
        if folder_links:
            names += [name for name in folders if Path(above, name).is_symlink()]
        for name in names:
            path = Path(above, name)
            if name in JUNK:
                continue
            if path.is_file() or path.is_dir():
                found[path.relative_to(folder).as_posix()] = path
            elif path.is_symlink():
                problems.append(f"{path} is a link to nothing")
            else:
                problems.append(f"{path} is no regular file")
    if problems:
        raise UsageError(f"the folder {folder} cannot be carried", problems=sorted(problems))
    return dict(sorted(found.items()))
