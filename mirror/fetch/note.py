"""What one process leaves for the next about a file that is not complete."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from mirror.fetch import pieces
from mirror.fetch.pieces import Ranges


@dataclass(frozen=True, slots=True)
class Note:
    """The size of the whole file, its entity tag (empty: none), and which bytes are there."""

    size: int
    etag: str
    done: Ranges

    def write(self, path: Path) -> None:
        """Replace what was noted before. Raises OSError."""
        temporary = path.with_suffix(".new")
        try:
            temporary.write_text(json.dumps(asdict(self)), encoding="ascii")
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def read(path: Path, file: Path) -> Note | None:
    """What was noted about a file, as far as the file bears it out."""
    try:
        state = json.loads(path.read_bytes())
        there = file.stat().st_size
        done = [(int(start), min(int(end), there)) for start, end in state["done"]]
        done = pieces.joined((start, end) for start, end in done if 0 <= start < end)
        return Note(int(state["size"]), str(state["etag"]), done)
    except (OSError, ValueError, KeyError, TypeError):
        return None
