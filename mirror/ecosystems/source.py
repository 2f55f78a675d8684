"""The builder's side of an ecosystem: what every `source` module offers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mirror.core.artifact import Artifact
from mirror.core.manifest import WheelsSection
from mirror.core.progress import Advance, Progress, uncounted
from mirror.core.target import Target
from mirror.fetch.http import Fetcher, Request
from mirror.store import atomic
from mirror.store.blobs import Blobs, hash_file


@dataclass(frozen=True, slots=True)
class Context:
    """Where and for what a source works.

    folder: the manifest's; its relative paths start here.
    target: the machine that the bundle is for.
    blobs: the builder's store.
    fetcher: the one way to the network for bytes.
    kept: artifacts of the previous lock, to be preferred where they still fit.
    resolved: artifacts that the ecosystems before this one have resolved for the same lock.
    endpoint: of the Hub, as the manifest names it; empty when it does not.
    wheels: the manifest's section, for whoever takes something from its package indexes.
    seen: what has been looked at in this run, by whatever tells it apart: it stays as it was seen.
    """

    folder: Path
    target: Target
    blobs: Blobs
    fetcher: Fetcher
    progress: Progress
    kept: tuple[Artifact, ...] = ()
    resolved: tuple[Artifact, ...] = ()
    endpoint: str = ""
    wheels: WheelsSection | None = None
    hashes: LocalHashes = field(default_factory=lambda: LocalHashes(None))
    seen: dict[Hashable, Any] = field(default_factory=dict, repr=False, compare=False)


class Source(Protocol):
    """The module `mirror.ecosystems.KIND.source`."""

    def inputs(self, section: Any, context: Context) -> Mapping[str, str]:
        """Digests of what the resolution depends on besides the manifest: files, channels.

        Name -> any text that changes when the thing does. A lock whose inputs differ is stale.
        """

    def resolve(self, section: Any, context: Context) -> list[Artifact]:
        """The exact files that the section asks for. May use the network.

        Raises ResolutionError when nothing satisfies it, UsageError for what is wrong in it,
        DownloadError when an origin cannot be reached.
        """

    def requests(
        self, artifacts: Sequence[Artifact], section: Any, context: Context
    ) -> list[Request | Path]:
        """Where the bytes of each artifact are: a URL, or a file of this machine."""

    def derived(self, artifacts: Sequence[Artifact], context: Context) -> dict[str, bytes]:
        """Further members of the bundle that follow from these artifacts: path -> bytes.

        A pure function of the artifacts, so that one lock always gives one bundle.
        """

    def prove(self, artifacts: Sequence[Artifact], section: Any, context: Context) -> None:
        """Show, without a network, that the set is complete and fits the target.

        `context.blobs` holds the bytes of all artifacts that are no local files.
        Raises ResolutionError that names what is missing and who asks for it.
        """


def locate(
    artifacts: Collection[Artifact],
    blobs: Blobs,
    ask: Callable[[list[Artifact]], Sequence[Request | Path]],
) -> tuple[dict[str, Path], list[Request]]:
    """What is outside the store: sha256 -> the file that has the bytes; and what to fetch into it.

    ask: where those are that are not in the store, as a source's `requests` says it.
    """
    missing = [a for a in artifacts if not blobs.has(a.sha256, a.size)]
    places: dict[str, Path] = {}
    downloads: list[Request] = []
    for artifact, place in zip(missing, ask(missing) if missing else (), strict=True):
        if isinstance(place, Path):
            places[artifact.sha256] = place
        else:
            downloads.append(place)
    return places, downloads


class LocalHashes:
    """sha256 of local files, remembered by path, size and time of change (nanoseconds)."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._known: dict[str, list[Any]] = {}
        self._changed = False
        self._advance: Advance = uncounted
        if file is not None and file.is_file():
            try:
                self._known = json.loads(file.read_bytes())
            except ValueError:
                self._known = {}

    def of(self, path: Path) -> tuple[int, str]:
        """Size in bytes and sha256 of a file. Raises OSError when it cannot be read."""
        key, stamp = _stamped(path)
        known = self._known.get(key)
        if known is None or known[:3] != stamp:
            known = [*stamp, hash_file(path, self._advance)]
            self._known[key] = known
            self._changed = True
        return stamp[0], str(known[3])

    @contextmanager
    def counting(self, files: Iterable[Path], progress: Progress) -> Iterator[None]:
        """Show how far it is while these are asked for: of their bytes that are not known yet."""
        total = 0
        for file in files:
            with suppress(OSError):  # whoever asks for it says so
                key, stamp = _stamped(file)
                if self._known.get(key, [])[:3] != stamp:
                    total += stamp[0]
        with progress.bar("hashing local files", total) as self._advance:
            yield
        self._advance = uncounted

    def save(self) -> None:
        """Write down what was learnt."""
        if self._file is not None and self._changed:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            atomic.write(self._file, json.dumps(self._known).encode())
            self._changed = False


def _stamped(path: Path) -> tuple[str, list[int]]:
    """What a file is remembered by, and what changes when it does: size, time, inode."""
    status = os.stat(path)
    return str(path.absolute()), [status.st_size, status.st_mtime_ns, status.st_ino]
