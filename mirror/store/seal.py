"""The seal of a generation: what every file, folder and link in it was when it was made.

Docs: docs/format.md. A blob says itself what its bytes are, by its name. The seal says it of all
else: the environment, the tool, the cache of the Hub. It is written as the last thing before
index.json; whoever looks later finds every byte that was changed, has gone or has come.

It finds accidents, and changes by whoever does not know of it. It is no signature: who can write in
the root can write a seal as well.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

from mirror.core.artifact import Json
from mirror.core.index import canonical
from mirror.core.progress import Progress
from mirror.errors import BundleError
from mirror.store import atomic

NAME = "seal"
FORMAT = 1
#: What lies in a generation and is not in its seal: the seal, what is written after it, and what
#: verify writes.
OUTSIDE = (NAME, "index.json", "launch.json")
#: The script that verify adds launch settings to; what is in front of them is sealed.
ACTIVATE = "activate"
_MARK = b"# Launch settings, written by mirror verify.\n"
#: f: file, d: folder, l: symbolic link, o: anything else.
Kind: TypeAlias = Literal["f", "d", "l", "o"]


class Entry(NamedTuple):
    """What is at a path of a generation.

    mode: the permission bits; 0 for a link. size: in bytes, 0 for what is no file. text: a file's
    sha256 (empty before it is known), or a link's target.
    """

    path: str
    kind: Kind
    mode: int
    size: int
    text: str

    def to_json(self) -> Json:
        """As the seal has it."""
        if self.kind == "f":
            return ["f", self.path, f"{self.mode:o}", self.size, self.text]
        if self.kind == "l":
            return ["l", self.path, self.text]
        return [self.kind, self.path, f"{self.mode:o}"]


@dataclass(frozen=True, slots=True)
class Seal:
    """What a generation holds.

    bundle: digest of its index. made: how the environment was made, to be able to make it again:
    `python`, and `over` where it is layered over another.
    """

    bundle: str
    made: Mapping[str, str]
    entries: Mapping[str, Entry] = field(repr=False)

    def to_bytes(self) -> bytes:
        """A line of JSON for the whole and for each entry, by path; then the hash of these."""
        head: dict[str, Json] = {"format": FORMAT, "bundle": self.bundle, "made": dict(self.made)}
        lines = [
            canonical(head),
            *(canonical(e.to_json()) for _, e in sorted(self.entries.items())),
        ]
        body = b"\n".join(lines) + b"\n"
        return body + hashlib.sha256(body).hexdigest().encode() + b"\n"

    def write(self, folder: Path) -> str:
        """Write it into its generation, durably; returns the sha256 of the file."""
        data = self.to_bytes()
        atomic.write(folder / NAME, data, 0o444)
        return hashlib.sha256(data).hexdigest()


def read(folder: Path) -> Seal:
    """The seal of a generation. Raises BundleError when there is none, or it has changed."""
    file = folder / NAME
    try:
        data = file.read_bytes()
    except FileNotFoundError:
        raise BundleError(f"{file} is missing") from None
    except OSError as error:
        raise BundleError(f"{file} cannot be read: {error.strerror}") from None
    body, digest = data[:-65], data[-65:]
    if hashlib.sha256(body).hexdigest().encode() + b"\n" != digest:
        raise BundleError(f"{file} has changed")
    try:
        head, *lines = map(json.loads, body.splitlines())
        if head["format"] != FORMAT:
            raise BundleError(f"{file} has format {head['format']}; this mirror reads {FORMAT}")
        entries = [_entry(line) for line in lines]
        return Seal(head["bundle"], head["made"], {entry.path: entry for entry in entries})
    except (ValueError, KeyError, TypeError, IndexError):
        raise BundleError(f"{file} is no seal") from None


def _entry(line: list[Json]) -> Entry:
    kind, path, *rest = line
    if kind == "f":
        return Entry(str(path), "f", int(str(rest[0]), 8), int(str(rest[1])), str(rest[2]))
    if kind == "l":
        return Entry(str(path), "l", 0, 0, str(rest[0]))
    return Entry(str(path), "d" if kind == "d" else "o", int(str(rest[0]), 8), 0, "")


def walk(folder: Path) -> Iterator[tuple[Entry, os.stat_result]]:
    """All below a generation's folder that a seal lists, in no order; hashes are left out.

    Raises OSError for a folder that cannot be read.
    """
    todo = [("", str(folder))]
    while todo:
        above, place = todo.pop()
        with os.scandir(place) as found:
            for item in found:
                path = f"{above}/{item.name}" if above else item.name
                if path in OUTSIDE:
                    continue
                status = item.stat(follow_symlinks=False)
                yield _look(path, item.path, status), status
                if stat.S_ISDIR(status.st_mode):
                    todo.append((path, item.path))


def _look(path: str, place: str, status: os.stat_result) -> Entry:
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISREG(status.st_mode):
        return Entry(path, "f", mode, status.st_size, "")
    if stat.S_ISLNK(status.st_mode):
        return Entry(path, "l", 0, 0, os.readlink(place))
    return Entry(path, "d" if stat.S_ISDIR(status.st_mode) else "o", mode, 0, "")


def take(
    folder: Path,
    progress: Progress,
    known: Callable[[], Mapping[tuple[int, int], str]] = dict,
    stated: Mapping[str, tuple[int, str]] | None = None,
) -> dict[str, Entry]:
    """What a generation holds now, by path. Raises OSError for a file that cannot be read.

    known: gives the sha256 of files that need not be read, by device and inode; asked for only when
    there are files with several names. stated: by path, the size and sha256 that a file ought to
    have; one of that size is not read either.
    """
    from mirror.store.hashing import failed, hash_all  # threads, which few commands need

    entries: dict[str, Entry] = {}
    linked: dict[str, tuple[int, int]] = {}
    for entry, status in walk(folder):
        entries[entry.path] = entry
        if entry.kind == "f" and status.st_nlink > 1:
            linked[entry.path] = status.st_dev, status.st_ino
    hashes = known() if linked else {}
    for path, inode in linked.items():
        if inode in hashes:
            entries[path] = entries[path]._replace(text=hashes[inode])
    if ACTIVATE in entries and entries[ACTIVATE].kind == "f":
        entries[ACTIVATE] = activate_entry(folder)
    for path, (size, sha256) in (stated or {}).items():
        there = entries.get(path)
        if there and there.kind == "f" and not there.text and there.size == size:
            entries[path] = there._replace(text=sha256)
    todo = [entry for entry in entries.values() if entry.kind == "f" and not entry.text]
    answers = hash_all([(f"{folder}/{e.path}", e.size) for e in todo], "sealing", progress)
    for entry, answer in zip(todo, answers, strict=True):
        if failed(answer):
            raise OSError(0, answer.removeprefix("cannot be read: "), f"{folder}/{entry.path}")
        entries[entry.path] = entry._replace(text=answer)
    return entries


def activate_entry(folder: Path) -> Entry:
    """What a seal says of an `activate` as it is now. Raises OSError."""
    file = folder / ACTIVATE
    base, _ = split_activate(file.read_bytes())
    mode = stat.S_IMODE(file.stat().st_mode)
    return Entry(ACTIVATE, "f", mode, len(base), hashlib.sha256(base).hexdigest())


def split_activate(data: bytes) -> tuple[bytes, bytes]:
    """The part of an `activate` that is sealed, and the launch settings behind it."""
    base, mark, rest = data.partition(_MARK)
    return base, mark + rest


def launch_part(lines: Iterable[str]) -> bytes:
    """What verify adds to an `activate`: these lines; nothing when there are none."""
    text = "".join(f"{line}\n" for line in lines).encode()
    return _MARK + text if text else b""
