"""Indexes that no mirror writes: each is refused before a byte of the payload is looked at."""

from __future__ import annotations

from collections.abc import Callable

from mirror.core import strict_json
from mirror.core.artifact import Json
from mirror.core.index import MAX_ARTIFACTS
from tests.hostile.making import described, index, repeated, spliced
from tests.hostile.shop import Make, Row, Shop


def _spoiled(spoil: Callable[[bytes], bytes]) -> Make:
    """The right index with something done to it."""

    def make(shop: Shop) -> list[object]:
        assert spoil(shop.index) != shop.index
        return shop.headed(spoil(shop.index))

    return make


def _as(data: bytes) -> Make:
    return lambda shop: shop.headed(data)


def _with(**keys: Json) -> Make:
    return _as(index(**keys))


def _listing(*paths: str) -> Make:
    return _with(artifacts=[described(path) for path in paths])


def _artifact(**keys: Json) -> Make:
    return _with(artifacts=[described("files/a", **keys)])


def _target(**keys: Json) -> Make:
    return _with(target={"python": "3.11", "platform": "linux-x86_64", **keys})


def _replaced(old: bytes, new: bytes) -> Make:
    return _spoiled(lambda data: data.replace(old, new, 1))


INDEXES = [
    Row("no-index", 5, "not JSON", _as(b"")),
    Row("another-document", 5, "malformed", _as(b"{}\n")),
    Row("no-line-feed", 5, "canonical", _spoiled(lambda data: data[:-1])),
    Row("two-line-feeds", 5, "canonical", _spoiled(lambda data: data + b"\n")),
    Row("a-space", 5, "canonical", _replaced(b":", b": ")),
    Row("duplicate-key", 5, "canonical", _replaced(b'"name"', b'"name":"demo","name"')),
    Row(
        "duplicate-key-in-an-artifact", 5, "canonical", _replaced(b'"size":6', b'"size":6,"size":6')
    ),
    Row("nan-as-a-size", 5, "not JSON", _replaced(b'"size":6', b'"size":NaN')),
    Row("nan-where-anything-goes", 5, "NaN is no number", _as(spliced(b'{"a":NaN}'))),
    Row("infinity", 5, "Infinity is no number", _as(spliced(b'{"a":-Infinity}'))),
    Row("float-without-bounds", 5, "too large", _as(spliced(b'{"a":1e999}'))),
    Row("not-utf-8", 5, "not JSON", _replaced(b"files/a", b"files\xff")),
    Row("utf-8-unescaped", 5, "not JSON", _replaced(b"files/a", "files/ü".encode())),
    Row("utf-16", 5, "not JSON", _spoiled(lambda data: data.decode().encode("utf-16"))),
    Row("byte-order-mark", 5, "not JSON", _spoiled(lambda data: b"\xef\xbb\xbf" + data)),
    Row("escape-too-many", 5, "canonical", _replaced(b"files/a", b"files/\\u0061")),
    Row("200000-deep", 5, "nest", _as(b"[" * 200_000)),
    Row("200000-deep-and-closed", 5, "nest", _as(spliced(b"[" * 200_000 + b"]" * 200_000))),
    Row("200000-deep-in-tables", 5, "nest", _as(b'{"a":' * 200_000)),
    Row("33-deep", 5, "nest", _as(spliced(b'{"a":' + b"[" * 33 + b"]" * 33 + b"}"))),
    Row(
        "lists-without-number",
        5,
        "lists and tables",
        _as(spliced(b'{"a":[' + repeated(b"[],", 3 * strict_json.MAX_TABLES + 3) + b"]}")),
    ),
    Row(
        "values-without-number",
        5,
        "commas",
        _as(spliced(b'{"a":[' + repeated(b"1,", 2 * strict_json.MAX_COMMAS + 4) + b"]}")),
    ),
    Row(
        "artifacts-without-number",
        5,
        "more than 1,000,000 artifacts",
        _as(spliced(b"{}", repeated(b"0,", 2 * MAX_ARTIFACTS + 2))),
    ),
    Row("negative-size", 5, "size is not a byte count", _artifact(size=-6)),
    Row("float-size", 5, "size is not a byte count", _artifact(size=6.0)),
    Row("true-as-a-size", 5, "size is not a byte count", _artifact(size=True)),
    Row("size-above-2^53", 5, "size is not a byte count", _artifact(size=2**53 + 1)),
    Row("a-number-of-1000000-digits", 5, "digits", _as(spliced(b'{"a":%s}' % (b"9" * 10**6)))),
    Row("a-real-of-1000000-digits", 5, "too l", _as(spliced(b'{"a":0.%s}' % (b"9" * 10**6)))),
    Row("extra-field", 5, "keys are not those", _with(extra=1)),
    Row("extra-field-in-an-artifact", 5, "keys are not those", _artifact(mode=0o4755)),
    Row("extra-field-in-the-target", 5, "unknown key", _target(user="root")),
    Row("missing-field", 5, "keys are not those", _replaced(b'"verify":{},', b"")),
    Row("format-0", 5, "format is not 1", _with(format=0)),
    Row("format-of-true", 5, "format is not 1", _with(format=True)),
    Row("format-2", 7, "this mirror reads format 1", _with(format=2)),
    Row("name-that-is-a-path", 5, "name is not a plain name", _with(name="../x")),
    Row("name-with-an-escape", 5, "name is not a plain name", _with(name="\x1b[2J")),
    Row("name-without-end", 5, "name is not a plain name", _with(name="a" * 10**6)),
    Row("kind-that-is-a-path", 5, "kind is not a plain word", _artifact(kind="../x")),
    Row("hash-in-capitals", 5, "sha256 is not one", _artifact(sha256="AB" * 32)),
    Row("hash-that-is-a-path", 5, "sha256 is not one", _artifact(sha256="../" * 21 + "x")),
    Row("another-platform", 5, "unknown platform", _target(platform="amiga")),
    Row("target-with-an-escape", 5, "target.glibc has odd", _target(glibc="\x1b]0;x\x07")),
    Row("target-with-lines", 5, "target.provided has odd", _target(provided=["a==1\n$ rm -rf /"])),
    Row("target-without-end", 5, "is too long", _target(cuda="1" * 10**6)),
    Row("target-with-an-odd-key", 5, r"unknown key: \\x1b", _target(**{"\x1b[2J" * 10**5: "x"})),
]

_ODD = {
    "empty": ("", "is empty"),
    "absolute": ("/etc/passwd", "is absolute"),
    "parent": ("../../etc/passwd", r"component '\.\.'"),
    "parent-within": ("files/../../x", r"component '\.\.'"),
    "dot": ("files/./x", r"component '\.'"),
    "empty-component": ("files//x", "component ''"),
    "ends-with-a-slash": ("files/x/", "component ''"),
    "backslash": ("files\\..\\x", "control character or one of"),
    "nul": ("files/a\0b", r"\\x00"),
    "control": ("files/a\rb", r"\\r"),
    "ansi": ("files/\x1b[2J\x1b[1;1Hok", r"\\x1b"),
    "csi-of-one-byte": ("files/\x9b2J", r"\\x9b"),
    "line-feed": ("files/a\nerror: none", r"\\n"),
    "surrogate": ("files/\udc80", r"\\udc80"),
    "component-of-256": ("files/" + "x" * 256, "longer than 255"),
    "component-of-256-in-utf-8": ("files/" + "ü" * 128, "longer than 255"),
    "4001-bytes": ("a/" * 2000 + "b", "longer than 4,000"),
    "a-million-bytes": ("a" * 10**6, "longer than 4,000"),
    "device-of-windows": ("files/CON", "reserves"),
    "device-with-an-ending": ("files/nul.tar.gz", "reserves"),
    "device-in-a-folder": ("com1/x", "reserves"),
    "ends-with-a-dot": ("files/x.", "ends with a dot"),
    "ends-with-a-space": ("files/x /y", "ends with a dot"),
    "drive": ("C:/x", "control character or one of"),
    "wildcard": ("files/*", "control character or one of"),
    "not-nfc": ("files/e\u0301", "NFC"),
    "index-itself": ("mirror-bundle.json", "one file on some systems"),
    "signature-in-capitals": ("MIRROR-BUNDLE.JSON.SIG", "one file on some systems"),
    "below-the-index": ("mirror-bundle.json/x", "is a file and also a folder"),
}
_TOGETHER = {
    "same-path": ("files/a", "files/a"),
    "same-after-casefold": ("files/straße", "FILES/STRASSE"),
    "same-after-nfc": ("files/\u0390", "files/\u03aa\u0301"),
}
PATHS = [
    *(Row(f"path-{name}", 5, says, _listing(path)) for name, (path, says) in _ODD.items()),
    *(
        Row(f"paths-{name}", 5, "are one file on some systems", _listing(*pair))
        for name, pair in _TOGETHER.items()
    ),
    Row("path-above-another", 5, "also a folder", _listing("files/a/b/c", "files/a!", "files/a")),
]
