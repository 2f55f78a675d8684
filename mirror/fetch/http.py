"""One downloader for every kind of artifact: resumable, hashing, parallel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mirror.core.progress import Progress
from mirror.store.blobs import Blobs


@dataclass(frozen=True, slots=True)
class Request:
    """Bytes that are wanted.

    url: where they are; may hold no credentials (those travel in `headers`).
    label: what a person calls them, for progress and errors.
    digest: "sha256:HEX" or "git-sha1:HEX" (the object id of a git blob) that they must have;
        None only for what is being locked and has no hash at its origin.
    size: in bytes, when known.
    headers: sent to this URL's origin and to no other.
    """

    url: str
    label: str
    digest: str | None = None
    size: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)


@dataclass(frozen=True, slots=True)
class Fetched:
    """A blob that is in the store now."""

    sha256: str
    size: int


class Fetcher:
    """Downloads into a store of blobs."""

    def __init__(self, blobs: Blobs, progress: Progress, *, connections: int = 8) -> None:
        self.blobs = blobs
        self.progress = progress
        self.connections = connections

    def fetch(self, requests: Sequence[Request], label: str = "downloading") -> list[Fetched]:
        """Have all these bytes in the store; returns what each is, in the same order.

        Raises DownloadError that names everything which could not be had.
        """
        raise NotImplementedError
