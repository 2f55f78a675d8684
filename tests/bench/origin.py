"""A Hub far away: every connection and every answer takes a while, and each has a rate of its own.

    python -m tests.bench.origin FOLDER [--latency 0.03] [--rate 40000000]

serves FOLDER as the dataset `org/bench`, prints its port, and ends with its standard input. It
is a process of its own, sends by sendfile and sleeps until the next bytes are due, so that not it
but the rate is the limit.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

REPO = "org/bench"
COMMIT = "b" * 40
#: Files of at least this size are in LFS, as on a Hub.
LFS_FROM = 1_000_000
_BLOCK = 256 * 2**10


@dataclass(frozen=True, slots=True)
class Served:
    """A file of the repository, with the hash that a Hub gives: sha256 of what is in LFS."""

    path: Path
    size: int
    sha256: str
    git_id: str

    @property
    def in_lfs(self) -> bool:
        return self.size >= LFS_FROM

    def entry(self, name: str) -> dict[str, object]:
        """In the listing of the repository."""
        found: dict[str, object] = {"type": "file", "path": name, "size": self.size}
        if self.in_lfs:
            lfs = {"oid": self.sha256, "size": self.size, "pointerSize": 134}
            return {**found, "oid": "0" * 40, "lfs": lfs}
        return {**found, "oid": self.git_id}


def listed(folder: Path) -> dict[str, Served]:
    """The files of a folder by their names."""
    return {path.name: _served(path) for path in sorted(folder.iterdir())}


def address(port: int, name: str) -> str:
    """Where a file of the repository is served."""
    return f"http://127.0.0.1:{port}/datasets/{REPO}/resolve/{COMMIT}/{name}"


class Origin:
    """Answers connections, each in a thread. latency: seconds; rate: bytes a second."""

    def __init__(self, folder: Path, latency: float, rate: float) -> None:
        self.files, self.latency, self.rate = listed(folder), latency, rate

    def serve(self, ready: Callable[[int], None]) -> None:
        """For ever; `ready` is told the port."""
        with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
            ready(listener.getsockname()[1])
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=self.converse, args=(connection,), daemon=True).start()

    def converse(self, connection: socket.socket) -> None:
        """All requests of one connection."""
        with connection, contextlib.suppress(OSError), connection.makefile("rb") as requests:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            time.sleep(self.latency)
            while line := requests.readline():
                headers = {}
                while (field := requests.readline().strip()) and b":" in field:
                    name, _, value = field.partition(b":")
                    headers[name.decode().lower()] = value.strip().decode()
                time.sleep(self.latency)
                method, target, _ = line.decode().split()
                self.answer(connection, method, unquote(urlsplit(target).path), headers)

    def answer(
        self, connection: socket.socket, method: str, path: str, headers: dict[str, str]
    ) -> None:
        """One request."""
        name = path.rpartition("/")[2]
        if path.startswith(f"/datasets/{REPO}/resolve/") and name in self.files:
            self.send(connection, method, self.files[name], headers.get("range", ""))
            return
        if path.startswith(f"/api/datasets/{REPO}/tree/"):
            self.say(connection, method, [f.entry(n) for n, f in self.files.items()])
        elif path.startswith(f"/api/datasets/{REPO}"):
            siblings = [{"rfilename": name} for name in self.files]
            facts = {"private": False, "gated": False, "tags": []}
            self.say(connection, method, {"id": REPO, "sha": COMMIT, "siblings": siblings, **facts})
        else:
            connection.sendall(_head("404 Not Found", {"Content-Length": "0"}))

    def say(self, connection: socket.socket, method: str, document: object) -> None:
        """A JSON document."""
        body = json.dumps(document).encode()
        fields = {"Content-Type": "application/json", "Content-Length": str(len(body))}
        connection.sendall(_head("200 OK", fields) + (body if method == "GET" else b""))

    def send(self, connection: socket.socket, method: str, file: Served, asked: str) -> None:
        """A file or a range of it, at the rate."""
        start, end, status, fields = 0, file.size, "200 OK", {}
        if found := re.fullmatch(r"bytes=(\d+)-(\d*)", asked):
            start = int(found[1])
            end = min(int(found[2]) + 1, file.size) if found[2] else file.size
            status = "206 Partial Content"
            fields["Content-Range"] = f"bytes {start}-{end - 1}/{file.size}"
        tag = file.sha256 if file.in_lfs else file.git_id
        fields |= {
            "Content-Length": str(end - start),
            "Accept-Ranges": "bytes",
            "ETag": f'"{tag}"',
            "X-Repo-Commit": COMMIT,
            **(
                {"X-Linked-Etag": f'"{tag}"', "X-Linked-Size": str(file.size)}
                if file.in_lfs
                else {}
            ),
        }
        connection.sendall(_head(status, fields))
        if method != "GET":
            return
        begun, position = time.monotonic(), start
        with open(file.path, "rb", buffering=0) as source:
            while position < end:
                count = min(_BLOCK, end - position)
                position += os.sendfile(connection.fileno(), source.fileno(), position, count)
                time.sleep(max(0.0, begun + (position - start) / self.rate - time.monotonic()))


def _head(status: str, fields: dict[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def _served(path: Path) -> Served:
    size = path.stat().st_size
    sha256, git = hashlib.sha256(), hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    with open(path, "rb") as file:
        while block := file.read(2**20):
            sha256.update(block)
            git.update(block)
    return Served(path, size, sha256.hexdigest(), git.hexdigest())


def main() -> None:
    """Serve until the standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--latency", type=float, default=0.03)
    parser.add_argument("--rate", type=float, default=40e6)
    options = parser.parse_args()
    origin = Origin(options.folder, options.latency, options.rate)
    threading.Thread(
        target=origin.serve, args=(lambda port: print(port, flush=True),), daemon=True
    ).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
