"""What must be on the disk before what, read from a recording of each scene."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from tests.faults.calls import Call
from tests.faults.cuts import replayed
from tests.faults.disk import Disk
from tests.faults.scenes import Scene
from tests.faults.walks import Tally

_RECORD = re.compile(r"(.*/generations/[0-9]{6})/index\.json")
_BLOB = re.compile(r"(.*)/store/sha256/[0-9a-f]{2}/[0-9a-f]{64}")
_INSIDE = re.compile(r"(.*/generations/[0-9]{6})/.+")


def order(scene: Scene, wanted: int | None) -> Tally:
    """Hold every call of a recording against the rules; `wanted` is not asked for."""
    tally = Tally()
    last = ""
    for number, call, disk in replayed(scene):
        if call is None:
            continue
        if call.result is not None and call.result >= 0 and call.name.startswith("rename"):
            last = call.paths[1]
        found = list(_rules(call, disk)) if (call.result or 0) >= 0 else []
        tally.add(f"{scene.name}: call {number}, {call}", found)
    tally.of = tally.tried
    if last and os.path.basename(last) == "current":
        tally.add(f"{scene.name}: at its end", [f"{p} is not synced" for p in _name(disk, last)])
    return tally


def _rules(call: Call, disk: Disk) -> Iterator[str]:
    if call.name.startswith("rename"):
        target = call.paths[1]
        node = disk.find(target)
        # Modes are constants in a root only.
        lacks = node is not None and node.sure is not None and node.sure[1] != node.data
        if lacks or ("/store/" in target and node is not None and not node.synced):
            yield "it gives a name to what is not synced"
        if record := _RECORD.fullmatch(target):
            root = record[1].rpartition("/generations/")[0]
            for path in [*disk.unsynced(record[1]), *disk.unsynced(f"{root}/store/sha256")]:
                if path not in (record[1], target):
                    yield f"{path} is not synced, and the record says that it is"
        if os.path.basename(target) == "current" and node is not None:
            generation = os.path.join(os.path.dirname(target), node.target)
            for path in disk.unsynced(generation):
                yield f"{path} is not synced, and is put in use"
    elif call.name in ("unlink", "unlinkat", "rmdir"):
        inside = _INSIDE.fullmatch(call.paths[0])
        node = disk.find(inside[1]) if inside and not _RECORD.fullmatch(call.paths[0]) else None
        if node is not None and node.sure and "index.json" in node.sure[2]:
            yield "a part goes while the record is sure to be there"


def _name(disk: Disk, path: str) -> list[str]:
    """The name itself, where it is not synced."""
    return [found for found in disk.unsynced(path) if found == path]
