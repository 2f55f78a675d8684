"""The downloader and servers that are slow, busy or silent, send it elsewhere, or lie."""

from __future__ import annotations

import email.utils
import os
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirror.core.progress import Quiet
from mirror.errors import MachineError
from mirror.fetch import parts, pieces
from mirror.fetch.failures import explained
from mirror.fetch.http import Fetcher, Patience, Request
from mirror.fetch.parts import LARGE, PIECE
from mirror.store.blobs import Blobs
from tests.downloads import (
    MB,
    QUICK,
    Bars,
    failure,
    fetch,
    left_over,
    noise,
    serve,
    stored,
)
from tests.hub import Reply, Seen, Server, faults
from tests.hub.hub import pointer


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "store")


@contextmanager
def listener() -> Iterator[str]:
    """A server that takes connections and never answers; its URL."""
    with socket.create_server(("127.0.0.1", 0), backlog=200) as taking:
        yield f"http://127.0.0.1:{taking.getsockname()[1]}"


# Slow


@pytest.mark.parametrize("size", [8 * MB, LARGE + 5])
def test_what_a_stalled_connection_lacks_comes_over_another(
    server: Server, blobs: Blobs, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "TAIL", 0.2)
    monkeypatch.setattr(parts, "TAIL", 0.2)
    monkeypatch.setattr(pieces, "SILENCE", 0.2)
    data, over = noise(size), threading.Event()
    server.inject(faults.stall(after=MB, until=over), times=1)
    patience, bars = Patience(stall=60), Bars()
    before = time.monotonic()
    try:
        (fetched,) = Fetcher(blobs, bars, patience=patience).fetch([serve(server, "/a", data)])
        assert stored(blobs, fetched) == data
    finally:
        over.set()
    assert time.monotonic() - before < 10
    assert bars.done == size
    assert left_over(blobs) == []
    assert any((s.range or (0, 0))[0] == MB for s in server.seen)


def test_a_slow_connection_shares_what_it_would_bring_last(
    server: Server, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "TAIL", 0.2)
    monkeypatch.setattr(parts, "TAIL", 0.2)
    monkeypatch.setattr(pieces, "SILENCE", 0.2)
    data = noise(8 * MB)
    # By itself, this one would take 13 seconds; it is not broken, so it goes on with a part.
    server.inject(faults.drip(0.1, block=64 * 2**10), times=1)
    before = time.monotonic()
    assert stored(blobs, fetch(blobs, serve(server, "/a", data))[0]) == data
    assert time.monotonic() - before < 6
    assert len(server.seen) > 1


def test_a_server_that_is_stalled_for_all_is_given_up(
    server: Server, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "TAIL", 0.1)
    monkeypatch.setattr(parts, "TAIL", 0.1)
    monkeypatch.setattr(pieces, "SILENCE", 0.1)
    over = threading.Event()
    server.inject(faults.stall(after=MB, until=over), times=1)
    server.inject(faults.stall(after=0, until=over))
    request = serve(server, "/a", noise(8 * MB))
    patience = Patience(stall=0.5, attempts=2, first=0.01)
    before = time.monotonic()
    try:
        assert "stopped sending" in failure(blobs, request, patience=patience).problems[0]
    finally:
        over.set()
    assert time.monotonic() - before < 10


def test_a_server_that_drips_is_given_up(server: Server, blobs: Blobs) -> None:
    server.inject(faults.drip(0.02))
    patience = Patience(stall=5, crawl=0.3, attempts=3, first=0.01)
    error = failure(blobs, serve(server, "/a", noise(MB)), patience=patience)
    assert "sends next to nothing" in error.problems[0]
    starts = [s.range[0] if s.range else 0 for s in server.seen]
    assert len(starts) == 3
    assert 0 < starts[1] < starts[2]  # what little came is kept all the same


def test_a_server_that_drips_for_a_while_is_waited_for(server: Server, blobs: Blobs) -> None:
    """As a proxy does that scans the file before it lets it through."""
    data = noise(MB)

    def scan(sent: int) -> None:
        if sent < 20_000:
            time.sleep(0.02)

    def change(seen: Seen, reply: Reply) -> None:
        reply.before, reply.block = scan, 1000

    server.inject(change)
    assert stored(blobs, fetch(blobs, serve(server, "/a", data))[0]) == data
    assert len(server.seen) == 1


def test_a_server_that_never_answers_is_given_up_once_for_all(blobs: Blobs) -> None:
    with listener() as url:
        requests = [Request(f"{url}/{n}", f"{n}", f"sha256:{n:064}", 5) for n in range(200)]
        patience = Patience(stall=0.3, attempts=2, first=0.01)
        before = time.monotonic()
        error = failure(blobs, *requests, patience=patience)
        assert time.monotonic() - before < 5
    assert len(error.problems) == 200
    assert {p.partition(": ")[2] for p in error.problems} == {f"the server does not answer ({url})"}


def test_a_storage_that_never_answers_too(server: Server, blobs: Blobs) -> None:
    with listener() as url:
        server.inject(faults.redirect(url))
        requests = [serve(server, f"/{n}", noise(100, n)) for n in range(100)]
        patience = Patience(stall=0.3, attempts=2, first=0.01)
        before = time.monotonic()
        error = failure(blobs, *requests, patience=patience)
        assert time.monotonic() - before < 5
        assert f"the server does not answer ({url})" in error.problems[99]


def test_connections_are_kept(server: Server, blobs: Blobs) -> None:
    with Server() as storage:
        requests = [serve(server, f"/{n}", noise(1000, n)) for n in range(200)]
        storage.files = dict(server.files)
        server.inject(faults.redirect(storage.url))
        fetch(blobs, *requests)
        assert len(server.seen) == len(storage.seen) == 200
        assert server.connections <= 16
        assert storage.connections <= 16


# Busy


def test_many_files_that_are_each_refused_once(server: Server, blobs: Blobs) -> None:
    data = [noise(100, n) for n in range(200)]
    for n in range(200):
        server.inject(faults.status(429), path=f"/{n}.bin", times=1)
    requests = [serve(server, f"/{n}.bin", d) for n, d in enumerate(data)]
    # Refusals of other files may come between a file's own two requests, on a busy machine several.
    patience = Patience(attempts=10, first=0.01)
    fetched = fetch(blobs, *requests, patience=patience)
    assert [stored(blobs, f) for f in fetched] == data
    assert len(server.seen) == 400


def test_a_rest_is_one_for_all_connections(server: Server, blobs: Blobs) -> None:
    """A server with a quota: five requests, then nothing for a second."""
    lock, window = threading.Lock(), [0.0, 0]

    def limit(seen: Seen, reply: Reply) -> None:
        with lock:
            if time.monotonic() - window[0] > 1:
                window[:] = [time.monotonic(), 0]
            window[1] += 1
            if window[1] > 5:
                faults.status(429, RateLimit='"api";r=0;t=1')(seen, reply)

    server.inject(limit)
    requests = [serve(server, f"/{n}", noise(100, n)) for n in range(20)]
    fetch(blobs, *requests)
    # Never more than the connections that were on their way when the quota was used up.
    assert len(server.seen) <= 20 + 3 * 16


def test_a_server_that_takes_few_at_once_gets_few(server: Server, blobs: Blobs) -> None:
    lock, active = threading.Lock(), [0]

    def limit(seen: Seen, reply: Reply) -> None:
        with lock:
            busy = active[0] >= 2
            active[0] += not busy
        if busy:
            faults.status(503)(seen, reply)
            return

        def send(sent: int) -> None:
            time.sleep(0.02)
            with lock:
                active[0] -= 1

        reply.before = send

    server.inject(limit)
    requests = [serve(server, f"/{n}", noise(100, n)) for n in range(60)]
    patience = Patience(attempts=5, first=0.3)
    assert len(fetch(blobs, *requests, patience=patience)) == 60


def test_a_rest_until_a_date(server: Server, blobs: Blobs) -> None:
    until = time.time() + 2
    date = email.utils.formatdate(until, usegmt=True)
    server.inject(faults.status(503, retry_after=date), times=1)
    said: list[str] = []

    class Told(Quiet):
        def step(self, text: str) -> None:
            said.append(text)

    Fetcher(blobs, Told(), patience=QUICK).fetch([serve(server, "/a", b"x")])
    assert time.time() >= int(until)
    assert said == []  # short ones are not worth a line


def test_a_server_that_turns_everything_away(server: Server, blobs: Blobs) -> None:
    server.inject(faults.status(429, retry_after="0"))
    requests = [serve(server, f"/{n}", noise(100, n)) for n in range(100)]
    error = failure(blobs, *requests)
    assert len(error.problems) == 100
    for problem in error.problems:
        assert f"HTTP 429: the server turns all requests away ({server.url})" in problem
    assert len(server.seen) <= QUICK.attempts * 16


# Elsewhere


def test_a_storage_is_asked_directly_once_it_is_known(server: Server, blobs: Blobs) -> None:
    data = noise(3 * PIECE)
    with Server() as storage:
        storage.files["/big"] = data
        server.inject(faults.redirect(storage.url))
        headers = {"Authorization": "Bearer secret"}
        request = serve(server, "/big", data, headers=headers)
        assert stored(blobs, fetch(blobs, request)[0]) == data
        assert len(server.seen) < len(storage.seen)
        assert not any("authorization" in s.headers for s in storage.seen)


def test_an_address_that_holds_no_longer_is_asked_for_again(server: Server, blobs: Blobs) -> None:
    data = noise(3 * PIECE)
    with Server() as storage:
        signatures, used = iter(range(1000)), list[str]()

        def expire(seen: Seen, reply: Reply) -> None:
            used.append(seen.target)
            if used.count(seen.target) > 2:
                faults.status(403)(seen, reply)

        def sign(seen: Seen, reply: Reply) -> None:
            place = f"{storage.url}/big?signature={next(signatures)}"
            reply.status, reply.body, reply.headers = 302, b"", {"Location": place}

        server.inject(sign)
        storage.inject(expire)
        storage.files["/big"] = data
        assert stored(blobs, fetch(blobs, serve(server, "/big", data))[0]) == data
        assert len(server.seen) > 1


# Lies


@pytest.mark.parametrize("size", [MB, 3 * PIECE])
def test_another_range_than_asked(server: Server, blobs: Blobs, size: int) -> None:
    """Where ranges are wrong, the whole file is asked for."""
    data = noise(size)
    server.inject(faults.cut(after=500_000), times=1)
    server.inject(faults.shift_range(7))
    request = serve(server, "/a", data)
    assert stored(blobs, fetch(blobs, request, patience=Patience(first=0.01))[0]) == data
    assert server.seen[-1].range is None


def test_ranges_of_no_use_and_no_whole_file_either(server: Server, blobs: Blobs) -> None:
    """Whatever is asked for, something else comes: that ends, too."""
    data = noise(MB)

    def shift(seen: Seen, reply: Reply) -> None:
        reply.ranges, reply.status, reply.length = False, 206, "right"
        reply.headers["Content-Range"] = f"bytes 7-{MB - 1}/{MB}"

    server.inject(shift)
    assert "a part of the file, unasked" in failure(blobs, serve(server, "/a", data)).problems[0]
    server.heal()
    server.inject(faults.cut(after=100_000))
    server.inject(faults.shift_range(7))
    error = failure(blobs, serve(server, "/b", data, digest=f"sha256:{0:064}"))
    assert "/b" in error.problems[0]


@pytest.mark.parametrize("advertise", [True, False])
def test_cuts_by_a_server_without_ranges(server: Server, blobs: Blobs, advertise: bool) -> None:
    data = noise(MB)
    server.inject(faults.ignore_range(advertise=advertise))
    server.inject(faults.cut(after=300_000), times=3)
    patience = Patience(first=0.01)
    assert stored(blobs, fetch(blobs, serve(server, "/a", data), patience=patience)[0]) == data
    server.inject(faults.cut(after=300_000))
    error = failure(blobs, serve(server, "/b", noise(MB, 2)), patience=patience)
    assert "the connection broke" in error.problems[0]
    assert len(server.gets("/b")) == patience.attempts


def test_ranges_that_are_ignored_now_and_then(server: Server, blobs: Blobs) -> None:
    data = noise(4 * PIECE)
    count = iter(range(1000))

    def forget(seen: Seen, reply: Reply) -> None:
        if next(count) % 3 == 1:
            reply.ranges = False

    server.inject(forget)
    bars, patience = Bars(), Patience(first=0.01)
    fetcher = Fetcher(blobs, bars, connections=3, patience=patience)
    assert stored(blobs, fetcher.fetch([serve(server, "/big", data)])[0]) == data
    assert bars.done == len(data)


@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize("big", [True, False])
def test_a_pointer_instead_of_the_file(
    server: Server, blobs: Blobs, sized: bool, big: bool
) -> None:
    data = noise(LARGE if big else 10_000)
    request = serve(server, "/a", data, size=len(data) if sized else None)
    server.files["/a"] = pointer(data)
    error = failure(blobs, request)
    assert "an LFS pointer came instead of the file" in error.problems[0]
    assert left_over(blobs) == []


@pytest.mark.parametrize("page", [b"<!DOCTYPE html><title>Log in</title>", b"\n <HTML lang=en>"])
def test_a_page_instead_of_the_file(server: Server, blobs: Blobs, page: bytes) -> None:
    request = serve(server, "/a", noise(10_000))
    server.files["/a"] = page
    assert "an HTML page came instead of the file" in failure(blobs, request).problems[0]


def test_what_is_in_xet_only(server: Server, blobs: Blobs) -> None:
    server.inject(faults.status(404, X_Xet_Hash="a" * 64))
    (problem,) = failure(blobs, serve(server, "/a", b"x")).problems
    assert "stored in Xet, and this Hub has no plain HTTP way to it" in problem
    assert "HTTP 404" in problem
    server.heal()
    server.inject(faults.status(403, X_Xet_Hash="a" * 64, X_Error_Code="GatedRepo"))
    (problem,) = failure(blobs, serve(server, "/a", b"x")).problems
    assert "Xet" not in problem


def test_a_broken_tls_connection_is_tried_again_and_a_false_one_is_not() -> None:
    broken = ssl.SSLEOFError(8, "EOF occurred in violation of protocol")
    assert explained(broken, "https://example.invalid/x", silent=True).again
    assert explained(broken, "https://example.invalid/x", silent=False).again
    false = ssl.SSLCertVerificationError(1, "certificate verify failed")
    false.verify_message = "self-signed certificate"
    found = explained(false, "https://example.invalid/x?signature=secret", silent=True)
    assert not found.again
    assert "self-signed certificate" in found.reason


# This machine


def test_no_room_is_said_before_anything_is_asked(server: Server, blobs: Blobs) -> None:
    request = serve(server, "/a", b"x", size=10**18)
    with pytest.raises(MachineError, match=r"^1000000 TB are to be downloaded to .* has room for"):
        fetch(blobs, request)
    assert server.seen == []


_CHILD = """
import sys
from pathlib import Path
from mirror.core.progress import Quiet
from mirror.errors import MachineError
from mirror.fetch.http import Fetcher, Request
from mirror.store.blobs import Blobs
store, url, digest = sys.argv[1:]
try:
    Fetcher(Blobs(Path(store)), Quiet()).fetch([Request(url, "a", digest)])
except MachineError as error:
    print(error.message)
print(sorted(path.name for path in Path(store, "partial").iterdir()))
"""


def test_a_disk_that_becomes_full(server: Server, blobs: Blobs, tmp_path: Path) -> None:
    """A size that nobody has told cannot be checked before."""
    unshare = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
    if not shutil.which("unshare") or subprocess.run([*unshare, "true"], check=False).returncode:
        pytest.skip("this kernel lets this user mount nothing")
    request = serve(server, "/a", noise(4 * MB))
    script = f'mount -t tmpfs -o size=2m tmpfs {tmp_path} && exec "$@"'
    command = [sys.executable, "-c", _CHILD, str(blobs.folder), request.url, str(request.digest)]
    done = subprocess.run(
        [*unshare, "sh", "-c", script, "sh", *command], capture_output=True, text=True, check=True
    )
    said, left = done.stdout.splitlines()
    assert said == f"downloads cannot be written to {blobs.folder}: No space left on device"
    assert left == "['lock']"


def test_old_partial_files_are_removed(server: Server, blobs: Blobs) -> None:
    folder = blobs.folder / "partial"
    folder.mkdir(parents=True)
    wanted = serve(server, "/a", noise(1000))
    old = time.time() - 31 * 24 * 3600
    for name in ("sha256-old", "sha256-old.json", "sha256-new", "sha256-new.json", wanted.key):
        (folder / name).write_bytes(b"x")
        if "new" not in name:
            os.utime(folder / name, (old, old))
    fetch(blobs, wanted)
    assert left_over(blobs) == ["sha256-new", "sha256-new.json"]


def test_what_an_earlier_process_left_counts_as_done(server: Server, blobs: Blobs) -> None:
    request = serve(server, "/some/model.safetensors", noise(MB))
    server.inject(faults.cut(after=400_000), times=1)
    server.inject(lambda seen, reply: seen.range and faults.status(404)(seen, reply))
    failure(blobs, request)
    server.heal()
    bars = Bars()
    Fetcher(blobs, bars).fetch([request])
    assert (bars.before, bars.done) == (400_000, MB)
    assert bars.names == {"some/model.safetensors"}
