"""What wheels say of the files that were installed from them: their RECORDs in an environment."""

from __future__ import annotations

import base64
import csv
import os
from contextlib import suppress
from pathlib import Path

from mirror.store.generation import Generation

#: Smaller files are soon read; of a large one, its wheel's word is taken.
LARGE = 2**18


def stated(generation: Generation) -> dict[str, tuple[int, str]]:
    """Size and sha256 of large files of the environment, by their path in the generation.

    What the builder has held every wheel against, and what nothing changes in installing: so these
    are the bytes that ought to be there, whether or not they have come through unpacking. What two
    wheels say differently is left out, and so is an environment that is not ours.
    """
    found: dict[str, tuple[int, str] | None] = {}
    if generation.env.is_symlink():
        return {}
    for file in generation.env.glob("lib/python3*/site-packages/*.dist-info/RECORD"):
        above = file.parent.parent.relative_to(generation.path)
        with suppress(OSError, ValueError, csv.Error):
            for row in csv.reader(file.read_text(encoding="utf-8").splitlines()):
                if known := _large(row):
                    path = os.path.normpath(Path(above, row[0]))
                    found[path] = known if found.get(path, known) == known else None
    return {path: known for path, known in found.items() if known}


def _large(row: list[str]) -> tuple[int, str] | None:
    if len(row) != 3 or not row[2].isdecimal() or int(row[2]) < LARGE:
        return None
    name, _, encoded = row[1].partition("=")
    digest = base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4))
    return (int(row[2]), digest.hex()) if name == "sha256" and len(digest) == 32 else None
