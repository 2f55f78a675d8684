"""Bundles whose framing is right and whose tar is not: no other member, field or byte passes."""

from __future__ import annotations

import gzip
import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from mirror.bundle import layout
from mirror.bundle.reader import Reader
from mirror.core.index import MAX_INDEX_BYTES, MAX_SIGNATURE_BYTES
from mirror.errors import TargetError
from tests import bundles

BIG = {"files/a": b"hello\n", "models/m": random.Random(1).randbytes(300_000), "files/z": b"end"}


@pytest.fixture
def big(tmp_path: Path) -> bundles.Case:
    return bundles.Case(tmp_path, bundles.sources(tmp_path / "in", BIG))


def header_of(tar: bytearray, path: str) -> int:
    return tar.index(layout.member_header(path, len(BIG[path]), 0o644))


def sealed(tar: bytearray, at: int) -> bytes:
    """The tar with a right checksum in the header at `at`, in right framing."""
    tar[at + 148 : at + 156] = b" " * 8
    tar[at + 148 : at + 156] = b"%06o\0 " % sum(tar[at : at + 512])
    return bundles.framed(bytes(tar))


@pytest.mark.parametrize("kind", [b"\0", *(b"%c" % c for c in b"1234567ALKSZVMNXxg")])
def test_another_type_of_member(big: bundles.Case, kind: bytes) -> None:
    tar = big.tar
    at = header_of(tar, "models/m")
    tar[at + 156 : at + 157] = kind
    big.refused(sealed(tar, at), "the tar after files/a is not what the index implies")


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, b"models/n\0"),
        (0, b"../../m\0\0"),
        (100, b"0004755\0"),
        (100, b"0000600\0"),
        (108, b"0001750\0"),
        (116, b"0001750\0"),
        (124, b"00001111741\0"),  # a byte longer
        (124, b"\x80" + (2**60).to_bytes(11, "big")),
        (124, b"\xff" * 12),
        (124, b"     1111740"),
        (136, b"00000000001\0"),
        (157, b"files/a\0"),
        (257, b"ustar\00000"),
        (265, b"root\0"),
        (345, b"prefix\0"),
        (500, b"x"),
    ],
)
def test_another_field_of_a_header(big: bundles.Case, place: int, value: bytes) -> None:
    tar = big.tar
    at = header_of(tar, "models/m")
    tar[at + place : at + place + len(value)] = value
    big.refused(sealed(tar, at), "the tar after files/a is not what the index implies")


def test_a_wrong_checksum_in_a_header(big: bundles.Case) -> None:
    tar = big.tar
    tar[header_of(tar, "models/m") + 150] ^= 1
    big.refused(bundles.framed(bytes(tar)), "the tar after files/a")


def test_bytes_in_the_padding(big: bundles.Case) -> None:
    tar = big.tar
    at = header_of(tar, "models/m") - 1
    tar[at] = 1
    message = big.refused(bundles.framed(bytes(tar)), "the tar after files/a")
    assert f"byte {layout.file_offset(at):,}" in message


def test_members_missing_repeated_added_or_in_another_order(big: bundles.Case) -> None:
    index = big.made.index
    head = layout.head(index.to_bytes(), b"")
    a, m, z = (
        layout.member_header(p, len(BIG[p]), 0o644) + BIG[p] + bytes(layout.padding(len(BIG[p])))
        for p in BIG
    )
    assert bundles.framed(head + a + m + z + layout.END) == big.data
    extra = layout.member_header("files/extra", 0, 0o644)
    long_name = layout.member_header("x" * 101, 0, 0o644)[:1024]
    for order in (
        [m, z],
        [a, a, m, z],
        [m, a, z],
        [a, z, m],
        [a, m, z, extra],
        [long_name, a, m, z],
    ):
        wrong = bundles.framed(head + b"".join(order) + layout.END)
        big.refused(wrong)
        big.refused(wrong, piped=True)


def test_a_payload_longer_or_shorter_than_the_index_says(big: bundles.Case) -> None:
    tar = bytes(big.tar)
    at = tar.index(BIG["models/m"])
    for wrong in (tar[:at] + tar[at + 512 :], tar[:at] + bytes(512) + tar[at:]):
        big.refused(bundles.framed(wrong))
        big.refused(bundles.framed(wrong), piped=True)


def test_the_index_is_not_first(big: bundles.Case) -> None:
    tar = bytes(big.tar)
    extra = layout.member_header("files/extra", 0, 0o644)
    big.refused(bundles.framed(extra + tar), "no member mirror-bundle.json")


def test_the_signature_is_missing(big: bundles.Case) -> None:
    tar = bytes(big.tar)
    signature = layout.member_header("mirror-bundle.json.sig", 0, 0o644)
    big.refused(
        bundles.framed(tar.replace(signature, b"", 1)), r"no member mirror-bundle\.json\.sig"
    )


@pytest.mark.parametrize(
    ("name", "limit"),
    [("mirror-bundle.json", MAX_INDEX_BYTES), ("mirror-bundle.json.sig", MAX_SIGNATURE_BYTES)],
)
def test_a_head_larger_than_the_limits_is_not_read(
    big: bundles.Case, name: str, limit: int
) -> None:
    tar = bytes(big.tar)
    right = {"mirror-bundle.json": len(big.made.index.to_bytes()), "mirror-bundle.json.sig": 0}
    header = layout.member_header(name, right[name], 0o644)
    for size in (limit + 1, 8**11 - 1):
        wrong = tar.replace(header, layout.member_header(name, size, 0o644), 1)
        big.refused(bundles.framed(wrong), f"{size:,} bytes long; at most {limit:,} are read")
    for size in (8**11, 2**60):
        wrong = tar.replace(header, layout.member_header(name, size, 0o644), 1)
        big.refused(bundles.framed(wrong), f"no member {re.escape(name)}")


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"{}\n",
        lambda data: data[:-1],
        lambda data: data + b"\n",
        lambda data: data.replace(b'"name":"demo"', b'"name":"demo","name":"demo"'),
        lambda data: data.replace(b'"size":6', b'"size":-6'),
        lambda data: data.replace(b'"size":6', b'"size":NaN'),
        lambda data: data.replace(b"files/a", b"../../a"),
        lambda data: data.replace(b"files/a", b"\\u001b[2Ja"),
        lambda data: data.replace(b"files/a", b"files\xff"),
        lambda data: b"[" * 200_000,
    ],
)
def test_an_index_that_is_malformed(big: bundles.Case, spoil: Callable[[bytes], bytes]) -> None:
    data = big.made.index.to_bytes()
    assert spoil(data) != data
    big.refused(bundles.framed(layout.head(spoil(data), b"") + layout.END))


def test_a_format_of_the_future_asks_for_another_mirror(big: bundles.Case, tmp_path: Path) -> None:
    data = big.made.index.to_bytes().replace(b'"format":1', b'"format":2')
    (tmp_path / "next.tar.gz").write_bytes(bundles.framed(layout.head(data, b"") + layout.END))
    with pytest.raises(TargetError, match="format 2"):
        Reader.open(tmp_path / "next.tar.gz")


def test_the_payload_of_another_bundle(tmp_path: Path, big: bundles.Case) -> None:
    """Right hashes, right framing, but bytes that this index does not name."""
    other = dict(BIG, **{"models/m": BIG["models/m"][::-1]})
    theirs = bundles.sources(tmp_path / "other", other)
    tail = gzip.decompress(theirs.pack(tmp_path / "other.tar.gz"))
    ours = bytes(big.tar)
    cut = ours.index(BIG["files/a"])
    assert tail.index(BIG["files/a"]) == cut
    big.refused(bundles.framed(ours[:cut] + tail[cut:]), "models/m .* has not the sha256")


def test_a_lie_about_what_is_shipped(tmp_path: Path, big: bundles.Case) -> None:
    """The index holds back an artifact whose bytes are there all the same."""
    first, *rest = big.made.index.entries
    index = replace(big.made.index, entries=(replace(first, shipped=False), *rest), base="1" * 64)
    tail = bytes(big.tar)[len(layout.head(big.made.index.to_bytes(), b"")) :]
    big.refused(bundles.framed(layout.head(index.to_bytes(), b"") + tail))
