"""Whether a root is safe to write to: nobody else can put a name into it, and no name leads out.

A root's folders, and all folders on the way to it, are to belong to the user at work or to root,
and to be writable by nobody else: then what is looked at here stays as it was seen. In a folder
with the sticky bit (/tmp) others can make names and not change ours: the way may lead through one,
the root may be none. Groups that the user at work belongs to are his own.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from mirror.core.paths import shown
from mirror.errors import MachineError
from mirror.store import people

#: As many links as the system follows on the way to a file.
_LINKS = 40


def require_safe(root: Path) -> None:
    """Raises MachineError that names all that is unsafe in a root or on the way to it.

    What is not there yet is no problem. Raises OSError for what cannot be looked at.
    """
    problems = [*_way_problems(root), *_root_problems(root)]
    if problems:
        raise MachineError(
            f"the root {shown(str(root))} is not safe to write to",
            problems=dict.fromkeys(map(shown, problems)),
            hint="Only you and root may be able to write there, and no link may lead elsewhere."
            " Mend that (chmod, chown, rm), or choose another --root.",
        )


def _way_problems(root: Path) -> Iterator[str]:
    way, there = _way(root)
    last = way.pop() if there else None
    for folder, status in way:
        sticky = bool(status.st_mode & stat.S_ISVTX)
        yield from _access(folder, status, sticky=sticky, nobody=_unmapped())
    if last:
        yield from _access(*last)


def _root_problems(root: Path) -> Iterator[str]:
    """What is wrong in it. A link is named where it stands, not followed."""
    store, generations = root / "store", root / "generations"
    for folder in (store, generations, root / "tmp", root / "log"):
        yield from _folder(folder)
    for folder in (store / "tmp", store / "sha256"):
        yield from _folder(folder, above=store)
    for name in _names(store / "sha256"):
        yield from _folder(store / "sha256" / name, above=store / "sha256")
    for name in _names(generations):
        path = generations / name
        if name.isdecimal():
            yield from _folder(path)
            for file in ("launch.json", "activate"):
                yield from _file(path / file)
        elif path.is_symlink():
            yield f"{path} is a symbolic link"
    for path in (root / "lock", root / "baseline.json"):
        yield from _file(path)
    for name in _names(root / "log"):
        if (root / "log" / name).is_symlink():
            yield f"{root / 'log' / name} is a symbolic link"
    current = root / "current"
    if os.path.lexists(current) and not current.is_symlink():
        yield f"{current} is no symbolic link, which mirror makes it"


def _folder(path: Path, above: Path | None = None) -> Iterator[str]:
    if above and above.is_symlink():
        return  # named already, and not looked behind
    with suppress(FileNotFoundError, NotADirectoryError):
        yield from _access(path, os.lstat(path))


def _access(
    path: Path,
    status: os.stat_result,
    *,
    sticky: bool = False,
    nobody: frozenset[int] = frozenset(),
) -> Iterator[str]:
    """Whether a folder is one, and who else can make names in it or take ours away.

    sticky: others may make names of their own. nobody: owners that are nobody here.
    """
    me = os.geteuid()
    if stat.S_ISLNK(status.st_mode):
        yield f"{path} is a symbolic link"
    elif not stat.S_ISDIR(status.st_mode):
        yield f"{path} is no folder"
    elif status.st_uid not in {0, me, *nobody}:
        yield f"{path} belongs to another user ({people.user(status.st_uid)})"
    elif status.st_mode & stat.S_IWOTH and not sticky:
        yield f"{path} can be written by everybody"
    elif status.st_mode & stat.S_IWGRP and not sticky:
        group = status.st_gid
        if group not in {0, os.getegid(), *os.getgroups()}:
            yield f"{path} can be written by a group that is not yours ({people.group(group)})"


def _file(path: Path) -> Iterator[str]:
    with suppress(FileNotFoundError, NotADirectoryError):
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            yield f"{path} is a symbolic link"
        elif not stat.S_ISREG(mode):
            yield f"{path} is no plain file"


def _names(folder: Path) -> list[str]:
    """What is in it; nothing where it is no folder of ours."""
    if folder.is_symlink():
        return []
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []


def _way(path: Path) -> tuple[list[tuple[Path, os.stat_result]], bool]:
    """Each folder on the way to a path and the path itself, as far as they are there; whether all.

    A link on the way is followed as the system does it, the folders on its own way among them.
    Raises OSError for links in a ring.
    """
    here = Path("/")
    found = [(here, os.lstat(here))]
    todo, links = list(reversed(path.absolute().parts[1:])), 0
    while todo:
        part = todo.pop()
        there = here.parent if part == ".." else here / part
        try:
            status = os.lstat(there)
        except FileNotFoundError:
            return found, False
        if not stat.S_ISLNK(status.st_mode):
            found.append((there, status))
            here = there
            continue
        links += 1
        if links > _LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        target = Path(os.readlink(there))
        if target.is_absolute():
            here = Path("/")
        todo += reversed(target.parts[target.is_absolute() :])
    return found, True


def _unmapped() -> frozenset[int]:
    """As whom a container without root shows users of the machine around it; empty elsewhere.

    The folders above a root can be theirs there, and nobody inside is one of them.
    """
    try:
        spans = Path("/proc/self/uid_map").read_text(encoding="ascii").split()
        nobody = int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return frozenset()
    whole = spans == ["0", "0", "4294967295"]
    return frozenset() if whole else frozenset({nobody})
