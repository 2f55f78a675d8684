"""What a repository is here, wherever its files come from: values.

A model, a dataset and a space are the same thing to mirror: files at one commit, known by an id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from mirror.core.artifact import Artifact
from mirror.core.manifest import FolderRepository, HubRepository, WheelRepository
from mirror.ecosystems.source import Context
from mirror.fetch.http import Request

Item: TypeAlias = HubRepository | FolderRepository | WheelRepository


@dataclass(frozen=True, slots=True)
class File:
    """A file of a repository at one commit.

    path: in the repository. size: in bytes.
    sha256: of the bytes, where the origin gives it (LFS) or they are on this machine.
    blob_id: git's object id of the bytes, for files that git itself holds.
    place: where the bytes are on this machine; None when they have to be fetched.
    """

    path: str
    size: int
    sha256: str | None = None
    blob_id: str | None = None
    place: Path | None = None

    @property
    def digest(self) -> str:
        """What the bytes are checked by: "sha256:HEX" or "git-sha1:HEX"."""
        return f"sha256:{self.sha256}" if self.sha256 else f"git-sha1:{self.blob_id}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All files of a repository at one commit.

    commit: 40 hexadecimal digits; empty where the origin knows none: one is made from the files.
    facts: what else is worth being recorded with each file, such as license and gated.
    """

    files: tuple[File, ...]
    commit: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Carried:
    """What a bundle carries of one item.

    places: path in the bundle -> where the bytes are on this machine; has at least the artifacts
        that are pickles, and those that completeness reads.
    """

    item: Item
    artifacts: tuple[Artifact, ...]
    places: Mapping[str, Path]

    @property
    def files(self) -> dict[str, Artifact]:
        """By their paths in the repository."""
        return {artifact.text("file"): artifact for artifact in self.artifacts}


class Origin(Protocol):
    """Where repositories come from: the modules hub, folder, cache and packaged.

    item: the manifest's, of the class that this origin is for.
    kind: "models", "datasets" or "spaces".
    """

    def snapshot(self, kind: str, item: Any, commit: str, context: Context) -> Snapshot:
        """What the item names now; at `commit` when that is not empty, since it is locked.

        Raises ResolutionError, DownloadError or UsageError.
        """

    def requests(
        self, kind: str, artifacts: Sequence[Artifact], item: Any, context: Context
    ) -> Sequence[Request | Path]:
        """Where the bytes of each artifact of this item are."""


def label(item: Item) -> str:
    """What an item is called in messages: by its id, a further revision by that too."""
    return item.id if item.default else f"{item.id} at {item.revision}"


def made_commit(files: Sequence[File]) -> str:
    """A commit for files that have none: the same for the same names and bytes."""
    listing = "".join(f"{file.path}\0{file.sha256}\n" for file in files)
    # A name that is no UTF-8 is refused by its path in the bundle, if it is carried at all.
    data = listing.encode("utf-8", "surrogatepass")
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()
