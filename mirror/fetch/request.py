"""What is asked for, what came of it, and how long to wait for it: values."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field


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
    crawl: for the next 64 KiB: longer than a proxy takes that holds bytes back to scan them.
    attempts: how often in a row, without as much between, before a file has failed.
    first: before the second attempt; each further pause is twice as long.
    longest: the longest pause; a server that asks for a longer one has refused.
    """

    connect: float = 15.0
    stall: float = 30.0
    crawl: float = 300.0
    attempts: int = 5
    first: float = 1.0
    longest: float = 600.0

    def pause(self, failures: int, asked: float | None) -> float | None:
        """Before trying again after so many failures in a row; None: not again.

        asked: what the server wants (Retry-After).
        """
        if failures >= self.attempts or (asked is not None and asked > self.longest):
            return None
        pause: float = self.first * 2 ** (failures - 1)
        return min(max(pause, asked or 0.0), self.longest)


def basic(user: str, password: str) -> dict[str, str]:
    """The header of HTTP's Basic scheme."""
    pair = base64.b64encode(f"{user}:{password}".encode()).decode("ascii")
    return {"Authorization": f"Basic {pair}"}
