"""Words as QR codes for a terminal, so that a camera reads them and nobody types.

The library is segno, pure Python (docs/adr/0002). In a character two modules stand one above the
other.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress

from mirror.errors import MachineError

#: Light modules around a code.
_BORDER = 2
#: Larger codes are hard to read from a photo of a screen: 97 modules a side.
_LARGEST = 20
#: Lines of the screen that are for the words below a code.
_BELOW = 2
#: Both modules of a character: light is True.
_BLOCKS = {(True, True): "█", (True, False): "▀", (False, True): "▄", (False, False): " "}
#: Black on white, whatever colours the terminal has.
_COLOURS = "\x1b[37;40m"
_RESET = "\x1b[0m"


def codes(words: Sequence[str], columns: int, rows: int, *, colour: bool) -> list[list[str]]:
    """The words in as few codes as fit a screen of this size one by one: the lines of each.

    colour: with the terminal's codes for black and white; else light is what the terminal writes
    with. What a camera reads is words set apart by spaces. Raises MachineError for a screen that is
    too small for any code.
    """
    import segno  # slow to import, and here alone

    side = min(columns, 2 * (rows - _BELOW)) - 2 * _BORDER
    largest = min((side - 17) // 4, _LARGEST)  # a code of version v has 17 + 4v modules a side
    for count in range(1, len(words) + 1) if largest > 0 else ():
        texts = [" ".join(part) for part in _parts(words, count)]
        with suppress(segno.DataOverflowError):
            made = [segno.make_qr(t, version=largest, error="l", boost_error=False) for t in texts]
            return [_lines(code.matrix, colour=colour) for code in made]
    raise MachineError(
        f"a screen of {columns} columns and {rows} rows is too small for QR codes",
        hint="Make the window larger or its letters smaller; or photograph --summary.",
    )


def _parts(words: Sequence[str], count: int) -> list[Sequence[str]]:
    """The words in so many runs that are about equally long."""
    ends = [len(words) * number // count for number in range(count + 1)]
    return [words[start:end] for start, end in itertools.pairwise(ends)]


def _lines(matrix: Sequence[Sequence[int]], *, colour: bool) -> list[str]:
    """matrix: rows of modules, 1 for dark."""
    width = len(matrix) + 2 * _BORDER
    margin = [[True] * width] * _BORDER
    beside = [True] * _BORDER
    rows = [*margin, *([*beside, *(not dark for dark in row), *beside] for row in matrix), *margin]
    if len(rows) % 2:
        rows.append([True] * width)
    lines = (
        "".join(_BLOCKS[pair] for pair in zip(above, below, strict=True))
        for above, below in zip(rows[::2], rows[1::2], strict=True)
    )
    return [f"{_COLOURS}{line}{_RESET}" if colour else line for line in lines]
