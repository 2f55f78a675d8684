"""Bundles that nobody trusted has signed, and pieces of two that somebody did."""

from __future__ import annotations

import re
from dataclasses import replace

from mirror.bundle import layout
from tests import bundles
from tests.hostile import signatures
from tests.hostile.shop import FILES, Make, Row, Shop


def _signed(row: signatures.Row) -> Make:
    def make(shop: Shop) -> list[object]:
        case = signatures.Case(shop.folder, shop.patch)
        row(case)
        return [case.bundle]

    return make


def _sound(case: signatures.Case, files: dict[str, bytes], version: str) -> bytes:
    """A bundle of these files that alice has signed."""
    made = bundles.sources(case.folder / f"in{version}", files)
    made = replace(made, index=replace(made.index, version=version))
    made = replace(made, signature=case.alice.sign(made.index.to_bytes()))
    return made.pack(case.folder / f"{version}.tar.gz")


def _mixed(shop: Shop) -> list[object]:
    """The head of one bundle and the files of another, both signed by somebody trusted."""
    case = signatures.Case(shop.folder, shop.patch)
    _sound(case, FILES, "1")
    _sound(case, {path: data[::-1] for path, data in FILES.items()}, "2")
    tars = [signatures.tar_of(case.folder / f"{version}.tar.gz") for version in "12"]
    cut = tars[0].index(layout.member_header("files/a", 6, 0o644))
    return shop.framed(tars[0][:cut] + tars[1][cut:])


def _older(shop: Shop) -> list[object]:
    """Version 2 is in use; version 1 comes, signed as rightly."""
    case = signatures.Case(shop.folder, shop.patch)
    for version in "12":
        _sound(case, FILES, version)
    code, said = shop.run("install", case.folder / "2.tar.gz", "--root", shop.root)
    assert code == 0, said
    return [case.folder / "1.tar.gz"]


def _unsigned_and_malformed(shop: Shop) -> list[object]:
    """What is not signed is not even parsed."""
    signatures.Case(shop.folder, shop.patch)
    return shop.headed(b"[" * 200_000)


SIGNATURES = [
    *(
        Row(f"signature-{row.__name__}", 6, re.escape(says), _signed(row))
        for row, says in signatures.ROWS.items()
    ),
    Row("malformed-and-unsigned", 6, "is not signed", _unsigned_and_malformed),
    Row("blobs-of-two-signed-bundles", 5, "has not the sha256", _mixed, untouched=False),
    Row("older-than-installed", 6, "is older than 2", _older),
]
