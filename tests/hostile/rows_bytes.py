"""Bundles cut, lengthened, changed, or of other members than the index implies."""

from __future__ import annotations

import gzip
import os
import random
from collections.abc import Callable, Iterator

from mirror.bundle import layout
from mirror.core.artifact import Artifact
from mirror.core.index import MAX_INDEX_BYTES
from tests import bundles
from tests.hostile.making import HASH, described, index
from tests.hostile.shop import FILES, Make, Row, Shop

_HEAD = len(layout.GZIP_HEADER) + 5


def _changed(change: Callable[[bytearray], object]) -> Make:
    def make(shop: Shop) -> list[object]:
        data = bytearray(shop.data)
        change(data)
        return shop.bundle(bytes(data))

    return make


def _flip(at: int) -> Make:
    def flip(data: bytearray) -> None:
        data[at] ^= 1

    return _changed(flip)


def _cut(keep: Callable[[bytes], int]) -> Make:
    return lambda shop: shop.bundle(shop.data[: keep(shop.data)])


def _cut_at(at: int) -> Make:
    return _cut(lambda data: at)


def _after(more: bytes) -> Make:
    return lambda shop: shop.bundle(shop.data + more)


def _tail_of_zeros(shop: Shop) -> list[object]:
    [path] = shop.bundle(shop.data)
    os.truncate(str(path), len(shop.data) + 512 * 2**20)  # sparse
    return [path]


def _larger_index(size: int) -> Make:
    def make(shop: Shop) -> list[object]:
        right = layout.member_header("mirror-bundle.json", len(shop.index), 0o644)
        other = layout.member_header("mirror-bundle.json", size, 0o644)
        return shop.framed(bytes(shop.tar).replace(right, other, 1))

    return make


def _promised(*sizes: int) -> Make:
    """A right head whose index promises artifacts of these sizes; nothing comes."""

    def make(shop: Shop) -> list[object]:
        listed = [described(f"files/{n}", size=size, sha256=HASH) for n, size in enumerate(sizes)]
        head = layout.head(index(artifacts=listed), b"")
        shipped = [Artifact("files", f"files/{n}", size, HASH) for n, size in enumerate(sizes)]
        total = len(head) + layout.payload_size(shipped)
        return shop.bundle(
            b"".join(
                front + head[chunk.start : chunk.stop][cut]
                for chunk in layout.chunks(0, len(head))
                for front, cut in zip(chunk.frame(total), chunk.cuts(), strict=True)
            )
        )

    return make


def _bomb(shop: Shop) -> list[object]:
    """A gigabyte of zeros that deflate made small, behind a right head."""
    tar = layout.head(shop.index, b"") + bytes(64 * 2**20)
    return shop.bundle(layout.GZIP_HEADER + gzip.compress(tar, 9)[10:])


def _cuts() -> Iterator[Row]:
    # The bundle is some 305,000 bytes long: index, three files and framing.
    for at in range(4096, 300_000, 4096):
        yield Row(f"cut-at-{at}", 5, "bytes short", _cut_at(at))


BYTES = [
    Row("empty", 5, "is empty", lambda shop: shop.bundle(b"")),
    Row("not-gzip", 5, "no gzip file", lambda shop: shop.bundle(random.Random(2).randbytes(5000))),
    Row("plain-tar", 5, "is a plain tar", lambda shop: shop.bundle(bytes(shop.tar))),
    Row("compressed", 5, "another program", lambda shop: shop.bundle(gzip.compress(shop.tar))),
    Row("gzip-bomb", 5, "another program", _bomb),
    *_cuts(),
    Row("trailer-cut", 5, "8 bytes short", _cut(lambda data: len(data) - 8)),
    Row("trailer-cut-in-half", 5, "4 bytes short", _cut(lambda data: len(data) - 4)),
    Row("wrong-crc", 5, "checksum", _flip(-8), untouched=False),
    Row("wrong-length-in-trailer", 5, "checksum", _flip(-2), untouched=False),
    Row("trailing-byte", 5, "1 bytes after its end", _after(b"\0")),
    Row("trailing-text", 5, "bytes after its end", _after(b"#!/bin/sh\n")),
    Row("extra-gzip-member", 5, "bytes after its end", _after(gzip.compress(b"more"))),
    Row("two-bundles", 5, "after its end", lambda shop: shop.bundle(shop.data * 2)),
    Row("zero-tail-of-512-MiB", 5, "bytes after its end", _tail_of_zeros),
    Row("no-end-block", 5, "short", lambda shop: shop.framed(bytes(shop.tar[:-1024]))),
    Row("one-end-block", 5, "short", lambda shop: shop.framed(bytes(shop.tar[:-512]))),
    Row(
        "three-end-blocks",
        5,
        "after its end",
        lambda shop: shop.framed(bytes(shop.tar + bytes(512))),
    ),
    Row(
        "data-after-end",
        5,
        "after its end",
        lambda shop: shop.framed(bytes(shop.tar + bytes(9) * 512)),
    ),
    Row("index-larger-than-it-is", 5, ".", _larger_index(5000)),
    Row("index-over-the-cap", 5, "are read", _larger_index(MAX_INDEX_BYTES + 1)),
    Row("index-of-8-GiB", 5, "no member", _larger_index(2**33)),
    Row("index-of-8-EiB", 5, "no member", _larger_index(2**63)),
    Row("promises-2^53", 5, "bytes short", _promised(2**53)),
    Row("promises-8-EiB", 5, "size is not a byte count", _promised(2**63)),
    Row("promises-16-EiB-in-parts", 5, "bytes short", _promised(*[2**53] * 2048)),
    Row("framing-of-the-head", 5, "no gzip file|another program|framing", _flip(_HEAD - 3)),
    Row("bit-flip-in-a-payload", 5, "files/m .* has not the sha256", _flip(-200_000), False),
    Row("bit-flip-in-the-index", 5, "has not the sha256", _flip(_HEAD + 512 + 200), False),
]


# -- members ------------------------------------------------------------------------------------


def sealed(tar: bytearray, at: int) -> bytes:
    """The tar with a right checksum in the header at `at`."""
    tar[at + 148 : at + 156] = b" " * 8
    tar[at + 148 : at + 156] = b"%06o\0 " % sum(tar[at : at + 512])
    return bytes(tar)


def _field(place: int, value: bytes) -> Make:
    """The header of files/m, with a right checksum and another value at this place."""

    def make(shop: Shop) -> list[object]:
        tar, at = shop.tar, shop.header("files/m")
        tar[at + place : at + place + len(value)] = value
        return shop.framed(sealed(tar, at))

    return make


def _before(kind: bytes, data: bytes, name: bytes = b"././@PaxHeader") -> Make:
    """A member that says more about files/m stands in front of it."""

    def make(shop: Shop) -> list[object]:
        tar, at = shop.tar, shop.header("files/m")
        member = bytearray(layout.member_header("x", len(data), 0o644))
        member[:100] = name.ljust(100, b"\0")
        member[156:157] = kind
        more = sealed(member, 0) + data + bytes(layout.padding(len(data)))
        return shop.framed(bytes(tar[:at]) + more + bytes(tar[at:]))

    return make


def _pax(key: str, value: str) -> bytes:
    """A record of a pax header: its own length in front."""
    rest = f" {key}={value}\n".encode()
    return b"%d%s" % (len(rest) + 2, rest)


def _members(*order: int) -> Make:
    """The members by their numbers, in this order."""

    def make(shop: Shop) -> list[object]:
        each = [
            layout.member_header(path, len(data), 0o644) + data + bytes(layout.padding(len(data)))
            for path, data in FILES.items()
        ]
        each.append(layout.member_header("files/extra", 0, 0o644))
        head = layout.head(shop.index, b"")
        return shop.framed(head + b"".join(each[n] for n in order) + layout.END)

    return make


def _resized(change: Callable[[bytes], bytes]) -> Make:
    def make(shop: Shop) -> list[object]:
        data = FILES["files/m"]
        return shop.framed(bytes(shop.tar).replace(data, change(data)))

    return make


_TYPES = {
    "hard-link": b"1",
    "symlink": b"2",
    "character-device": b"3",
    "block-device": b"4",
    "folder": b"5",
    "fifo": b"6",
    "type-7": b"7",
    "sparse": b"S",
    "type-Z": b"Z",
    "old-file": b"\0",
}
_NOT_IMPLIED = "not what the index implies"
MEMBERS = [
    *(
        Row(name, 5, _NOT_IMPLIED, _field(156, kind), untouched=False)
        for name, kind in _TYPES.items()
    ),
    *(
        Row(name, 5, _NOT_IMPLIED, make, untouched=False)
        for name, make in {
            "symlink-to-etc": _field(156, b"2/etc/passwd\0"),
            "setuid": _field(100, b"0004755\0"),
            "uid": _field(108, b"0001750\0"),
            "gid": _field(116, b"0001750\0"),
            "time": _field(136, b"00000000001\0"),
            "negative-base-256-size": _field(124, b"\xff" * 12),
            "size-of-1-EiB": _field(124, b"\x80" + (2**60).to_bytes(11, "big")),
            "size-one-more": _field(124, b"00001111741\0"),
            "another-path": _field(0, b"../../m\0"),
            "absolute-path": _field(0, b"/etc/m\0"),
            "members-swapped": _members(0, 2, 1),
        }.items()
    ),
    # A member more makes the bundle longer than the index says: known from the length alone.
    *(
        Row(name, 5, "after its end", make)
        for name, make in {
            "pax-path": _before(b"x", _pax("path", "../../x")),
            "pax-size": _before(b"x", _pax("size", "9")),
            "pax-global": _before(b"g", _pax("path", "../../x")),
            "gnu-long-name": _before(b"L", b"files/m\0", b"././@LongLink"),
            "gnu-long-link": _before(b"K", b"/etc/passwd\0", b"././@LongLink"),
            "member-repeated": _members(0, 0, 1, 2),
            "member-extra": _members(0, 1, 2, 3),
            "payload-longer": _resized(lambda data: data + bytes(512)),
        }.items()
    ),
    Row("member-missing", 5, "short", _members(1, 2)),
    Row("payload-shorter", 5, "short", _resized(lambda data: data[:-512])),
    Row(
        "index-not-first",
        5,
        "no member mirror-bundle.json",
        lambda shop: shop.framed(layout.member_header("files/x", 0, 0o644) + bytes(shop.tar)),
    ),
    Row(
        "header-of-nothing",
        5,
        "no member mirror-bundle.json",
        lambda shop: shop.bundle(bundles.framed(bytes(10_240))),
    ),
]
