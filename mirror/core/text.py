"""How sizes and times are written for people."""

from __future__ import annotations

import re

_POWERS = " KMGT"


def human_size(size: int) -> str:
    """Bytes in powers of 1000, three digits: 999 B, 1.23 MB, 45.6 GB."""
    value, unit = float(size), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if value < 999.5 or unit == "TB":
            break
        value /= 1000
    if unit == "B":
        return f"{size} B"
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {unit}"


def parsed_size(text: str) -> int:
    """Bytes: "4G" and "4GB" are 4,000,000,000, "4GiB" is 4,294,967,296, "512" is 512.

    Raises ValueError for anything else, and for less than one byte.
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]?)(iB|B)?", text.strip(), re.I)
    unit = found[2].upper() or " " if found else ""
    binary = found is not None and (found[3] or "").lower() == "ib"
    if found is None or (binary and unit == " "):
        raise ValueError(f"{text!r} is no size: write 4G, 700M or 4GiB")
    size = int(float(found[1]) * (1024 if binary else 1000) ** _POWERS.index(unit))
    if size < 1:
        raise ValueError(f"{text!r} is less than a byte")
    return size


def human_time(seconds: float) -> str:
    """0.42 s, 12.3 s, 4 min 05 s."""
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def counted(number: int, noun: str) -> str:
    """ "1 file", "3 files" """
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
