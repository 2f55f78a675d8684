"""What tests of the downloader share: files on a server, and what came of asking for them."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from mirror.core.progress import Advance, Quiet
from mirror.errors import DownloadError
from mirror.fetch.http import Fetched, Fetcher, Patience, Request
from mirror.store.blobs import Blobs
from tests.hub import Server

MB = 2**20
QUICK = Patience(connect=5, stall=5, attempts=3, first=0.01, longest=2)


class Bars(Quiet):
    """Notes each bar: label, total, unit, how far it came, and what was worked on meanwhile."""

    def __init__(self) -> None:
        self.bars: list[tuple[str, int, str]] = []
        self.before = 0
        self.done = 0
        self.names: set[str] = set()
        self._lock = threading.Lock()

    @contextmanager
    def bar(
        self,
        label: str,
        total: int,
        unit: str = "B",
        *,
        done: int = 0,
        names: Callable[[], Sequence[str]] = tuple,
    ) -> Iterator[Advance]:
        self.bars.append((label, total, unit))
        self.before = self.done = done

        def advance(amount: int) -> None:
            with self._lock:
                self.done += amount
                self.names |= set(names())

        yield advance


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def serve(server: Server, path: str, data: bytes, **more: object) -> Request:
    """Put the bytes on the server; the request for them, with size and digest."""
    server.files[path] = data
    values = {"digest": f"sha256:{sha256(data)}", "size": len(data), **more}
    return Request(server.url + path, path.strip("/"), **values)  # type: ignore[arg-type]


def stored(blobs: Blobs, fetched: Fetched) -> bytes:
    data = blobs.path(fetched.sha256).read_bytes()
    assert fetched == Fetched(sha256(data), len(data))
    assert blobs.path(fetched.sha256).stat().st_mode & 0o777 == 0o444
    return data


def left_over(blobs: Blobs) -> list[str]:
    """Names of what is neither a whole blob nor an alias of one."""
    folder = blobs.folder / "partial"
    return sorted(path.name for path in folder.iterdir() if path.name != "lock")


def fetch(blobs: Blobs, *requests: Request, patience: Patience = QUICK) -> list[Fetched]:
    return Fetcher(blobs, Quiet(), patience=patience).fetch(requests)


def failure(blobs: Blobs, *requests: Request, patience: Patience = QUICK) -> DownloadError:
    with pytest.raises(DownloadError) as caught:
        fetch(blobs, *requests, patience=patience)
    for request in requests:
        assert not Fetcher(blobs, Quiet()).held(request) or request.digest is None
    return caught.value
