"""Files that are there whole or not at all: a rank's heartbeats and its result."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_json(path: Path, value: Any) -> None:
    """Write `value` to `path` by one rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(value, allow_nan=True), encoding="utf-8")
    os.replace(temporary, path)


class Heartbeat:
    """Says which phase a rank is in, so that one that hangs can be named.

    FOLDER/rank-N.phase holds {"phase", "step", "pid"} and, where there is more to say, "detail".
    step grows as the rank goes on within a phase and counts the same things on every rank: the
    optimizer's steps in the phase "step", what is exchanged in the phase "collectives"; else null.
    detail: what the rank is at, in words: "send 0->2 of 512 KiB".
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._path = folder / f"rank-{rank}.phase"

    def __call__(self, phase: str, step: int | None = None, detail: str = "") -> None:
        """Enter a phase."""
        said: dict[str, Any] = {"phase": phase, "step": step, "pid": os.getpid()}
        if detail:
            said["detail"] = detail
        write_json(self._path, said)
