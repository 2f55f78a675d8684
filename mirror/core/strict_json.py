"""JSON from strangers: its shape is bounded before any of it is made into objects.

A list takes three bytes to write and ninety to hold, so the length alone bounds no memory.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

#: Lists and tables nest no deeper.
MAX_DEPTH = 32
#: No document has more lists and tables, nor more commas; those within texts are counted too.
MAX_TABLES = 3_000_000
MAX_COMMAS = 12_000_000
_MAX_DIGITS = 40
_NO_SHAPE = bytes(set(range(256)) - set(b'[]{}"'))
_ALIKE = bytes.maketrans(b"{}", b"[]")
_TEXT = re.compile(rb'"[^"]*"')


def loads(data: bytes) -> Any:
    """What these bytes spell, in ASCII.

    Raises ValueError for what is no JSON, for a document beyond the limits above, and for a number
    that no JSON reader is sure to keep (NaN, infinite, of more than 40 digits); RecursionError for
    a shape that this Python takes no more of.
    """
    text = data.decode("ascii")
    tables = data.count(b"[") + data.count(b"{")
    if tables > MAX_TABLES:
        raise ValueError(f"it has {tables:,} lists and tables; at most {MAX_TABLES:,} are read")
    if (commas := data.count(b",")) > MAX_COMMAS:
        raise ValueError(f"it has {commas:,} commas; at most {MAX_COMMAS:,} are read")
    if _deeper(data, MAX_DEPTH):
        raise ValueError(f"its lists and tables are open, or nest more than {MAX_DEPTH} deep")
    return json.loads(text, parse_int=_integer, parse_float=_real, parse_constant=_no_number)


def _deeper(data: bytes, depth: int) -> bool:
    """Whether brackets outside of texts nest deeper, or do not match.

    Backslashes outside of texts may lead this astray, but only about what follows them, and there
    a parser stops.
    """
    shape = data.replace(b"\\\\", b"").replace(b'\\"', b"").translate(_ALIKE, _NO_SHAPE)
    # Two quotes in a row are an empty text, or the seam of two texts: the rest stays in or out.
    shape = _TEXT.sub(b"", shape.replace(b'""', b""))
    for _ in range(depth):
        if not shape:
            break
        shape = shape.replace(b"[]", b"")  # the innermost
    return bool(shape)


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number has {len(digits):,} digits")
    return int(digits)


def _real(digits: str) -> float:
    if len(digits) > _MAX_DIGITS or not math.isfinite(value := float(digits)):
        raise ValueError("a number is too large or too long")
    return value


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number")
