"""The summary of an inventory as QR codes on a screen."""

from __future__ import annotations

import re
from typing import Any

import pytest
import segno

from mirror.errors import MachineError
from mirror.qrcodes import codes

WORDS = [f"{number:02d}{'ABCDEFGHIJ' * 6}" for number in range(32)]


def modules(lines: list[str]) -> list[list[int]]:
    """What a camera sees, 1 for dark, without the margin."""
    rows: list[list[int]] = []
    for line in lines:
        blocks = re.sub(r"\x1b\[[0-9;]*m", "", line)
        rows += [[block not in light for block in blocks] for light in ("█▀", "█▄")]
    width = len(rows[0])
    margin = rows[:2] + rows[width - 2 : width] + [[*row[:2], *row[-2:]] for row in rows]
    assert not any(dark for row in margin for dark in row)
    return [[*map(int, row[2:-2])] for row in rows[2 : width - 2]]


@pytest.mark.parametrize("screen", [(80, 24), (80, 50), (132, 43), (200, 50), (400, 200)])
def test_codes_fit_the_screen_and_hold_every_word(
    screen: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[str, segno.QRCode]] = []
    make = segno.make_qr

    def remember(text: str, **wishes: Any) -> segno.QRCode:
        made.append((text, make(text, **wishes)))
        return made[-1][1]

    monkeypatch.setattr(segno, "make_qr", remember)
    shown = codes(WORDS, *screen, colour=False)
    # The last ones: those before were too few to hold all.
    made = made[-len(shown) :]
    assert " ".join(text for text, _ in made).split() == WORDS
    assert [modules(lines) for lines in shown] == [[*map(list, c.matrix)] for _, c in made]
    assert all(int(code.version) <= 20 for _, code in made), "no camera reads larger ones easily"
    for lines in shown:
        assert max(map(len, lines)) <= screen[0]
        assert len(lines) + 2 <= screen[1]


def test_colours_are_black_and_white_whatever_the_terminal_has() -> None:
    [plain] = codes(WORDS[:3], 80, 50, colour=False)
    [coloured] = codes(WORDS[:3], 80, 50, colour=True)
    assert coloured == [f"\x1b[37;40m{line}\x1b[0m" for line in plain]


@pytest.mark.parametrize("screen", [(80, 10), (20, 50), (0, 0)])
def test_a_screen_that_is_too_small(screen: tuple[int, int]) -> None:
    with pytest.raises(MachineError, match="too small for QR codes") as caught:
        codes(WORDS, *screen, colour=False)
    assert "--summary" in (caught.value.hint or "")
