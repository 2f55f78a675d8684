"""Changes to replies, to be ordered with `Server.inject`. Each can be combined with the others."""

from __future__ import annotations

import gzip
import threading
import time
import zlib
from collections.abc import Callable

from tests.hub.server import Change, Reply, Seen


def cut(after: int) -> Change:
    """Close the connection after so many bytes of the body."""
    return _set(stop_after=after, stop_how="close")


def reset(after: int) -> Change:
    """Reset the connection (RST) after so many bytes of the body."""
    return _set(stop_after=after, stop_how="reset")


def stall(after: int, until: threading.Event) -> Change:
    """Send nothing more after so many bytes, the connection open, until the event."""
    return _set(stop_after=after, stop_how=until)


def status(code: int, retry_after: str | None = None, **headers: str) -> Change:
    """Answer with this status and no file; header names with _ for -."""
    extra = {name.replace("_", "-"): value for name, value in headers.items()}
    if retry_after is not None:
        extra["Retry-After"] = retry_after

    def change(seen: Seen, reply: Reply) -> None:
        reply.status, reply.headers, reply.body = code, extra, b"no\n"

    return change


def redirect(to: str) -> Change:
    """302 to the same path and query below another URL, as hubs do to their storage."""

    def change(seen: Seen, reply: Reply) -> None:
        reply.status, reply.body = 302, b""
        reply.headers = {**reply.headers, "Location": to + seen.target}

    return change


def ignore_range(*, advertise: bool = False) -> Change:
    """Answer 200 with the whole file whatever Range says; advertise: while promising ranges."""
    if advertise:
        return _set(ranges=False, headers={"Accept-Ranges": "bytes"})
    return _set(ranges=False)


def no_length() -> Change:
    """Neither Content-Length nor chunks: the end of the connection is the end of the body."""
    return _set(length="none")


def chunked() -> Change:
    """Transfer-Encoding: chunked instead of a Content-Length."""
    return _set(length="chunked")


def wrong_length(by: int) -> Change:
    """A Content-Length that is wrong by so many bytes."""
    return _set(length=by)


def corrupt(at: int) -> Change:
    """Flip a bit of the byte at this offset of the file."""

    def change(seen: Seen, reply: Reply) -> None:
        body = bytearray(reply.body)
        body[at] ^= 1
        reply.body = bytes(body)

    return change


def replace(body: bytes, etag: str | None = None) -> Change:
    """Other bytes instead of the file: as after an upload between two requests."""
    headers = {} if etag is None else {"ETag": f'"{etag}"'}
    return _set(status=200, body=body, headers=headers)


def compress() -> Change:
    """Content-Encoding: gzip, though nobody asked for it."""

    def change(seen: Seen, reply: Reply) -> None:
        reply.body = gzip.compress(reply.body, zlib.Z_BEST_SPEED)
        reply.ranges = False
        reply.headers["Content-Encoding"] = "gzip"

    return change


def drip(pause: float, block: int = 1) -> Change:
    """Send so few bytes at a time, with a pause of so many seconds before each."""
    return _set(block=block, before=lambda sent: time.sleep(pause))


def shift_range(by: int) -> Change:
    """206 with a range that begins so many bytes after the one that was asked for."""
    return _set(shift=by)


def watch(before: Callable[[int], object]) -> Change:
    """Call `before(bytes sent so far)` before each block of the body: to hold it, or to act."""
    return _set(before=before)


def _set(headers: dict[str, str] | None = None, **values: object) -> Change:
    def change(seen: Seen, reply: Reply) -> None:
        for name, value in values.items():
            setattr(reply, name, value)
        reply.headers |= headers or {}

    return change
