"""What a server has already, by what `--since` names: it need not be shipped again."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from mirror.bundle.opening import opened
from mirror.bundle.volumes import bundle_name
from mirror.core import delta
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
    artifacts: those that are known by more than their hash. index: of the bundle in use, where it
    is known. bundle: its file or one of its volumes, when that is what was named.
    """

    source: str
    name: str
    digest: str | None
    held: frozenset[str]
    artifacts: Sequence[Artifact] = ()
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
        total = [a for a in index.artifacts if a.kind != delta.KIND]
        held = [a for a in total if a.sha256 in self.held]
        sizes = human_size(indexes.total_size(held)), human_size(indexes.total_size(total))
        return f"{len(held):,} of {len(total):,} files are there, {sizes[0]} of {sizes[1]}"

    def remark(self, index: Index) -> str:
        """What a person should know who meant another OLD; empty when there is nothing."""
        if not any(a.sha256 in self.held for a in index.artifacts):
            return f"{self.source} has none of these files: this is no increment"
        if self.index and self.index.name != index.name:
            return f"{self.source} is of another project, {self.index.name} {self.index.version}"
        return ""


def of(path: Path, context: Context) -> Base:
    """What the server has that this bundle, lock or inventory speaks of.

    The builder's store holds the index of every bundle that was built with it: a bundle's digest is
    the sha256 of its index. Raises UsageError for any other file, BundleError for a damaged bundle.
    """
    source = shown(str(path))
    whole = bundle_name(path.name)
    try:
        with open(path, "rb") as file:
            head = file.read(len(_GZIP))
            bundle = head == _GZIP or whole is not None
            data = b"" if bundle else head + file.read()
    except OSError as error:
        hint = "Name a bundle in it, or one of its volumes." if path.is_dir() else None
        raise UsageError(f"--since {source} cannot be read: {error.strerror}", hint=hint) from None
    if bundle:
        with opened([str(path)], context.progress) as [reader]:
            index = reader.index
        known = index.artifacts
        return Base(source, index.digest, index.digest, _hashes(known), known, index, path)
    if inventories.is_one(data):
        return _of_inventory(data, source, context.blobs)
    with suppress(UsageError):
        lock = locks.parse(data, source)
        return Base(source, lock.digest, None, _hashes(lock.artifacts), lock.artifacts)
    raise UsageError(
        f"--since {source} is no bundle, no lock and no inventory",
        hint="Name the bundle that the server has, its lock, or what `mirror probe` wrote there.",
    )


def _of_inventory(data: bytes, source: str, blobs: Blobs) -> Base:
    found = inventories.parse(data, f"--since {source}")
    name = found.bundle or hashlib.sha256(data).hexdigest()
    digests = (found.bundle, *found.bundles)
    known = {digest: index for digest in digests if (index := _kept_index(digest, blobs))}
    index = known.get(found.bundle)
    # The newest last: of two versions of a file it is the one to compare with.
    artifacts = [a for there in reversed(known.values()) for a in there.artifacts]
    if found.held is not None:
        return Base(source, name, found.bundle, frozenset(found.held), artifacts, index)
    # A summary: what its bundles held, this builder may know.
    if not known:
        problems = [f"its bundle {digest[:12]} was not built here" for digest in digests if digest]
        raise UsageError(
            f"{source} does not say which artifacts the server has",
            problems=dict.fromkeys(problems),
            hint="Write it all to a file where that root is: mirror probe --root ROOT -o FILE",
        )
    return Base(source, name, found.bundle, _hashes(artifacts), artifacts, index)


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
