"""What one pickle would import, read from its opcodes without loading it.

Nothing that it holds is built, and large arguments are passed over, so that memory stays small
whatever its size: picklescan, which judges the names, would first have all of it in memory.

A name that cannot be told for certain counts as UNKNOWN: the two strings that STACK_GLOBAL takes
are followed through pushes and the memo, and through nothing else.
"""

from __future__ import annotations

import io
import pickletools
from dataclasses import dataclass
from typing import TypeAlias

#: Module and name, as a pickle imports them.
Global: TypeAlias = tuple[str, str]
#: What is imported cannot be told before it is loaded. picklescan calls this word dangerous.
UNKNOWN = "unknown"

#: Arguments up to so many bytes are read, longer ones passed over: no module has such a name.
_READ = 1 << 16
#: No name that is meant is longer, and no pickle that is meant imports more of them.
_LONGEST, _NAMES = 500, 2_000
#: At most so many strings of a pickle's memo are remembered; another counts as UNKNOWN.
_REMEMBERED = 500_000

_SIZES = {
    op.code.encode("latin-1"): (op.name, op.arg.n if op.arg else 0) for op in pickletools.opcodes
}
_STRINGS = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"})
_PUTS = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_GETS = frozenset({"GET", "BINGET", "LONG_BINGET"})
_LENGTHS = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}


class Broken(Exception):  # noqa: N818 -- a finding
    """This is no pickle, or not all of one; what it imports up to here is found."""


class Unscannable(Exception):  # noqa: N818 -- a finding
    """What a file would import cannot be found out; says why."""


@dataclass
class Budget:
    """How much of one file is looked at before it counts as too large.

    opcodes: about half a microsecond each. bytes: of what is unpacked on the way.
    """

    opcodes: int = 50_000_000
    bytes: int = 4 << 30


def read(data: io.BufferedReader, found: set[Global], budget: Budget) -> None:
    """Read one pickle, up to its STOP, and add to `found` what it would import.

    Raises Broken where the data is none, Unscannable when the budget is spent.
    """
    memo = _Memo()
    below: str | None = None  # the two uppermost of the stack, where they are known strings
    top: str | None = None
    while budget.opcodes > 0:
        budget.opcodes -= 1
        name, size = _SIZES.get(data.read(1), ("", 0))
        if name in _STRINGS:
            below, top = top, _text(_counted(data, size))
        elif name == "MEMOIZE":
            memo.add(top)
        elif name in _PUTS:
            memo.put(_number(name, _argument(data, size)), top)
        elif name in _GETS:
            below, top = top, memo.get(_number(name, _argument(data, size)))
        elif name == "STACK_GLOBAL":
            _add(found, below, top)
            below = top = None
        elif name in ("GLOBAL", "INST"):
            _add(found, _text(_line(data)), _text(_line(data)))
            below = top = None
        elif name in ("PROTO", "FRAME"):
            _argument(data, size)
        elif name == "STOP":
            return
        elif name:
            if name.startswith("EXT"):  # from a registry that another pickle can have filled
                _add(found, None, None)
            _argument(data, size)
            below = top = None
        else:
            raise Broken
    raise Unscannable("it is too large to be scanned")


def _add(found: set[Global], module: str | None, name: str | None) -> None:
    if not module or not name or len(module) + len(name) > _LONGEST:
        module = name = UNKNOWN
    found.add((module, name))
    if len(found) > _NAMES:
        raise Unscannable("it imports more than can be looked through")


class _Memo:
    """The strings that a pickle remembers under numbers."""

    def __init__(self) -> None:
        self._strings: dict[int, str] = {}
        self._added = 0
        self._numbered = False

    def add(self, value: str | None) -> None:
        """Under the next number. What that is is unsure where numbers were given as well."""
        self._keep(self._added, value)
        self._added += 1

    def put(self, number: int, value: str | None) -> None:
        """Under this number, in place of what was there."""
        self._numbered = True
        self._keep(number, value)

    def get(self, number: int) -> str | None:
        """None where it is no string, or not known."""
        return None if self._added and self._numbered else self._strings.get(number)

    def _keep(self, number: int, value: str | None) -> None:
        self._strings.pop(number, None)
        if value is not None and len(self._strings) < _REMEMBERED:
            self._strings[number] = value


def _argument(data: io.BufferedReader, size: int) -> bytes:
    """The argument of an opcode, from pickletools' size of it; empty where it is passed over."""
    if size >= 0:
        return _exactly(data, size)
    return _line(data) if size == pickletools.UP_TO_NEWLINE else _counted(data, size) or b""


def _exactly(data: io.BufferedReader, size: int) -> bytes:
    value = data.read(size)
    if len(value) < size:
        raise Broken
    return value


def _counted(data: io.BufferedReader, size: int) -> bytes | None:
    """An argument that begins with its length; None for one that is passed over."""
    length = int.from_bytes(_exactly(data, _LENGTHS[size]), "little")
    if length <= _READ:
        return _exactly(data, length)
    if data.seekable():
        if length >= 1 << 62:
            raise Broken
        data.seek(length, io.SEEK_CUR)
        return None
    while length > 0:
        length -= len(_exactly(data, min(length, 1 << 20)))
    return None


def _line(data: io.BufferedReader) -> bytes:
    """Up to the end of the line; empty for one that is passed over."""
    line = data.readline(_READ)
    if len(line) < _READ or line.endswith(b"\n"):
        return line.removesuffix(b"\n")
    while line and not line.endswith(b"\n"):
        line = data.readline(_READ)
    return b""


def _text(value: bytes | None) -> str | None:
    """A string as the unpickler has it. Surrogates are in no module's name."""
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return None


def _number(name: str, value: bytes) -> int:
    """Of an entry of the memo: decimal text for PUT and GET, else binary."""
    try:
        return int(value) if name in ("PUT", "GET") else int.from_bytes(value, "little")
    except ValueError:
        raise Broken from None
