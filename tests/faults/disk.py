"""What a disk may hold after a power cut, by what was written and synced until then.

Only what was synced is sure to be there: a file's bytes and mode by syncing the file, a name by
syncing its folder, all by syncing the file system. Real file systems promise more than that.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from tests.faults.calls import OPENS, WRITES, Call

#: What of the things not synced is there: none; all; names without the bytes; each by chance.
Kept: TypeAlias = Literal["none", "all", "names", "some"]


@dataclass(eq=False)
class Node:
    """A file, folder or link, as it is (`data`, `names`, `mode`) and as it is sure to be."""

    kind: Literal["file", "folder", "link"]
    mode: int
    target: str = ""
    data: bytes = b""
    names: dict[str, Node] = field(default_factory=dict)
    sure: tuple[int, bytes, dict[str, Node]] | None = None

    def state(self) -> tuple[int, bytes, dict[str, Node]]:
        """What a sync makes sure."""
        return self.mode, self.data, dict(self.names)

    @property
    def synced(self) -> bool:
        """Whether all of it is sure to be there, but for its own name."""
        return self.kind == "link" or self.sure == self.state()


class Disk:
    """The folders that a recording has looked at, from their beginning on."""

    def __init__(self, places: Sequence[Path]) -> None:
        self._places = [Path(os.path.realpath(place)) for place in places]
        self._above: dict[Path, Node] = {}
        seen: dict[tuple[int, int], Node] = {}
        for place in self._places:
            above = self._above.setdefault(place.parent, Node("folder", 0o755))
            if place.exists():
                above.names[place.name] = _read(place, seen)
        for node in self._above.values():
            node.sure = node.state()
        self._covers: dict[int, list[tuple[Node, tuple[int, bytes, dict[str, Node]]]]] = {}

    # -- what happens ----------------------------------------------------------------------------

    def begin(self, sync: Call, key: int) -> None:
        """A sync begins: it covers what has been written until now."""
        nodes: Iterator[Node] | list[Node]
        if sync.name in ("sync", "syncfs"):
            nodes = self._all()
        else:
            found = self.find(sync.paths[0])
            nodes = [found] if found else []
        self._covers[key] = [(node, node.state()) for node in nodes]

    def end(self, key: int) -> None:
        """That sync has returned."""
        for node, state in self._covers.pop(key):
            node.sure = state

    def apply(self, call: Call) -> None:
        """A call has returned, and done what it does."""
        if call.result is None or call.result < 0:
            return
        if call.name in OPENS:
            self._open(call)
        elif call.name in WRITES:
            self._write(call)
        elif call.name in ("mkdir", "mkdirat"):
            self._put(call.paths[0], Node("folder", call.mode & 0o755, sure=(0o755, b"", {})))
        elif call.name in ("symlink", "symlinkat"):
            self._put(call.paths[0], Node("link", 0o777, call.target))
        elif call.name in ("link", "linkat"):
            self._put(call.paths[1], self._need(call.paths[0]))
        elif call.name.startswith("rename"):
            self._put(call.paths[1], self._take(call.paths[0]))
        elif call.name in ("unlink", "unlinkat", "rmdir"):
            self._take(call.paths[0])
        elif call.name in ("chmod", "fchmod", "fchmodat", "fchmodat2"):
            self._need(call.paths[0]).mode = call.mode
        elif call.name in ("truncate", "ftruncate"):
            node = self._need(call.paths[0])
            node.data = node.data[: call.size].ljust(call.size, b"\0")
        else:
            raise NotImplementedError(f"{call} in a recording")

    def _open(self, call: Call) -> None:
        node = self.find(call.paths[0])
        if node is None and call.flags & os.O_CREAT:
            mode = call.mode & ~0o022
            self._put(call.paths[0], Node("file", mode, sure=(mode, b"", {})))
        elif node is not None and call.flags & os.O_TRUNC:
            node.data = b""

    def _write(self, call: Call) -> None:
        node = self._need(call.paths[0])
        before = node.data[: call.at].ljust(call.at, b"\0")
        node.data = before + call.data + node.data[call.at + len(call.data) :]

    # -- what is there ---------------------------------------------------------------------------

    def find(self, path: str) -> Node | None:
        """What has this name now."""
        for above, node in self._above.items():
            if Path(path).is_relative_to(above):
                at: Node | None = node
                for part in Path(path).relative_to(above).parts:
                    at = at.names.get(part) if at and at.kind == "folder" else None
                if at is not None:
                    return at
        return None

    def unsynced(self, path: str) -> list[str]:
        """What is not sure to be there of all below a path, and of the names that lead to it."""
        node = self.find(path)
        found = []
        above, name = self._parent(path)
        if above.sure is None or above.sure[2].get(name) is not node:
            found.append(path)
        return found + (list(_unsynced(node, path)) if node else [])

    def left(self, place: Path, kept: Kept, chance: random.Random) -> Left:
        """What is at one of the places when the power goes now."""
        real = Path(os.path.realpath(place))
        left = Left()
        names = _names(self._above[real.parent], kept, chance)
        if node := names.get(real.name):
            left.add("", node, kept, chance, {})
        return left

    def _all(self) -> Iterator[Node]:
        todo, seen = list(self._above.values()), set()
        while todo:
            node = todo.pop()
            if node not in seen:
                seen.add(node)
                yield node
                todo += node.names.values()

    def _parent(self, path: str) -> tuple[Node, str]:
        parent = self._above.get(Path(path).parent) or self.find(os.path.dirname(path))
        assert parent is not None, f"{path} is in no folder"
        return parent, os.path.basename(path)

    def _need(self, path: str) -> Node:
        node = self.find(path)
        assert node is not None, f"{path} is not there"
        return node

    def _put(self, path: str, node: Node) -> None:
        parent, name = self._parent(path)
        parent.names[name] = node

    def _take(self, path: str) -> Node:
        parent, name = self._parent(path)
        return parent.names.pop(name)


class Left:
    """What a power cut has left of one place: what to make again, by path."""

    def __init__(self) -> None:
        self.things: dict[str, tuple[str, int, bytes | str, int]] = {}

    def add(
        self, path: str, node: Node, kept: Kept, chance: random.Random, seen: dict[int, bytes | str]
    ) -> None:
        """Take in a node, and all below it."""
        mode, sure, _ = node.sure or node.state()
        if node.kind == "link":
            self.things[path] = ("link", 0o777, node.target, 0)
        elif node.kind == "folder":
            self.things[path] = ("folder", node.mode, "", 0)
            for name, below in sorted(_names(node, kept, chance).items()):
                self.add(os.path.join(path, name), below, kept, chance, seen)
        else:
            data = seen.get(id(node))
            if data is None:
                now = node.data
                ways = {"none": [sure], "all": [now], "names": [sure]}
                # All of it, a part of it, or as many zeros.
                some = [sure, now, now[: len(now) // 2], bytes(len(now))] if now != sure else [sure]
                data = seen[id(node)] = chance.choice(ways.get(kept, some))
            mode = node.mode if kept == "all" else mode
            self.things[path] = ("file", mode, data, id(node))

    def make(self, place: Path) -> None:
        """Make it there."""
        linked: dict[int, Path] = {}
        for name, (kind, mode, data, key) in self.things.items():
            path = place / name if name else place
            if kind == "folder":
                path.mkdir()
            elif kind == "link":
                path.symlink_to(str(data))
            elif key in linked:
                os.link(linked[key], path)
            else:
                assert isinstance(data, bytes), "a file's"
                path.write_bytes(data)
                path.chmod(mode)
                linked[key] = path

    def key(self) -> int:
        """What is the same for what is the same."""
        # Bytes remember their hash, and most are the same objects each time.
        return hash(tuple((name, *about[:3]) for name, about in self.things.items()))


def _names(node: Node, kept: Kept, chance: random.Random) -> dict[str, Node]:
    sure = node.sure[2] if node.sure else node.names
    if kept == "none":
        return sure
    if kept in ("all", "names"):
        return node.names
    found = {}
    for name in sorted(sure.keys() | node.names.keys()):
        if there := chance.choice([sure, node.names]).get(name):
            found[name] = there
    return found


def _unsynced(node: Node, path: str) -> Iterator[str]:
    if not node.synced:
        yield path
    for name, below in node.names.items():
        yield from _unsynced(below, os.path.join(path, name))


def _read(path: Path, seen: dict[tuple[int, int], Node]) -> Node:
    status = path.lstat()
    key = status.st_dev, status.st_ino
    if key in seen:
        return seen[key]
    mode = status.st_mode & 0o7777
    if path.is_symlink():
        node = Node("link", 0o777, os.readlink(path))
    elif path.is_dir():
        node = Node("folder", mode)
        node.names = {below.name: _read(below, seen) for below in path.iterdir()}
    else:
        node = Node("file", mode, data=path.read_bytes())
    node.sure = node.state()
    seen[key] = node
    return node
