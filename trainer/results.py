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

    FOLDER/rank-N.phase holds {"phase", "step", "pid"}: step is the optimizer step in the phase
    "step", else null.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._path = folder / f"rank-{rank}.phase"

    def __call__(self, phase: str, step: int | None = None) -> None:
        """Enter a phase."""
        write_json(self._path, {"phase": phase, "step": step, "pid": os.getpid()})
