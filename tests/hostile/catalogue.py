"""Every hostile input, with the exit code and the words that it has to end with.

`tally` runs them all, for a count; test_catalogue.py runs each as a test.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tests.hostile import rows_origins
from tests.hostile.rows_bytes import BYTES, MEMBERS
from tests.hostile.rows_index import INDEXES, PATHS
from tests.hostile.rows_origins import ORIGINS
from tests.hostile.rows_places import PLACES
from tests.hostile.rows_trust import SIGNATURES
from tests.hostile.shop import Row, complaints

ROWS: list[Row] = [*BYTES, *MEMBERS, *INDEXES, *PATHS, *PLACES]
if shutil.which("ssh-keygen"):
    ROWS += SIGNATURES


def tally() -> tuple[int, int]:
    """How many inputs were tried, and how many of them were refused as they have to be."""
    right = 0
    rows: list[Row | rows_origins.Refusal] = [*ROWS, *ORIGINS]
    for row in rows:
        with tempfile.TemporaryDirectory() as folder:
            if isinstance(row, Row):
                found = complaints(row, Path(folder))
            else:
                found = rows_origins.complaints(row, Path(folder))
        right += not found
        for line in found:
            print(f"{row.name}: {line}")
    return len(rows), right
