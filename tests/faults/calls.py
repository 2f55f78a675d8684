"""The system calls that touch files: their numbers, and what each of them touches."""

from __future__ import annotations

import os
from dataclasses import dataclass

from tests.faults.ptrace import MACHINE, Stop

#: name: numbers on x86-64 and aarch64 (-1: not there).
_NUMBERS = {
    "open": (2, -1), "openat": (257, 56), "openat2": (437, 437), "creat": (85, -1),
    "write": (1, 64), "writev": (20, 66), "pwrite64": (18, 68), "pwritev": (296, 70),
    "pwritev2": (328, 287), "sendfile": (40, 71), "copy_file_range": (326, 285),
    "truncate": (76, 45), "ftruncate": (77, 46), "fallocate": (285, 47),
    "rename": (82, -1), "renameat": (264, 38), "renameat2": (316, 276),
    "link": (86, -1), "linkat": (265, 37), "symlink": (88, -1), "symlinkat": (266, 36),
    "unlink": (87, -1), "unlinkat": (263, 35), "mkdir": (83, -1), "mkdirat": (258, 34),
    "rmdir": (84, -1), "chmod": (90, -1), "fchmod": (91, 52), "fchmodat": (268, 53),
    "fchmodat2": (452, 452), "mknod": (133, -1), "mknodat": (259, 33),
    "chown": (92, -1), "lchown": (94, -1), "fchown": (93, 55), "fchownat": (260, 54),
    "fsync": (74, 82), "fdatasync": (75, 83), "syncfs": (306, 267), "sync": (162, 81),
    "read": (0, 63), "readv": (19, 65), "pread64": (17, 67), "getdents64": (217, 61),
}  # fmt: skip
NAMES = {
    numbers[0 if MACHINE == "x86_64" else 1]: name
    for name, numbers in _NUMBERS.items()
    if numbers[0 if MACHINE == "x86_64" else 1] >= 0
}
READS = frozenset({"read", "readv", "pread64", "getdents64"})
WRITES = frozenset({"write", "writev", "pwrite64", "pwritev", "pwritev2", "sendfile",
                    "copy_file_range"})  # fmt: skip
SYNCS = frozenset({"fsync", "fdatasync", "syncfs", "sync"})
OPENS = frozenset({"open", "openat", "creat"})
CHANGING = [number for number, name in NAMES.items() if name not in READS]

#: Where the paths are among the arguments: (folder's descriptor or None, path).
_PATHS: dict[str, tuple[tuple[int | None, int], ...]] = {
    "open": ((None, 0),), "creat": ((None, 0),), "openat": ((0, 1),), "openat2": ((0, 1),),
    "truncate": ((None, 0),), "rename": ((None, 0), (None, 1)), "renameat": ((0, 1), (2, 3)),
    "renameat2": ((0, 1), (2, 3)), "link": ((None, 0), (None, 1)), "linkat": ((0, 1), (2, 3)),
    "symlink": ((None, 1),), "symlinkat": ((1, 2),), "unlink": ((None, 0),), "unlinkat": ((0, 1),),
    "mkdir": ((None, 0),), "mkdirat": ((0, 1),), "rmdir": ((None, 0),), "chmod": ((None, 0),),
    "fchmodat": ((0, 1),), "fchmodat2": ((0, 1),), "mknod": ((None, 0),), "mknodat": ((0, 1),),
    "chown": ((None, 0),), "lchown": ((None, 0),), "fchownat": ((0, 1),),
}  # fmt: skip
_AT_FDCWD = 0xFFFFFF9C
_AT_REMOVEDIR = 0x200


@dataclass(frozen=True, slots=True)
class Call:
    """A call, as far as it matters to files.

    paths: what it names or was opened as, absolute. flags: of an open. mode: that it states.
    target: of a symbolic link. size: what a file is cut to. result: negative for an error, None
    while it is not known. data: the bytes that it has written, from `at` on. since: how many other
    calls had returned when it began.
    """

    name: str
    paths: tuple[str, ...]
    thread: int
    flags: int = 0
    mode: int = 0
    target: str = ""
    size: int = 0
    result: int | None = None
    data: bytes = b""
    at: int = 0
    since: int = 0

    @property
    def changes(self) -> bool:
        """Whether it may change what is on the disk, or when."""
        if self.name in OPENS:
            return bool(self.flags & (os.O_CREAT | os.O_TRUNC))
        return self.name not in READS

    def __str__(self) -> str:
        flags = f" flags={self.flags:#o}" if self.name in OPENS else ""
        return f"{self.name}({', '.join(self.paths)}){flags}"


def decoded(stop: Stop) -> Call:
    """What a thread is about to do."""
    name, given = NAMES[stop.number], stop.arguments
    at = _PATHS.get(name)
    if at is None:
        paths: tuple[str, ...] = () if name == "sync" else (_opened(stop, name),)
    else:
        paths = tuple(_path(stop, folder, path) for folder, path in at)
    flags = mode = size = 0
    target = ""
    if name in ("open", "openat"):
        flags, mode = given[1:3] if name == "open" else given[2:4]
    elif name == "creat":
        flags, mode = os.O_CREAT | os.O_TRUNC | os.O_WRONLY, given[1]
    elif name in ("mkdir", "chmod", "fchmod"):
        mode = given[1]
    elif name in ("mkdirat", "fchmodat", "fchmodat2"):
        mode = given[2]
    elif name in ("symlink", "symlinkat"):
        target = _text(stop.thread, given[0])
    elif name in ("truncate", "ftruncate"):
        size = given[1]
    elif name == "unlinkat" and given[2] & _AT_REMOVEDIR:
        name = "rmdir"
    if name in ("fsync", "fdatasync", "syncfs") and not paths[0]:
        paths = ("?",)
    return Call(name, paths, stop.thread, flags & 0xFFFFFFFF, mode & 0o7777, target, size)


def written(stop: Stop) -> tuple[bytes, int]:
    """The bytes that a write has just written, and where."""
    result = stop.result or 0
    if result <= 0:
        return b"", 0
    name = NAMES[stop.number]
    number = _fd(stop, name)
    place = f"/proc/{stop.thread}/fd/{number}"
    if name.startswith("pwrite"):
        at = stop.arguments[3]
    else:
        with open(f"/proc/{stop.thread}/fdinfo/{number}", encoding="ascii") as file:
            at = int(file.readline().split()[1]) - result
    file_number = os.open(place, os.O_RDONLY)
    try:
        return os.pread(file_number, result, at), at
    finally:
        os.close(file_number)


def _fd(stop: Stop, name: str) -> int:
    return stop.arguments[2 if name == "copy_file_range" else 0] & 0x7FFFFFFF


def _opened(stop: Stop, name: str) -> str:
    try:
        return os.readlink(f"/proc/{stop.thread}/fd/{_fd(stop, name)}")
    except OSError:
        return ""


def _path(stop: Stop, folder: int | None, path: int) -> str:
    """The path that an argument names, seen from the folder that another one is open for."""
    text = _text(stop.thread, stop.arguments[path])
    if text.startswith("/"):
        return os.path.normpath(text)
    at = _AT_FDCWD if folder is None else stop.arguments[folder] & 0xFFFFFFFF
    here = "cwd" if at == _AT_FDCWD else f"fd/{at}"
    try:
        base = os.readlink(f"/proc/{stop.thread}/{here}")
    except OSError:
        base = "?"
    return os.path.normpath(os.path.join(base, text)) if text else base


def _text(thread: int, address: int) -> str:
    found = b""
    try:
        with open(f"/proc/{thread}/mem", "rb", buffering=0) as memory:
            while len(found) < 4096:
                memory.seek(address + len(found))
                found += memory.read(4096 - (address + len(found)) % 4096) or b"\0"
                if b"\0" in found:
                    break
    except OSError:
        return "?"
    return os.fsdecode(found.partition(b"\0")[0])
