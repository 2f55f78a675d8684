"""How sizes and times are written for people."""

from __future__ import annotations


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


def human_time(seconds: float) -> str:
    """0.42 s, 12.3 s, 4 min 05 s."""
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def counted(number: int, noun: str) -> str:
    """ "1 file", "3 files" """
    return f"{number:,} {noun}" + ("" if number == 1 else "s")
