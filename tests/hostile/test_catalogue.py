"""Each hostile input of the catalogue, given to the real command."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hostile import rows_origins
from tests.hostile.catalogue import ROWS
from tests.hostile.rows_origins import ORIGINS
from tests.hostile.rows_trust import SIGNATURES
from tests.hostile.shop import Row, complaints
from tests.signing import ssh_keygen


def test_the_shop_takes_what_is_right(tmp_path: Path) -> None:
    row = Row("right", 0, "is in use", lambda shop: shop.bundle(shop.data), untouched=False)
    assert all("was left" in line for line in complaints(row, tmp_path)), "but for the generation"
    assert (tmp_path / "root/current/files/a").read_bytes() == b"hello\n"


def test_rows_have_names_of_their_own() -> None:
    names = [row.name for row in ROWS] + [row.name for row in ORIGINS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("row", [r for r in ROWS if r not in SIGNATURES], ids=lambda row: row.name)
def test_it_is_refused(row: Row, tmp_path: Path) -> None:
    assert complaints(row, tmp_path) == []


@pytest.mark.parametrize("row", SIGNATURES, ids=lambda row: row.name)
def test_it_is_not_trusted(row: Row, tmp_path: Path) -> None:
    ssh_keygen()
    assert complaints(row, tmp_path) == []


@pytest.mark.parametrize("row", ORIGINS, ids=lambda row: row.name)
def test_it_is_not_packed_or_not_linked(row: rows_origins.Refusal, tmp_path: Path) -> None:
    assert rows_origins.complaints(row, tmp_path) == []
