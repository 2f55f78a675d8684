"""The audit log of a root: who changed what there, when, and whose signatures it had.

    ROOT/log/audit.jsonl    canonical JSON in ASCII; docs/record.md has the keys

Promise: nothing in a root is changed before its line is on the disk (`state` "begun"), and when it
is done another line says so. A change that was killed in between has one line only; whoever changes
the root next looks what became of it, and says that first. Lines are only ever added, by one write
each, under the root's lock.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import mirror
from mirror.core.artifact import Json
from mirror.core.index import Index, canonical
from mirror.core.paths import shown
from mirror.errors import BundleError, MachineError, MirrorError
from mirror.store import people
from mirror.store.generation import Generation
from mirror.store.generations import Root

NAME = "audit.jsonl"
BEGUN, DONE, UNDONE, INTERRUPTED = "begun", "done", "undone", "interrupted"
#: Bytes at the end of the log in which its last line is looked for.
_TAIL = 2**20
#: What there is no room for may be what makes room.
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the log. number: from 1. event: None when the line is damaged."""

    number: int
    event: Mapping[str, Json] | None


class Log:
    """The log of a root that the caller holds locked; `opened` makes one."""

    def __init__(self, root: Root, file: int, path: Path) -> None:
        self._root, self._file, self._path = root, file, path
        self._owed = b""  # what found no room yet
        self._failed = False

    @contextmanager
    def event(
        self, action: str, about: Mapping[str, Json], *, frees: bool = False
    ) -> Iterator[dict[str, Json]]:
        """A change of the root: a line before it, and one after it that says whether it was made.

        about: the event's own keys. Yields a table that takes further ones, for the second line.
        frees: whether it makes room; then lines for which a disk has none may come later.
        Raises MachineError when a line cannot be written: the first, and nothing was changed.
        """
        event: dict[str, Json] = {"action": action, **_who(), **about}
        more: dict[str, Json] = {}
        try:  # from here on: an interrupt may come while the first line is being written
            self._write({**event, "state": BEGUN}, "nothing was changed", frees)
            yield more
        except BaseException:
            with suppress(MachineError):  # what has gone wrong matters more
                self._write({**event, **more, "state": _outcome(self._root, event)}, "", frees)
            raise
        self._write({**event, **more, "state": DONE}, f"the {action} itself is done", frees)

    def settle(self, *, frees: bool) -> None:
        """Say what became of a change that was killed. Raises MachineError as `event` does."""
        data = _read(self._file, _TAIL)
        if data and not data.endswith(b"\n"):  # a line that was cut stays a line of its own
            self._append(b"\n", "nothing was changed", frees)
        last = next((line.event for line in reversed(parsed(data)) if line.event), None)
        if last is None or last.get("state") != BEGUN:
            return
        about = {**last, "state": _outcome(self._root, last), "settled_by": _who()}
        self._write(about, "nothing was changed", frees)

    def finish(self) -> None:
        """Write what found no room before. Raises MachineError where it still finds none."""
        if self._owed:
            self._append(b"", "what was to be done is done", frees=False)

    def _write(self, event: Mapping[str, Json], consequence: str, frees: bool) -> None:
        now = f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
        self._append(canonical({**event, "time": now}) + b"\n", consequence, frees)

    def _append(self, data: bytes, consequence: str, frees: bool) -> None:
        if self._failed:  # what is on the disk, nobody knows: whoever opens the log next will see
            return
        self._owed += data
        try:
            done = os.write(self._file, self._owed)
            self._owed = self._owed[done:]
            if self._owed:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(self._file)
        except OSError as error:
            if not (frees and error.errno in _FULL):
                self._failed = True
                raise _refusal(self._path, error, consequence) from None


@contextmanager
def opened(root: Root, *, frees: bool = False) -> Iterator[Log]:
    """The log, ready to be written to; made where there is none. The caller holds the root.

    frees: whether what will be done makes room; then a full disk does not stop it.
    Raises MachineError when it cannot be written, or is no plain file of the root's own: so whoever
    opens it first changes nothing that it will not be able to tell.
    """
    path = root.logs / NAME
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        root.logs.mkdir(exist_ok=True)
        folder = os.open(root.logs, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            file = os.open(NAME, flags | os.O_NONBLOCK, 0o644, dir_fd=folder)
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise _refusal(path, error, "nothing was changed") from None
    try:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            reason = OSError(errno.EINVAL, "it is no plain file")
            raise _refusal(path, reason, "nothing was changed")
        if status.st_size == 0:  # just made: the umask has no say
            with suppress(PermissionError):
                os.fchmod(file, 0o644)
        log = Log(root, file, path)
        log.settle(frees=frees)
        yield log
        log.finish()
    finally:
        os.close(file)


def history(root: Root) -> list[Line]:
    """Every line, the oldest first; none when there is no log. Raises MachineError."""
    path = root.logs / NAME
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise MachineError(f"{path} cannot be read: {error.strerror}") from None
    try:
        return parsed(_read(file))
    except OSError as error:
        raise MachineError(f"{path} cannot be read: {error.strerror}") from None
    finally:
        os.close(file)


def parsed(data: bytes) -> list[Line]:
    """The lines that these bytes hold; one that no mirror wrote so is damaged."""
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [Line(number, _event(line)) for number, line in enumerate(lines, 1)]


def of_bundle(index: Index) -> dict[str, Json]:
    """What an event says of a bundle."""
    return {"name": index.name, "version": index.version, "digest": index.digest}


def of_generation(generation: Generation) -> dict[str, Json]:
    """The same of an installed one; only the number where its record is damaged."""
    about: dict[str, Json] = {"generation": generation.number}
    with suppress(BundleError):
        about |= of_bundle(generation.index())
    return about


def _event(line: bytes) -> Mapping[str, Json] | None:
    try:
        event = json.loads(line)
        sound = isinstance(event, dict) and canonical(event) == line
    except (ValueError, RecursionError):
        return None
    texts = ("action", "state", "time")
    return event if sound and all(isinstance(event.get(key), str) for key in texts) else None


def _outcome(root: Root, event: Mapping[str, Json]) -> str:
    """What became of a change, by what the root is now."""
    action, number = event["action"], event.get("generation")
    if action in ("install", "rollback"):
        try:
            return DONE if root.current_number() == number else UNDONE
        except MirrorError:  # it points at nothing whole
            return INTERRUPTED
    found = next((g for g in root.generations() if g.number == number), None)
    if action in ("pin", "unpin") and found:
        return DONE if found.pinned == (action == "pin") else UNDONE
    if action == "remove":
        return UNDONE if found else DONE
    return INTERRUPTED


def _who() -> dict[str, Json]:
    """Who does it, by the system; `sudo_user` is what sudo says, which root can change."""
    uid = os.getuid()
    name = people.name(uid)
    sudo = os.environ.get("SUDO_USER", "")
    about: dict[str, Json] = {"uid": uid, "user": shown(name), "tool": mirror.__version__}
    return about | ({"sudo_user": shown(sudo)[:100]} if sudo else {})


def _read(file: int, last: int | None = None) -> bytes:
    """All of a file, or its last bytes."""
    found = bytearray()
    size = os.fstat(file).st_size
    start = max(size - last, 0) if last else 0
    os.lseek(file, start, os.SEEK_SET)
    while part := os.read(file, 2**20):
        found += part
    return bytes(found)


def _refusal(path: Path, error: OSError, consequence: str) -> MachineError:
    return MachineError(
        f"the audit log {path} cannot be written: {error.strerror}; {consequence}",
        hint="Whatever changes a root is written down there first. Mend that, then run this again.",
    )
