"""What several commands show."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mirror.console import Console
    from mirror.core.index import Index


def bill(console: Console, data: bytes, name: str) -> None:
    """A bill of materials, byte for byte. name: where it is from."""
    from mirror.core import bill

    text, document = bill.parsed(data, name)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(newline="\n")  # its very bytes, also on Windows
    console.result(text.removesuffix("\n").split("\n"), document)


def licences(console: Console, index: Index) -> None:
    """Which licence covers what of an index."""
    from mirror.core import bill

    rows = bill.rows(index.artifacts)
    console.result(bill.lines(rows), bill.to_json(rows))
