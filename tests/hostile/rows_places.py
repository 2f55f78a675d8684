"""Bundles that are sound and do not fit, or whose parts do not fit each other."""

from __future__ import annotations

import hashlib
import io
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import replace

from mirror.core.artifact import Artifact, Json
from mirror.core.index import Entry
from mirror.core.target import Target
from mirror.machine import this_glibc, this_platform
from tests import bundles
from tests.hostile.shop import Make, Row, Shop

_HERE = Target("3.11", this_platform())
_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_OTHER = "linux-aarch64" if this_platform() != "linux-aarch64" else "linux-x86_64"


def _zipped(method: int) -> bytes:
    """A wheel, of sorts, whose one entry says that it is packed in this way."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("demo.py", b"x" * 100)
    data = bytearray(buffer.getvalue())
    for at in (8, data.index(b"PK\1\2") + 10):
        data[at] = method
    return bytes(data)


def _encrypted() -> bytes:
    data = bytearray(_zipped(8))
    for at in (6, data.index(b"PK\1\2") + 8):
        data[at] |= 1
    return bytes(data)


def _sound(target: Target | None, *kinds: tuple[str, str, bytes], **origin: Json) -> Make:
    """A bundle of these artifacts (kind, path, bytes) of this origin, right in every byte."""

    def make(shop: Shop) -> Sequence[object]:
        made = bundles.sources(shop.folder / "in", {path: data for _, path, data in kinds})
        entries = tuple(
            Entry(Artifact(kind, path, len(data), hashlib.sha256(data).hexdigest(), origin=origin))
            for kind, path, data in kinds
        )
        made = replace(made, index=replace(made.index, target=target, entries=entries))
        return shop.bundle(made.pack(shop.folder / "right.tar.gz"))

    return make


_WHEEL = ("wheels", "wheels/demo-1.0-py3-none-any.whl", b"PK\5\6" + bytes(18))
_ORIGIN: dict[str, Json] = {
    "repo": "a/b",
    "revision": "main",
    "commit": "0" * 40,
    "file": "config.json",
    "default": True,
}
_ORIGINS: dict[str, dict[str, Json]] = {
    "a-parent": {"repo": "../../x"},
    "an-escape": {"repo": "a/\x1b[2J"},
    "a-revision-above": {"revision": "../../../x"},
    "a-revision-with-an-escape": {"revision": "\x1b[2J"},
    "no-commit": {"commit": "../../../x"},
    "a-file-above": {"file": "../../../x"},
    "a-list": {"repo": ["a"]},
}
PLACES = [
    Row("another-cpu", 7, "the bundle is for", _sound(Target("3.11", _OTHER), _WHEEL)),
    Row("another-system", 7, "the bundle is for", _sound(Target("3.11", "win-amd64"), _WHEEL)),
    Row(
        "another-python",
        7,
        "none is on PATH|is Python",
        _sound(replace(_HERE, python="3.1"), _WHEEL),
    ),
    Row("held-and-nowhere", 7, "builds on", lambda shop: _held(shop)),
    Row(
        "plain-file-elsewhere",
        5,
        "no place for a plain file",
        _sound(None, ("files", "env/bin/python", b"#!/bin/sh\n")),
        untouched=False,
    ),
    Row(
        "model-that-is-none",
        5,
        ".",
        _sound(None, ("models", "models/a/b/config.json", b"{}")),
        untouched=False,
    ),
    *(
        Row(
            f"model-from-{name}",
            5,
            ".",
            _sound(
                None,
                ("models", "models/a/b/config.json", b"{}"),
                **{**_ORIGIN, **origin},
            ),
            untouched=False,
        )
        for name, origin in _ORIGINS.items()
    ),
    Row(
        "tool-that-is-no-wheel",
        5,
        "no wheel",
        _sound(None, ("tool", "tool/wheels/demo-1.0-py3-none-any.whl", b"no zip")),
        untouched=False,
    ),
    *(
        Row(
            f"tool-packed-by-method-{method}",
            5,
            "no wheel",
            _sound(None, ("tool", "tool/wheels/demo-1.0-py3-none-any.whl", _zipped(method))),
            untouched=False,
        )
        for method in (0, 1, 12, 14, 99)
    ),
    Row(
        "tool-that-is-encrypted",
        5,
        "no wheel",
        _sound(None, ("tool", "tool/wheels/demo-1.0-py3-none-any.whl", _encrypted())),
        untouched=False,
    ),
    Row(
        "wheels-without-an-installer",
        5,
        "no pip",
        _sound(replace(_HERE, python=_PYTHON), _WHEEL),
        untouched=False,
    ),
]
if this_glibc():
    PLACES.append(
        Row(
            "another-glibc",
            7,
            "needs glibc 2.99",
            _sound(
                _HERE,
                (
                    "wheels",
                    f"wheels/demo-1.0-cp311-cp311-manylinux_2_99_{_HERE.platform[6:]}.whl",
                    b"x",
                ),
            ),
        )
    )


def _held(shop: Shop) -> Sequence[object]:
    """It names a file that it does not bring."""
    index = shop.sources.index
    entries = tuple(
        replace(entry, shipped=entry.artifact.path != "files/a") for entry in index.entries
    )
    made = replace(shop.sources, index=replace(index, entries=entries))
    return shop.bundle(made.pack(shop.folder / "right.tar.gz"))
