"""A package index of our own on loopback, of wheels made on the spot."""

from __future__ import annotations

import base64
import hashlib
import html
import re
import threading
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    *,
    requires: Sequence[str] = (),
    python: str | None = None,
    tag: str = "py3-none-any",
    code: str = "",
    files: Mapping[str, bytes] | None = None,
    about: Sequence[str] = (),
) -> Path:
    """A real wheel with one module, and further files. about: more lines of its METADATA."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {item}" for item in requires]
    lines += [f"Requires-Python: {python}"] if python else []
    lines += about
    about = f"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: {tag}\n"
    members = {
        f"{name.replace('-', '_')}.py": (code or f"VERSION = {version!r}\n").encode(),
        **(files or {}),
        f"{info}/METADATA": ("\n".join(lines) + "\n").encode(),
        f"{info}/WHEEL": about.encode(),
    }
    record = ""
    for member, data in members.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
        record += f"{member},sha256={digest.decode()},{len(data)}\n"
    members[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n".encode()
    path = folder / f"{stem}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for member, data in members.items():
            wheel.writestr(zipfile.ZipInfo(member, (2020, 1, 1, 0, 0, 0)), data)
    return path


@contextmanager
def serve(
    folder: Path, *, credentials: str | None = None, yanked: Collection[str] = ()
) -> Iterator[str]:
    """Serve the wheels of a folder as a PEP 503 index; gives its URL.

    URL/../flat is a page of links to all of them. credentials: "user:password" to be asked for.
    yanked: the names of files that are withdrawn.
    """
    wanted = "Basic " + base64.b64encode((credentials or "").encode()).decode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, _, name = self.path.strip("/").partition("/")
            if credentials and self.headers.get("Authorization") != wanted:
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="index"')
                self.send_header("Content-Length", "0")
                self.end_headers()
            elif kind == "flat":
                self._answer(self._page(None).encode(), "text/html")
            elif kind == "simple":
                self._answer(self._page(name).encode(), "text/html")
            elif (folder / name).is_file():
                self._answer((folder / name).read_bytes(), "application/octet-stream")
            else:
                self.send_error(404)

        def do_HEAD(self) -> None:
            self.do_GET()

        def _page(self, project: str | None) -> str:
            links = ""
            for wheel in sorted(folder.glob("*.whl")):
                name = re.sub(r"[-_.]+", "-", wheel.name.split("-")[0]).lower()
                if project in (None, name):
                    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
                    quoted = html.escape(wheel.name)
                    withdrawn = ' data-yanked=""' if wheel.name in yanked else ""
                    place = f"/files/{quoted}#sha256={digest}"
                    links += f'<a href="{place}"{withdrawn}>{quoted}</a>\n'
            return f"<!DOCTYPE html><html><body>{links}</body></html>"

        def _answer(self, data: bytes, kind: str) -> None:
            if not data.count(b"<a ") and kind == "text/html":
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data)

        def log_message(self, format: str, *arguments: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/simple"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
