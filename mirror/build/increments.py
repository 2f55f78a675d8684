"""What a server has already, by what `--since` names: it need not be shipped again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from mirror.bundle.opening import opened
from mirror.bundle.volumes import bundle_name
from mirror.core import index as indexes
from mirror.core import inventory as inventories
from mirror.core import lock as locks
from mirror.core.artifact import Artifact
from mirror.core.index import Entry, Index
from mirror.core.paths import shown
from mirror.core.text import human_size
from mirror.ecosystems.source import Context
from mirror.errors import BundleError, UsageError
from mirror.store.blobs import Blobs

_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Base:
    """What a server has already.

    source: as the person named it. name: sha256 that stands for it in an increment's file name.
    digest: of the bundle that is in use there, None when that is not known.
    held: sha256 of the artifacts in its root's store.
    index: of that bundle, where it is known. bundle: its file, when that is what was named.
    """

    source: str
    name: str
    digest: str | None
    held: frozenset[str]
    index: Index | None = None
    bundle: Path | None = None

    @property
    def label(self) -> str:
        """ "since-abcdef12" """
        return f"since-{self.name[:8]}"

    def increment(self, complete: Index, deltas: Mapping[str, Artifact]) -> Index:
        """The complete bundle without what is held, or made of what is.

        deltas: sha256 of a file -> what is shipped for it.
        """
        absent = self.held | deltas.keys()
        entries = [Entry(a, shipped=a.sha256 not in absent) for a in complete.artifacts]
        entries += [Entry(deltas[sha256]) for sha256 in sorted(deltas)]
        return replace(complete, entries=tuple(entries), base=self.digest)

    def summary(self, index: Index) -> str:
        """ "12 of 40 files are there, 1.2 of 5.3 GB" """
        total = index.artifacts
        held = [a for a in total if a.sha256 in self.held]
        sizes = human_size(indexes.total_size(held)), human_size(indexes.total_size(total))
        return f"{len(held):,} of {len(total):,} files are there, {sizes[0]} of {sizes[1]}"


def of(path: Path, context: Context) -> Base:
    """What the server has that this bundle, lock or inventory speaks of.

    The builder's store holds the index of every bundle that was built with it: a bundle's digest is
    the sha256 of its index. Raises UsageError for any other file, BundleError for a damaged bundle.
    """
    source = shown(str(path))
    try:
        with open(path, "rb") as file:
            head = file.read(len(_GZIP))
            bundle = head == _GZIP or bundle_name(path.name) is not None
            data = b"" if bundle else head + file.read()
    except OSError as error:
        raise UsageError(f"--since {source} cannot be read: {error.strerror}") from None
    if bundle:
        with opened([str(path)], context.progress) as [reader]:
            index = reader.index
        whole = path if bundle_name(path.name) is None else None
        return Base(source, index.digest, index.digest, _hashes(index.artifacts), index, whole)
    # In this order: the first that makes anything of it.
    for meant in (_of_lock, _of_inventory):
        with suppress(_NotThis):
            return meant(data, source, context.blobs)
    raise UsageError(
        f"--since {source} is no bundle, no lock and no inventory",
        hint="Name the bundle that the server has, its lock, or what `mirror probe` wrote there.",
    )


class _NotThis(Exception):  # noqa: N818 -- the next one is tried
    """The file is of another kind."""


def _of_lock(data: bytes, source: str, blobs: Blobs) -> Base:
    try:
        lock = locks.parse(data, source)
    except UsageError:
        raise _NotThis from None
    return Base(source, lock.digest, None, _hashes(lock.artifacts))


def _of_inventory(data: bytes, source: str, blobs: Blobs) -> Base:
    try:
        found = inventories.parse(data, source)
    except UsageError:
        raise _NotThis from None
    name = found.bundle or hashlib.sha256(data).hexdigest()
    known = {digest: _kept_index(digest, blobs) for digest in (found.bundle, *found.bundles)}
    index = known.get(found.bundle)
    if found.held is not None:
        return Base(source, name, found.bundle, frozenset(found.held), index)
    # A summary: what its bundles held, this builder may know.
    if not any(known.values()):
        names = [digest[:12] for digest in known if digest]
        raise UsageError(
            f"{source} does not say which artifacts the server has",
            problems=[f"its bundle {name} was not built here" for name in names],
            hint="Write it all to a file where that root is: mirror probe --root ROOT -o FILE",
        )
    held = (_hashes(there.artifacts) for there in known.values() if there)
    return Base(source, name, found.bundle, frozenset().union(*held), index)


def _kept_index(digest: str | None, blobs: Blobs) -> Index | None:
    if digest is None:
        return None
    try:
        index = indexes.parse(blobs.path(digest).read_bytes())
    except (OSError, BundleError):
        return None
    return index if index.digest == digest else None


def _hashes(artifacts: Iterable[Artifact]) -> frozenset[str]:
    return frozenset(artifact.sha256 for artifact in artifacts)
