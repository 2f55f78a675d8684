"""Rates, their differences, and the sizes of what is exchanged, as people read them."""

from __future__ import annotations

import math

from mirror.core.text import human_size


def rate(speed: float) -> str:
    """Bytes per second in powers of 1000: "294 GB/s"; "?" for what is no number."""
    return f"{human_size(int(speed))}/s" if math.isfinite(speed) else "?"


def binary(size: int) -> str:
    """Bytes in the largest binary unit that they fill: "512 KiB", "256 MiB"."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.4g} {unit}"


def difference(speed: float, base: float) -> str:
    """How much more or less it is than `base`: "-91 %"; empty where one of them is nothing."""
    if not (speed > 0 and base > 0 and math.isfinite(speed) and math.isfinite(base)):
        return ""
    share = round(100 * (speed / base - 1))
    return f"{share:+d} %" if share else "0 %"
