"""Who the numbers of users and groups are, as this machine's own files tell.

The C library would ask further: a cache daemon, a directory service, through sockets of all kinds,
and wait for an answer. mirror opens none for a name.
"""

from __future__ import annotations

from pathlib import Path


def name(uid: int) -> str:
    """A user's; empty for one that /etc/passwd does not have."""
    return _name("/etc/passwd", uid)


def user(uid: int) -> str:
    """A user, for messages: the number, and the name where it is known."""
    return f"{uid}, {found}" if (found := name(uid)) else str(uid)


def group(gid: int) -> str:
    """A group, likewise."""
    return f"{gid}, {found}" if (found := _name("/etc/group", gid)) else str(gid)


def _name(file: str, number: int) -> str:
    try:
        lines = Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    rows = (line.split(":") for line in lines)
    return next((row[0] for row in rows if len(row) > 2 and row[2] == str(number)), "")
