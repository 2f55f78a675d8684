"""A bundle at an address, read from its beginning: for `mirror inspect` on the connected side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from mirror.core.paths import shown
from mirror.core.progress import Progress
from mirror.errors import DownloadError, UsageError
from mirror.fetch import exchange
from mirror.fetch.failures import FetchError, public
from mirror.fetch.http import PATIENCE
from mirror.fetch.request import Request


def local(url: str) -> Path | None:
    """The file that a file URL names; None for an http or https URL.

    Raises UsageError for another kind of address.
    """
    parts = urlsplit(url)
    if parts.scheme == "file":
        return Path(url2pathname(parts.path))
    if parts.scheme not in ("http", "https"):
        raise UsageError(f"bundles are not read at {shown(parts.scheme)} addresses")
    return None


@contextmanager
def opened(url: str) -> Iterator[Body]:
    """What is at an http or https URL; little more of it comes than is read.

    Raises DownloadError where it does not come, also while it is read.
    """
    name = public(url)
    try:
        with (
            exchange.session() as session,
            exchange.ask(session, Request(url, name), PATIENCE) as answer,
        ):
            yield Body(answer, name)
    except FetchError as error:
        raise DownloadError(
            f"{name} cannot be read", problems=[error.reason], hint=error.hint
        ) from None


class Body:
    """The body of an answer, as it comes: a source of bytes (mirror.bundle.sources)."""

    def __init__(self, answer: exchange.Answer, name: str) -> None:
        self._chunks = answer.chunks()
        self._left = memoryview(b"")
        self.name = name
        self.size = None if answer.encoding else answer.total
        self.digest: str | None = None

    def read_into(self, views: Sequence[memoryview]) -> int:
        """As Source has it. Raises FetchError when the server stops."""
        done = 0
        for view in views:
            while view:
                self._left = self._left or memoryview(next(self._chunks, b""))
                if not self._left:
                    return done
                count = min(len(view), len(self._left))
                view[:count] = self._left[:count]
                view, self._left = view[count:], self._left[count:]
                done += count
        return done

    def suspects(self, progress: Progress) -> list[str]:
        """None: it is one piece."""
        return []

    def close(self) -> None:
        """The connection ends with the answer."""
