"""One downloader for every kind of artifact: resumable, hashing, parallel.

Promise: a blob enters the store only after its sha256 was computed over all of its bytes and the
digest that was asked for, if one was, agreed. What is already there is never fetched again, not
even what a killed run left of a file.

    http.py      what is asked for, what came of it
    transfer.py  the threads that share the work
    parts.py     a file that grows in pieces and survives its process
    exchange.py  one request and its answer; failures in words
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mirror.core.progress import Progress
from mirror.core.text import counted
from mirror.errors import DownloadError, MachineError
from mirror.store.blobs import Blobs

if TYPE_CHECKING:
    from mirror.fetch.transfer import Download


@dataclass(frozen=True, slots=True)
class Request:
    """Bytes that are wanted.

    url: where they are. Credentials belong in `headers` or in netrc; a user and password in the
        URL work, and are never shown.
    label: what a person calls them, for progress and errors.
    digest: "sha256:HEX" or "git-sha1:HEX" (the object id of a git blob) that they must have;
        None only for what is being locked and has no hash at its origin.
    size: in bytes, when known.
    headers: sent to this URL's origin and to no other.
    hint: what a person can do when the bytes cannot be had ("set HF_TOKEN").
    """

    url: str
    label: str
    digest: str | None = None
    size: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False, hash=False)
    hint: str | None = None

    @property
    def key(self) -> str:
        """Equal for requests that want the same bytes; fit to be a file's name."""
        if self.digest:
            return self.digest.replace(":", "-")
        return f"url-{hashlib.sha256(self.url.encode()).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Fetched:
    """A blob that is in the store now."""

    sha256: str
    size: int


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a download waits, in seconds, before it gives up.

    connect: for a connection.
    stall: for the next byte.
    attempts: how often in a row, without a new byte between, before a file has failed.
    first: before the second attempt; each further pause is twice as long.
    longest: the longest pause; a server that asks for a longer one has refused.
    """

    connect: float = 15.0
    stall: float = 30.0
    attempts: int = 5
    first: float = 1.0
    longest: float = 120.0

    def pause(self, failures: int, asked: float | None) -> float | None:
        """Before trying again after so many failures in a row; None: not again.

        asked: what the server wants (Retry-After).
        """
        if failures >= self.attempts or (asked is not None and asked > self.longest):
            return None
        pause: float = self.first * 2 ** (failures - 1)
        return min(max(pause, asked or 0.0), self.longest)


class Fetcher:
    """Downloads into a store of blobs.

    Beside the blobs, FOLDER/partial holds what is incomplete, and FOLDER/git-sha1/ab/abcd... the
    sha256 of blobs that are also known by a git object id.
    """

    def __init__(
        self,
        blobs: Blobs,
        progress: Progress,
        *,
        connections: int = 8,
        patience: Patience | None = None,
    ) -> None:
        self.blobs = blobs
        self.progress = progress
        self.connections = connections
        self.patience = patience or Patience()

    def fetch(self, requests: Sequence[Request], label: str = "downloading") -> list[Fetched]:
        """Have all these bytes in the store; returns what each is, in the same order.

        Raises DownloadError that names everything which could not be had (what could be had is in
        the store then), MachineError when this machine cannot take the bytes.
        """
        known = {request.key: self.held(request) for request in requests}
        wanted = {r.key: r for r in requests if known[r.key] is None}
        if wanted:
            from mirror.fetch.transfer import Transfer

            with _locked(self.blobs, self.progress):
                # While this waited for the lock, another process may have fetched some.
                wanted = {key: r for key, r in wanted.items() if not self.held(r)}
                downloads = Transfer(self, list(wanted.values())).run(label) if wanted else []
            if failed := [d for d in downloads if d.failure]:
                raise _error(failed, len(downloads))
            known |= {d.request.key: d.outcome for d in downloads}
        found = [known[r.key] or self.held(r) for r in requests]
        return [fetched for fetched in found if fetched]

    def size(self, request: Request) -> int | None:
        """How many bytes the server says it has; None when it does not say, or cannot be asked."""
        from mirror.fetch import exchange

        with exchange.session() as session:
            try:
                with exchange.ask(session, request, self.patience, method="HEAD") as answer:
                    return None if answer.encoding else answer.total
            except exchange.FetchError:
                return None

    def held(self, request: Request) -> Fetched | None:
        """The blob that the request's digest names, when it is in the store."""
        algorithm, _, value = (request.digest or "").partition(":")
        if algorithm == "git-sha1":
            value = self._alias(value)
        if not algorithm or not self.blobs.has(value, request.size):
            return None
        return Fetched(value, self.blobs.path(value).stat().st_size)

    def note_alias(self, object_id: str, sha256: str) -> None:
        """Remember that a blob is also known by this git object id."""
        path = self.blobs.folder / "git-sha1" / object_id[:2] / object_id
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(sha256, encoding="ascii", newline="\n")

    def _alias(self, object_id: str) -> str:
        try:
            path = self.blobs.folder / "git-sha1" / object_id[:2] / object_id
            return path.read_text(encoding="ascii")
        except (OSError, ValueError):
            return "unknown"


def _locked(blobs: Blobs, progress: Progress) -> AbstractContextManager[object]:
    """Partial files have one writer: a second process waits until the first has finished."""
    import filelock

    folder = blobs.folder / "partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / "lock")
        try:
            return lock.acquire(timeout=0)
        except filelock.Timeout:
            progress.step("waiting for another mirror, which is downloading into the same store")
            return lock.acquire()
    except OSError as error:
        raise unwritable(blobs, error) from None


def unwritable(blobs: Blobs, error: OSError) -> MachineError:
    """The error for a store that takes no bytes."""
    return MachineError(
        f"downloads cannot be written to {blobs.folder}: {error.strerror or error}",
        hint="Make room there, or name another folder with MIRROR_CACHE.",
    )


def _error(failed: Sequence[Download], wanted: int) -> DownloadError:
    hints: dict[str, None] = {}
    problems = []
    for download in failed:
        failure = download.failure
        assert failure is not None  # noqa: S101 -- the caller chose those that failed
        problems.append(f"{download.request.label}: {failure.reason}")
        hints |= {hint: None for hint in (failure.hint, download.request.hint) if hint}
    few = f"{len(failed)} of " if len(failed) < wanted else ""
    return DownloadError(
        f"{few}{counted(wanted, 'file')} could not be downloaded",
        problems=problems,
        hint="\n".join([*hints, "Run the same again: what has arrived is kept."]),
    )
