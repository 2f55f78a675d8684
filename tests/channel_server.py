"""Channels over HTTP on loopback, as good and as bad as those of others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass
class Served:
    """A folder that is served.

    asked: each request's path and Authorization. login: the Authorization that it wants, if any.
    token: what has to stand in front of each path (/t/TOKEN), if anything. elsewhere: where it
    sends everybody who asks for a package.
    """

    host: str = ""
    asked: list[tuple[str, str | None]] = field(default_factory=list)
    login: str | None = None
    token: str = ""
    elsewhere: str = ""


@contextmanager
def served(folder: Path, *, login: str | None = None, token: str = "") -> Iterator[Served]:
    """Serve a folder, to whoever has these."""
    state = Served(login=login, token=token)

    class Handler(SimpleHTTPRequestHandler):
        def _answer(self, answer: Callable[[], None]) -> None:
            login = self.headers.get("Authorization")
            state.asked.append((self.path, login))
            if state.login and login != state.login:
                self.send_error(401)
            elif state.token and not self.path.startswith(state.token + "/"):
                self.send_error(403)
            elif state.elsewhere and self.path.endswith((".conda", ".bz2")):
                self.send_response(302)
                self.send_header("Location", state.elsewhere + self.path)
                self.send_header("Content-Length", "0")
                self.end_headers()
            else:
                self.path = self.path.removeprefix(state.token)
                answer()

        def do_GET(self) -> None:
            self._answer(super().do_GET)

        def do_HEAD(self) -> None:
            self._answer(super().do_HEAD)

        def log_message(self, format: str, *arguments: Any) -> None: ...

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """rattler hangs up on answers that it no longer needs."""

    server = Server(("127.0.0.1", 0), partial(Handler, directory=str(folder)))
    state.host = f"127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def written(folder: Path) -> Mapping[Path, bytes]:
    """Every file below a folder, with its bytes."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
