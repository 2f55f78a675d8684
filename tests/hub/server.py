"""An HTTP/1.1 file server on an unused loopback port: keep-alive, HEAD, Range, faults."""

from __future__ import annotations

import contextlib
import fnmatch
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, TypeAlias
from urllib.parse import unquote, urlsplit

_SEND = 64 * 2**10


@dataclass(frozen=True)
class Seen:
    """A request that came in; header names in lower case."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes = b""

    @property
    def path(self) -> str:
        """The target's path, unquoted, without the query."""
        return unquote(urlsplit(self.target).path)

    @property
    def range(self) -> tuple[int, int | None] | None:
        """First byte and last byte asked for, None without a Range header."""
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
        return (int(found[1]), int(found[2]) if found[2] else None) if found else None


@dataclass
class Reply:
    """What will be sent; faults change it before it is.

    body: of the whole file; a Range is cut out of it at the end.
    ranges: whether Range is honoured.
    advertise: whether Accept-Ranges says so.
    length: "right", "none" (the end of the connection is the end of the body), "chunked", or a
        number of bytes to add to the right one.
    stop_after: bytes of the body after which the sending stops ...
    stop_how: ... by "close", by "reset", or by waiting for an event.
    before: called before each block of the body with the number of bytes sent so far.
    block: bytes that are sent at once.
    shift: bytes by which a range that is sent is another than the one asked for.
    """

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    ranges: bool = True
    advertise: bool = True
    length: str | int = "right"
    stop_after: int | None = None
    stop_how: str | threading.Event = "close"
    before: Callable[[int], object] | None = None
    block: int = _SEND
    shift: int = 0


Change: TypeAlias = Callable[[Seen, Reply], object]


@dataclass
class Fault:
    """A change to the replies to some requests: path is a pattern, times None means always."""

    change: Change
    path: str = "*"
    times: int | None = None
    methods: tuple[str, ...] = ("GET",)

    def applies(self, seen: Seen) -> bool:
        """Whether this request is hit; each hit counts."""
        if seen.method not in self.methods or not fnmatch.fnmatch(seen.path, self.path):
            return False
        if self.times is not None:
            if self.times == 0:
                return False
            self.times -= 1
        return True


class Server:
    """Serves `files` (path -> bytes) until the `with` block ends.

    seen: every request, in the order of arrival.
    connections: how many have been made.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.seen: list[Seen] = []
        self.connections = 0
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._http = _Listener(self)
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        """http://127.0.0.1:PORT"""
        return f"http://127.0.0.1:{self._http.server_port}"

    def __enter__(self) -> Any:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.end_connections()
        self._http.server_close()

    def inject(
        self,
        change: Change,
        path: str = "*",
        times: int | None = None,
        methods: tuple[str, ...] = ("GET",),
    ) -> Fault:
        """Order a fault; several that apply to one request act in the order they were ordered."""
        fault = Fault(change, path, times, methods)
        with self._lock:
            self._faults.append(fault)
        return fault

    def heal(self) -> None:
        """Take all faults away."""
        with self._lock:
            self._faults.clear()

    def gets(self, path: str = "*") -> list[Seen]:
        """The GET requests for paths of this pattern."""
        with self._lock:
            return [s for s in self.seen if s.method == "GET" and fnmatch.fnmatch(s.path, path)]

    def reply(self, seen: Seen) -> Reply:
        """The faultless reply. Subclasses answer more."""
        body = self.files.get(seen.path)
        if body is None:
            return Reply(404, body=b"no such file\n")
        return Reply(body=body, headers={"Content-Type": "application/octet-stream"})

    def answer(self, seen: Seen) -> Reply:
        """The reply as it will be sent; the request is noted."""
        with self._lock:
            self.seen.append(seen)
            faults = [fault for fault in self._faults if fault.applies(seen)]
        reply = self.reply(seen)
        for fault in faults:
            fault.change(seen, reply)
        return reply


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = True
    request_queue_size = 64

    def __init__(self, owner: Server) -> None:
        self.owner = owner
        self._open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        self.owner.connections += 1
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def end_connections(self) -> None:
        """Wake the threads that wait for a next request on a connection that is kept alive."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):  # one that has ended by itself
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is no error of the server's."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._handle()

    def do_HEAD(self) -> None:
        self._handle()

    def do_POST(self) -> None:
        self._handle()

    def _handle(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", 0)))
        seen = Seen(self.command, self.path, headers, body)
        try:
            self._send(seen, self.server.owner.answer(seen))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _send(self, seen: Seen, reply: Reply) -> None:
        status, body, extra = reply.status, reply.body, {}
        if status == 200 and reply.ranges:
            if reply.advertise:
                extra["Accept-Ranges"] = "bytes"
            condition = seen.headers.get("if-range")
            if seen.range and condition in (None, reply.headers.get("ETag")):
                first, last = seen.range
                first += reply.shift
                if first >= len(body):
                    status, extra["Content-Range"] = 416, f"bytes */{len(body)}"
                    body = b""
                else:
                    end = len(body) if last is None else min(last + 1, len(body))
                    status, extra["Content-Range"] = 206, f"bytes {first}-{end - 1}/{len(body)}"
                    body = body[first:end]
        if isinstance(reply.length, int):
            extra["Content-Length"] = str(len(body) + reply.length)
        elif reply.length == "right":
            extra["Content-Length"] = str(len(body))
        elif reply.length == "chunked":
            extra["Transfer-Encoding"] = "chunked"
        if reply.length != "right" and reply.length != "chunked":
            extra["Connection"] = "close"
            self.close_connection = True
        self.send_response(status)
        for name, value in {**extra, **reply.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self._send_body(reply, body)

    def _send_body(self, reply: Reply, body: bytes) -> None:
        chunked, sent = reply.length == "chunked", 0
        for block in _blocks(body, reply.stop_after, reply.block):
            if reply.before:
                reply.before(sent)
            self.wfile.write(b"%x\r\n%b\r\n" % (len(block), block) if chunked else block)
            sent += len(block)
        if reply.stop_after is not None and sent <= reply.stop_after:
            self._stop(reply.stop_how)
        elif chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _stop(self, how: str | threading.Event) -> None:
        self.close_connection = True
        if isinstance(how, threading.Event):
            how.wait()
        elif how == "reset":
            linger = struct.pack("ii", 1, 0)
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.rfile.close()
            self.wfile.close()
            self.connection.close()


def _blocks(body: bytes, limit: int | None, block: int) -> Iterator[bytes]:
    end = len(body) if limit is None else min(limit, len(body))
    for start in range(0, end, block):
        yield body[start : min(start + block, end)]
