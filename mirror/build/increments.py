"""What a server has already, by what `--since` names: it need not be shipped again."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mirror.bundle.reader import Reader
from mirror.core import index as indexes
from mirror.core import lock as locks
from mirror.core.artifact import Artifact
from mirror.core.index import Entry, Index
from mirror.core.paths import shown
from mirror.core.text import human_size
from mirror.errors import BundleError, UsageError
from mirror.store.blobs import Blobs

_GZIP = b"\x1f\x8b"
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Base:
    """What a server has already.

    source: as the person named it. name: sha256 that stands for it in an increment's file name.
    digest: of the bundle that is in use there, None when that is not known.
    held: sha256 of the artifacts in its root's store.
    index: of that bundle, where it is known.
    """

    source: str
    name: str
    digest: str | None
    held: frozenset[str]
    index: Index | None = None

    @property
    def label(self) -> str:
        """ "since-abcdef12" """
        return f"since-{self.name[:8]}"

    def increment(self, complete: Index) -> Index:
        """The complete bundle without what is held."""
        entries = (Entry(a, shipped=a.sha256 not in self.held) for a in complete.artifacts)
        return replace(complete, entries=tuple(entries), base=self.digest)

    def summary(self, index: Index) -> str:
        """ "12 of 40 files are there, 1.2 of 5.3 GB" """
        total = index.artifacts
        held = [a for a in total if a.sha256 in self.held]
        sizes = human_size(indexes.total_size(held)), human_size(indexes.total_size(total))
        return f"{len(held):,} of {len(total):,} files are there, {sizes[0]} of {sizes[1]}"


def read(path: Path, blobs: Blobs) -> Base:
    """What the server has that this bundle, lock or inventory speaks of.

    blobs: the builder's store, which holds the index of every bundle that was built with it: a
    bundle's digest is the sha256 of its index. Raises UsageError for any other file, BundleError
    for a damaged bundle.
    """
    source = shown(str(path))
    try:
        with open(path, "rb") as file:
            head = file.read(len(_GZIP))
            data = b"" if head == _GZIP else head + file.read()
    except OSError as error:
        raise UsageError(f"--since {source} cannot be read: {error.strerror}") from None
    if head == _GZIP:
        return _of_bundle(path, source)
    if data.lstrip()[:1] == b"{":
        document = _document(data, source)
        if "volumes" in document:
            return _of_bundle(path, source)
        return _of_inventory(document, hashlib.sha256(data).hexdigest(), source, blobs)
    try:
        lock = locks.parse(data, source)
    except UsageError:
        raise _unknown(source) from None
    return Base(source, lock.digest, None, _hashes(lock.artifacts))


def _of_bundle(path: Path, source: str) -> Base:
    with Reader.open(path) as reader:
        index = reader.index
    return Base(source, index.digest, index.digest, _hashes(index.artifacts), index)


def _of_inventory(document: dict[str, Any], name: str, source: str, blobs: Blobs) -> Base:
    digest, held = document.get("bundle"), document.get("held")
    wrong = digest is not None and not _is_hash(digest)
    if wrong or not (held is None or (isinstance(held, list) and all(map(_is_hash, held)))):
        raise UsageError(f"{source} is not an inventory: `bundle` and `held` are no hashes")
    index = _kept_index(digest, blobs) if digest else None
    if held is None and index is None:
        raise UsageError(
            f"{source} does not say which artifacts the server has"
            + (f", and bundle {digest[:12]} was not built here" if digest else ""),
            hint="Write it where that root is: mirror probe --root ROOT -o FILE",
        )
    known = frozenset(held) if held is not None else _hashes(index.artifacts if index else ())
    return Base(source, digest or name, digest, known, index)


def _kept_index(digest: str, blobs: Blobs) -> Index | None:
    try:
        index = indexes.parse(blobs.path(digest).read_bytes())
    except (OSError, BundleError):
        return None
    return index if index.digest == digest else None


def _document(data: bytes, source: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        raise _unknown(source) from None
    if not isinstance(document, dict):
        raise _unknown(source)
    return document


def _unknown(source: str) -> UsageError:
    return UsageError(
        f"--since {source} is no bundle, no lock and no inventory",
        hint="Name the bundle that the server has, its lock, or what `mirror probe` wrote there.",
    )


def _is_hash(value: object) -> bool:
    return isinstance(value, str) and _SHA256.fullmatch(value) is not None


def _hashes(artifacts: Iterable[Artifact]) -> frozenset[str]:
    return frozenset(artifact.sha256 for artifact in artifacts)
