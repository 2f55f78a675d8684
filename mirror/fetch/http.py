"""One downloader for every kind of artifact: resumable, hashing, parallel.

Promise: a blob enters the store only after its sha256 was computed over all of its bytes and the
digest that was asked for, if one was, agreed. What is already there is never fetched again, not
even what a killed run left of a file.

    http.py      the door: requests in, blobs out
    request.py   what is asked for, what came of it, how long to wait
    transfer.py  the threads that share the work
    origins.py   what they know about the servers
    parts.py     a file that grows in pieces and survives its process
    exchange.py  one request and its answer
    failures.py  why bytes did not come, in words
    beside.py    what is kept beside the blobs: partial files, git's names
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mirror.core.paths import shown
from mirror.core.progress import Progress
from mirror.core.text import counted
from mirror.errors import DownloadError
from mirror.fetch import beside
from mirror.fetch.request import Fetched, Patience, Request
from mirror.store.blobs import Blobs

if TYPE_CHECKING:
    from mirror.fetch.transfer import Download

__all__ = ["Fetched", "Fetcher", "Patience", "Request"]

#: As many as people use per server with other tools: more brings little and is turned away.
CONNECTIONS = 16
PATIENCE = Patience()


class Fetcher:
    """Downloads into a store of blobs."""

    def __init__(
        self,
        blobs: Blobs,
        progress: Progress,
        *,
        connections: int = CONNECTIONS,
        patience: Patience | None = None,
    ) -> None:
        self.blobs = blobs
        self.progress = progress
        self.connections = connections
        self.patience = patience or PATIENCE

    def fetch(self, requests: Sequence[Request], label: str = "downloading") -> list[Fetched]:
        """Have all these bytes in the store; returns what each is, in the same order.

        Raises DownloadError that names everything which could not be had (what could be had is in
        the store then), MachineError when this machine cannot take the bytes.
        """
        known = {request.key: self.held(request) for request in requests}
        wanted = {r.key: r for r in requests if known[r.key] is None}
        if wanted:
            from mirror.fetch.transfer import Transfer

            with beside.locked(self.blobs, self.progress):
                # While this waited for the lock, another process may have fetched some.
                wanted = {key: r for key, r in wanted.items() if not self.held(r)}
                downloads = []
                if wanted:
                    transfer = Transfer(self.blobs, self.progress, self.patience, self.connections)
                    downloads = transfer.run(list(wanted.values()), label)
            if failed := [d for d in downloads if d.failure]:
                raise _error(failed, len(downloads))
            known |= {d.request.key: d.outcome for d in downloads}
        found = [known[r.key] or self.held(r) for r in requests]
        return [fetched for fetched in found if fetched]

    def size(self, request: Request) -> int | None:
        """How many bytes the server says it has; None when it does not say, or cannot be asked."""
        from mirror.fetch import exchange
        from mirror.fetch.failures import FetchError

        with exchange.session() as session:
            try:
                with exchange.ask(session, request, self.patience, method="HEAD") as answer:
                    return None if answer.encoding else answer.total
            except FetchError:
                return None

    def held(self, request: Request) -> Fetched | None:
        """The blob that the request's digest names, when it is in the store."""
        algorithm, _, value = (request.digest or "").partition(":")
        if algorithm == "git-sha1":
            value = beside.alias(self.blobs, value)
        if not value or not self.blobs.has(value, request.size):
            return None
        return Fetched(value, self.blobs.path(value).stat().st_size)


def _error(failed: Sequence[Download], wanted: int) -> DownloadError:
    hints: dict[str, None] = {}
    problems = []
    for download in failed:
        failure = download.failure
        assert failure is not None  # noqa: S101 -- the caller chose those that failed
        problems.append(f"{shown(download.request.label)}: {failure.reason}")
        hints |= {hint: None for hint in (failure.hint, download.request.hint) if hint}
    few = f"{len(failed)} of " if len(failed) < wanted else ""
    return DownloadError(
        f"{few}{counted(wanted, 'file')} could not be downloaded",
        problems=problems,
        hint="\n".join([*hints, "Run the same again: what has arrived is kept."]),
    )
