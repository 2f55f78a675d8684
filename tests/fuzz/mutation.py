"""Bytes that are nearly right: what a fuzzer feeds to a reader."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

#: What readers of text and of binary formats stumble over.
_WORDS = (
    *(
        b"NaN",
        b"1e999",
        b"-1",
        b"-0",
        b"0.1",
        b"null",
        b"true",
        b"[]",
        b"{}",
        b"[[[[[[",
        b"\\ud800",
    ),
    *(
        b"\\u0000",
        b'"',
        b"\\",
        b"\xff",
        b"\0",
        b"\n",
        b"\r\n",
        b"\x1b[2J",
        b"../",
        b"/",
        b" ",
        b"=",
    ),
    *(
        b"9" * 30,
        b"\xef\xbb\xbf",
        b"\x80\0\0\0",
        b"\xff\xff\xff\xff",
        b"PK\3\4",
        b"PK\1\2",
        b"PK\5\6",
    ),
    *(
        b"\x1f\x8b\x08",
        b"-----BEGIN SSH SIGNATURE-----\n",
        b"ssh-ed25519",
        b"[[",
        b"]]",
        b"'''",
        b"!!",
    ),
)
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**53, 2**64, 0.5, 1e300, "", "a", "../a", "\x1b[2J", "\ud800"),
    *("a" * 300, "0" * 64, [], {}, [[]], {"a": {}}, ["a"], "1", "CON", "\u0130", "é", "a/b"),
)
_MOST = 400_000  # bytes of an input


def mutated(data: bytes, other: bytes, choose: random.Random) -> bytes:
    """The input with a few things done to it; other: another one to take pieces from."""
    if data[:1] == b"{" and choose.random() < 0.5:
        return _of_json(data, choose)
    for _ in range(choose.choice((1, 1, 1, 2, 3, 8))):
        data = choose.choice(_WAYS)(data, other, choose)
    return data[:_MOST]


def _flip(data: bytes, other: bytes, choose: random.Random) -> bytes:
    at = choose.randrange(len(data) or 1)
    return (
        data[:at] + bytes([data[at] ^ 1 << choose.randrange(8)]) + data[at + 1 :] if data else b"a"
    )


def _put(data: bytes, other: bytes, choose: random.Random) -> bytes:
    at, word = choose.randint(0, len(data)), choose.choice(_WORDS)
    return data[:at] + word + data[at + choose.choice((0, len(word))) :]


def _cut(data: bytes, other: bytes, choose: random.Random) -> bytes:
    begin, end = _range(data, choose)
    return data[:begin] + data[end:]


def _double(data: bytes, other: bytes, choose: random.Random) -> bytes:
    begin, end = _range(data, choose)
    return data[:end] + data[begin:end] * choose.choice((1, 1, 2, 50)) + data[end:]


def _swap(data: bytes, other: bytes, choose: random.Random) -> bytes:
    begin, end = _range(data, choose)
    middle = (begin + end) // 2
    return data[:begin] + data[middle:end] + data[begin:middle] + data[end:]


def _splice(data: bytes, other: bytes, choose: random.Random) -> bytes:
    (begin, end), (there, to) = _range(other, choose), _range(data, choose)
    return data[:there] + other[begin:end] + data[choose.choice((there, to)) :]


def _swap_blocks(data: bytes, other: bytes, choose: random.Random) -> bytes:
    """Of a tar, or of the framing around it."""
    size = choose.choice((512, 1024, 1029))
    count = len(data) // size
    if count < 2:
        return data[::-1]
    one, two = sorted(choose.sample(range(count), 2))
    a, b = slice(one * size, (one + 1) * size), slice(two * size, (two + 1) * size)
    return data[: a.start] + data[b] + data[a.stop : b.start] + data[a] + data[b.stop :]


_WAYS: Sequence[Callable[[bytes, bytes, random.Random], bytes]] = (
    *(_flip, _flip, _put, _put, _cut, _double, _swap, _splice, _swap_blocks),
)


def _range(data: bytes, choose: random.Random) -> tuple[int, int]:
    """Some bytes: mostly few."""
    begin = choose.randint(0, len(data))
    length = choose.choice((1, 2, 4, 16, 100, len(data)))
    return begin, min(begin + choose.randint(0, length), len(data))


def _of_json(data: bytes, choose: random.Random) -> bytes:
    """Another value somewhere in the document, in canonical spelling: so it is read to its end."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return _put(data, b"", choose)
    for _ in range(choose.choice((1, 1, 2, 4))):
        places = list(_places(document)) or [(document, "a")]
        (table, key), (other, name) = choose.choice(places), choose.choice(places)
        way = choose.randrange(5)
        value = copy.deepcopy(choose.choice(_VALUES) if way > 2 else other.get(name, 0))
        if way == 0 and key in table:
            del table[key]
        elif way == 1:
            table[choose.choice(("a", "\x1b", "held", "executable", "provenance"))] = value
        else:
            table[key] = value
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return text.encode() + b"\n"


def _places(value: Any, depth: int = 0) -> Iterator[tuple[dict[Any, Any], Any]]:
    """Every table in it with each of its keys."""
    if depth > 20:
        return
    if isinstance(value, dict):
        for key, item in value.items():
            yield value, key
            yield from _places(item, depth + 1)
    elif isinstance(value, list):
        for item in value:
            yield from _places(item, depth + 1)
