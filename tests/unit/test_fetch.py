"""The downloader against a real server on loopback, with every fault that the network has."""

from __future__ import annotations

import email.utils
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mirror.core.progress import Quiet
from mirror.errors import DownloadError, MachineError
from mirror.fetch.failures import retry_after
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
    sha256,
    stored,
)
from tests.hub import Change, Reply, Seen, Server, faults
from tests.hub.hub import git_id


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "store")


def assert_asked_once(server: Server, size: int) -> None:
    """Each byte of the file was asked for once, in ranges."""
    position = 0
    for start, last in sorted(s.range or (-1, -1) for s in server.seen):
        assert start == position
        position = (last or 0) + 1
    assert position == size


# What is asked for


def test_many_files_come_in_the_order_asked_for(server: Server, blobs: Blobs) -> None:
    data = [noise(1000 * n, n) for n in range(40)]
    bars = Bars()
    requests = [serve(server, f"/{n}.bin", d) for n, d in enumerate(data)]
    fetched = Fetcher(blobs, bars).fetch(requests)
    assert [stored(blobs, f) for f in fetched] == data
    assert left_over(blobs) == []
    total = sum(map(len, data))
    assert bars.bars == [("downloading 40 files", total, "B")]
    assert bars.done == total


def test_what_is_in_the_store_is_not_fetched(server: Server, blobs: Blobs) -> None:
    request = serve(server, "/a", noise(5000))
    first = fetch(blobs, request)
    server.seen.clear()
    assert fetch(blobs, request, request) == first * 2
    assert server.seen == []


def test_equal_bytes_are_fetched_once(server: Server, blobs: Blobs) -> None:
    data = noise(5000)
    fetched = fetch(blobs, serve(server, "/a", data), serve(server, "/b", data))
    assert [stored(blobs, f) for f in fetched] == [data, data]
    assert len(server.seen) == 1


def test_git_objects_are_checked_and_remembered(server: Server, blobs: Blobs) -> None:
    data = b"a config\n"
    request = serve(server, "/config.json", data, digest=f"git-sha1:{git_id(data)}")
    assert stored(blobs, fetch(blobs, request)[0]) == data
    server.seen.clear()
    assert stored(blobs, fetch(blobs, request)[0]) == data
    assert server.seen == []
    wrong = serve(server, "/other", b"another\n", digest=f"git-sha1:{git_id(data)[::-1]}", size=8)
    assert "git-sha1:" in failure(blobs, wrong).problems[0]


def test_a_damaged_alias_is_as_none(server: Server, blobs: Blobs) -> None:
    data = b"a config\n"
    request = serve(server, "/config.json", data, digest=f"git-sha1:{git_id(data)}")
    fetch(blobs, request)
    for content in (b"", b"\xff\xfe", b"../../../etc/passwd", b"0" * 64):
        (alias,) = (p for p in (blobs.folder / "git-sha1").rglob("*") if p.is_file())
        alias.write_bytes(content)
        assert stored(blobs, fetch(blobs, request)[0]) == data


def test_without_a_digest_the_answer_is_taken(server: Server, blobs: Blobs) -> None:
    bars = Bars()
    request = serve(server, "/a", noise(5000), digest=None, size=None)
    (fetched,) = Fetcher(blobs, bars).fetch([request])
    assert stored(blobs, fetched) == noise(5000)
    assert bars.bars == [("downloading 1 file", 1, "files")]
    assert bars.done == 1


def test_an_empty_file(server: Server, blobs: Blobs) -> None:
    known = serve(server, "/empty", b"")
    unknown = serve(server, "/unknown", b"", digest=None, size=None)
    assert [stored(blobs, f) for f in fetch(blobs, known, unknown)] == [b"", b""]


def test_the_size_is_asked_for(server: Server, blobs: Blobs) -> None:
    fetcher = Fetcher(blobs, Quiet(), patience=QUICK)
    assert fetcher.size(serve(server, "/a", noise(12345))) == 12345
    assert fetcher.size(Request(server.url + "/missing", "missing")) is None
    assert fetcher.size(Request("http://127.0.0.1:1/a", "unreachable")) is None
    server.inject(faults.compress(), methods=("HEAD",))
    assert fetcher.size(serve(server, "/a", noise(12345))) is None


# Large files


def test_a_large_file_comes_in_pieces_side_by_side(server: Server, blobs: Blobs) -> None:
    data = noise(5 * PIECE + 77)
    # The second and the third piece wait for each other: one connection alone would never end.
    together = threading.Barrier(2)

    def meet(seen: Seen, reply: Reply) -> None:
        if seen.range and seen.range[0] in (PIECE, 2 * PIECE):
            together.wait(20)

    server.inject(meet)
    bars = Bars()
    fetcher = Fetcher(blobs, bars, connections=4, patience=QUICK)
    (fetched,) = fetcher.fetch([serve(server, "/big", data)])
    assert stored(blobs, fetched) == data
    assert bars.done == len(data)
    assert_asked_once(server, len(data))


def test_what_is_whole_is_published_while_a_large_file_still_comes(
    server: Server, blobs: Blobs
) -> None:
    large, small = serve(server, "/big", noise(LARGE)), serve(server, "/small", b"small")
    asked, begun, gone_on = threading.Event(), threading.Event(), threading.Event()
    held: list[bool] = []

    def hold(sent: int) -> None:
        if sent:
            begun.set()
            gone_on.wait(20)

    def note(seen: Seen, reply: Reply) -> None:
        if seen.range and seen.range[0]:  # of two connections, the one that had the small file
            held.append(blobs.has(sha256(b"small")))
            gone_on.set()
        else:
            asked.wait(20)
            reply.before = hold

    def wait(seen: Seen, reply: Reply) -> None:
        asked.set()
        begun.wait(20)

    server.inject(note, path="/big")
    server.inject(wait, path="/small")
    Fetcher(blobs, Quiet(), connections=2, patience=QUICK).fetch([large, small])
    assert held[0]


def test_a_large_file_of_unknown_size_too(server: Server, blobs: Blobs) -> None:
    data = noise(LARGE + 5)
    request = serve(server, "/big", data, size=None)
    assert stored(blobs, fetch(blobs, request)[0]) == data
    # The first answer tells the size; its connection brings the first piece and no more.
    first, *others = server.seen
    assert first.range is None
    assert min(s.range or (0, 0) for s in others)[0] == PIECE


@pytest.mark.parametrize("advertise", [False, True])
def test_ranges_that_are_ignored(server: Server, blobs: Blobs, advertise: bool) -> None:
    data = noise(LARGE + 5)
    server.inject(faults.ignore_range(advertise=advertise))
    bars = Bars()
    (fetched,) = Fetcher(blobs, bars, patience=QUICK).fetch([serve(server, "/big", data)])
    assert stored(blobs, fetched) == data
    assert len(server.seen) == 1
    assert bars.done == len(data)


def test_ranges_that_are_no_longer_honoured(server: Server, blobs: Blobs) -> None:
    data = noise(3 * PIECE)
    server.inject(faults.cut(after=3 * MB), times=1)
    request = serve(server, "/big", data)
    bars = Bars()
    fetcher = Fetcher(blobs, bars, connections=1, patience=Patience(first=0.01))
    late = server.inject(faults.ignore_range(), times=0)

    def from_the_second_on(sent: int) -> None:
        late.times = None

    server.inject(faults.watch(from_the_second_on))
    assert stored(blobs, fetcher.fetch([request])[0]) == data
    assert bars.done == len(data)
    # It did give ranges, so it is asked again before what is here is thrown away.
    assert [s.range for s in server.seen] == [(0, PIECE - 1), *[(3 * MB, PIECE - 1)] * 3]


# Faults that pass


def test_a_cut_connection_is_taken_up_where_it_broke(server: Server, blobs: Blobs) -> None:
    data = noise(MB)
    server.inject(faults.cut(after=200_000), times=4)
    # Each attempt brings bytes, so that four breaks do not use up three attempts.
    assert stored(blobs, fetch(blobs, serve(server, "/a", data))[0]) == data
    starts = [s.range[0] if s.range else 0 for s in server.seen]
    assert starts == [0, 200_000, 400_000, 600_000, 800_000]


def test_a_reset_connection_is_taken_up_too(server: Server, blobs: Blobs) -> None:
    data = noise(MB)
    server.inject(faults.reset(after=300_000), times=3)
    patience = Patience(attempts=9, first=0.01, longest=0.05)
    assert stored(blobs, fetch(blobs, serve(server, "/a", data), patience=patience)[0]) == data
    starts = [s.range[0] if s.range else 0 for s in server.seen]
    assert starts == sorted(starts)  # a reset loses what the client had not read yet, no more
    assert len(starts) == 4


def test_a_stalled_server(server: Server, blobs: Blobs) -> None:
    data = noise(MB)
    over = threading.Event()
    server.inject(faults.stall(after=400_000, until=over), times=1)
    patience = Patience(stall=0.2, first=0.01)
    try:
        assert stored(blobs, fetch(blobs, serve(server, "/a", data), patience=patience)[0]) == data
    finally:
        over.set()
    assert [s.range and s.range[0] for s in server.seen] == [None, 400_000]


@pytest.mark.parametrize("code", [429, 500, 502, 503, 504, 408])
def test_a_server_in_trouble_is_asked_again(server: Server, blobs: Blobs, code: int) -> None:
    server.inject(faults.status(code), times=2)
    assert stored(blobs, fetch(blobs, serve(server, "/a", b"x" * 10))[0]) == b"x" * 10
    assert len(server.seen) == 3


def test_retry_after_in_seconds_and_as_a_date() -> None:
    now = 1_800_000_000.0
    assert retry_after("7", now) == 7
    assert retry_after(email.utils.formatdate(now + 90, usegmt=True), now) == 90
    assert retry_after(email.utils.formatdate(now - 90, usegmt=True), now) == 0
    assert retry_after("soon", now) is None
    assert retry_after(None, now) is None


def test_patience() -> None:
    patience = Patience(attempts=4, first=1, longest=10)
    assert [patience.pause(n, None) for n in (1, 2, 3, 4)] == [1, 2, 4, None]
    assert patience.pause(1, 7) == 7
    assert patience.pause(3, 0) == 4
    assert patience.pause(1, 11) is None


def test_retry_after_is_kept(server: Server, blobs: Blobs) -> None:
    server.inject(faults.status(429, retry_after="1"), times=1)
    before = time.monotonic()
    fetch(blobs, serve(server, "/a", b"x"))
    assert time.monotonic() - before >= 1


def test_a_server_that_wants_too_long_a_pause_has_refused(server: Server, blobs: Blobs) -> None:
    server.inject(faults.status(503, retry_after="3600"))
    assert "HTTP 503" in failure(blobs, serve(server, "/a", b"x")).problems[0]
    assert len(server.seen) == 1


@pytest.mark.parametrize("fault", [faults.no_length(), faults.chunked()])
def test_no_content_length(server: Server, blobs: Blobs, fault: Change) -> None:
    data = noise(3 * MB)
    server.inject(fault)
    sized = serve(server, "/a", data)
    unsized = serve(server, "/b", data[1:], size=None)
    assert [stored(blobs, f) for f in fetch(blobs, sized, unsized)] == [data, data[1:]]


def test_a_body_of_no_length_that_is_cut(server: Server, blobs: Blobs) -> None:
    data = noise(3 * MB)
    server.inject(faults.no_length(), times=1)
    server.inject(faults.cut(after=MB), times=1)
    assert stored(blobs, fetch(blobs, serve(server, "/a", data))[0]) == data
    assert server.seen[1].range == (MB, None) or server.seen[1].range == (MB, 3 * MB - 1)


def test_chunks_that_are_cut(server: Server, blobs: Blobs) -> None:
    data = noise(3 * MB)
    server.inject(faults.chunked(), times=1)
    server.inject(faults.cut(after=MB), times=1)
    assert stored(blobs, fetch(blobs, serve(server, "/a", data, size=None))[0]) == data


def test_bytes_damaged_once_are_fetched_again(server: Server, blobs: Blobs) -> None:
    data = noise(LARGE)
    bars = Bars()
    server.inject(faults.corrupt(at=PIECE + 7), times=2)
    (fetched,) = Fetcher(blobs, bars, patience=QUICK).fetch([serve(server, "/a", data)])
    assert stored(blobs, fetched) == data
    assert bars.done == len(data)


# Faults that stay


def test_wrong_bytes_are_never_published(server: Server, blobs: Blobs) -> None:
    server.inject(faults.corrupt(at=100))
    error = failure(blobs, serve(server, "/a", noise(1000)))
    assert sha256(noise(1000)) in error.problems[0]
    assert left_over(blobs) == []


@pytest.mark.parametrize("by", [10, 10_000])
def test_a_length_too_long(server: Server, blobs: Blobs, by: int) -> None:
    server.inject(faults.wrong_length(by))
    unsized = serve(server, "/a", noise(1000), size=None)
    error = failure(blobs, unsized)
    assert "HTTP 416: the server has fewer bytes than it said before" in error.problems[0]
    error = failure(blobs, serve(server, "/b", noise(999)))
    assert f"the server has {999 + by:,} bytes, where 999 are right" in error.problems[0]


def test_a_length_too_short(server: Server, blobs: Blobs) -> None:
    server.inject(faults.wrong_length(-10))
    assert (
        "not the right ones"
        in failure(blobs, serve(server, "/a", noise(1000), size=None)).problems[0]
    )


def test_a_body_whose_end_cannot_be_told_is_refused(server: Server, blobs: Blobs) -> None:
    server.inject(faults.no_length())
    request = serve(server, "/a", noise(1000), digest=None, size=None)
    assert "could be cut" in failure(blobs, request).problems[0]


def test_a_compressed_body_is_refused(server: Server, blobs: Blobs) -> None:
    server.inject(faults.compress())
    error = failure(blobs, serve(server, "/a", b"a" * 1000))
    assert "gzip" in error.problems[0]
    error = failure(blobs, serve(server, "/a", b"a" * 1000, digest=None, size=None))
    assert "gzip" in error.problems[0]
    assert all(s.headers["accept-encoding"] == "identity" for s in server.seen)


def test_a_mislabelled_archive_is_taken_as_it_is(server: Server, blobs: Blobs) -> None:
    data = noise(1000)

    def label(seen: Seen, reply: Reply) -> None:
        reply.headers["Content-Encoding"] = "gzip"

    server.inject(label)
    assert stored(blobs, fetch(blobs, serve(server, "/x.tar.gz", data))[0]) == data


@pytest.mark.parametrize(
    ("code", "words"), [(401, "token"), (403, "refuses"), (404, "no such file"), (410, "longer")]
)
def test_a_refusal_is_not_repeated(server: Server, blobs: Blobs, code: int, words: str) -> None:
    server.inject(faults.status(code))
    request = serve(server, "/a", b"x", hint="Set HF_TOKEN.")
    error = failure(blobs, request)
    assert f"HTTP {code}" in error.problems[0]
    assert words in error.problems[0]
    assert error.hint is not None
    assert "Set HF_TOKEN." in error.hint
    assert len(server.seen) == 1


def test_a_server_in_trouble_for_good(server: Server, blobs: Blobs) -> None:
    server.inject(faults.status(500))
    assert "HTTP 500" in failure(blobs, serve(server, "/a", b"x")).problems[0]
    assert len(server.seen) == QUICK.attempts


def test_all_that_failed_is_named_and_the_rest_is_here(server: Server, blobs: Blobs) -> None:
    good = [serve(server, f"/good{n}", noise(100, n)) for n in range(5)]
    bad = [Request(f"{server.url}/bad{n}", f"bad{n}", f"sha256:{n:064}", 5) for n in range(20)]
    error = failure(blobs, *bad)
    assert [p.partition(":")[0] for p in error.problems] == [f"bad{n}" for n in range(20)]
    with pytest.raises(DownloadError, match="20 of 25 files could not be downloaded"):
        fetch(blobs, *good, *bad)
    server.seen.clear()
    assert len(fetch(blobs, *good)) == 5
    assert server.seen == []


def test_an_unreachable_server_is_given_up_once_for_all(blobs: Blobs) -> None:
    requests = [
        Request(f"http://127.0.0.1:1/{n}?token=secret", f"file {n}", f"sha256:{n:064}", 5)
        for n in range(200)
    ]
    patience = Patience(attempts=2, first=1)
    before = time.monotonic()
    error = failure(blobs, *requests, patience=patience)
    assert time.monotonic() - before < 8  # each for itself: over 12
    assert len(error.problems) == 200
    assert "refuses the connection (http://127.0.0.1:1)" in error.problems[7]
    assert "HTTPS_PROXY" in str(error.hint)
    assert "secret" not in str(error)


def test_an_unknown_host(blobs: Blobs) -> None:
    patience = Patience(attempts=1)
    request = Request("https://hub.example.invalid/x", "x", f"sha256:{1:064}", 5)
    assert "hub.example.invalid" in failure(blobs, request, patience=patience).problems[0]


@pytest.mark.parametrize("url", ["ftp://example.invalid/x", "http://", "http://[::1/x", "x"])
def test_no_url(blobs: Blobs, url: str) -> None:
    assert "URL" in failure(blobs, Request(url, "x", f"sha256:{1:064}", 5)).problems[0]


# Redirects and secrets


def test_headers_stay_with_their_origin(server: Server, blobs: Blobs) -> None:
    with Server() as storage:
        data = noise(5000)
        headers = {"Authorization": "Bearer secret", "X-Private": "secret too"}
        request = serve(server, "/a", data, headers=headers)
        storage.files["/a"] = data
        server.inject(faults.redirect(storage.url))
        storage.inject(faults.cut(after=1000), times=1)
        assert stored(blobs, fetch(blobs, request)[0]) == data
    assert all(s.headers["authorization"] == "Bearer secret" for s in server.seen)
    assert [s.range for s in storage.seen] == [None, (1000, 4999)]
    assert not any("secret" in value for s in storage.seen for value in s.headers.values())


def test_headers_stay_within_their_origin(server: Server, blobs: Blobs) -> None:
    data = noise(100)
    request = serve(server, "/a", data, headers={"Authorization": "Bearer mine"})
    server.files["/moved/a"] = data
    server.inject(faults.redirect("/moved"), path="/a")
    fetch(blobs, request)
    assert [s.headers.get("authorization") for s in server.seen] == ["Bearer mine"] * 2


def test_a_token_is_not_replaced_by_what_netrc_has(
    server: Server, blobs: Blobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("default login me password netrc-secret\n", encoding="utf-8")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with Server() as storage:
        request = serve(server, "/a", b"x", headers={"Authorization": "Bearer mine"})
        fetch(blobs, request, serve(server, "/b", b"y"))
        server.inject(faults.redirect(storage.url))
        storage.files["/c"] = b"z"
        fetch(blobs, serve(server, "/c", b"z"))
    sent = {s.path: s.headers.get("authorization", "") for s in server.seen}
    assert sent["/a"] == "Bearer mine"
    assert sent["/b"].startswith("Basic ")
    assert "authorization" not in storage.seen[0].headers


def test_redirects_without_end(server: Server, blobs: Blobs) -> None:
    server.inject(faults.redirect(""))
    assert "redirects more than" in failure(blobs, serve(server, "/a", b"x")).problems[0]


def test_no_secret_is_in_an_error(server: Server, blobs: Blobs) -> None:
    url = server.url.replace("//", "//user:s3cret@") + "/missing?X-Amz-Signature=s3cret#s3cret"
    error = failure(
        blobs, Request(url, "missing", f"sha256:{1:064}", 5, {"Authorization": "Bearer s3cret"})
    )
    assert f"{server.url}/missing" in error.problems[0]
    assert "s3cret" not in str(error)
    assert "s3cret" not in repr(error)


# Interrupted processes

_CHILD = """
import json, sys
from pathlib import Path
from mirror.core.progress import Quiet
from mirror.fetch.http import Fetcher, Request
from mirror.store.blobs import Blobs
requests = [Request(**values) for values in json.loads(sys.argv[2])]
Fetcher(Blobs(Path(sys.argv[1])), Quiet(), connections=4).fetch(requests)
"""


def _command(script: str, blobs: Blobs, *requests: Request) -> list[str]:
    keys = ("url", "label", "digest", "size")
    values = [{key: getattr(request, key) for key in keys} for request in requests]
    return [sys.executable, "-c", script, str(blobs.folder), json.dumps(values)]


@contextmanager
def child(blobs: Blobs, *requests: Request) -> Iterator[subprocess.Popen[bytes]]:
    """Another process that fetches these."""
    values = [
        {"url": r.url, "label": r.label, "digest": r.digest, "size": r.size} for r in requests
    ]
    arguments = [sys.executable, "-c", _CHILD, str(blobs.folder), json.dumps(values)]
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_until_noted(blobs: Blobs, request: Request, amount: int) -> None:
    """Until the other process has noted that so many bytes are here."""
    note = blobs.folder / "partial" / f"{request.key}.json"
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if note.exists():
            done = json.loads(note.read_bytes())["done"]
            if sum(end - start for start, end in done) >= amount:
                return
        time.sleep(0.01)
    raise AssertionError("no bytes were noted in time")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
@pytest.mark.parametrize("size", [4 * MB, 4 * PIECE])
def test_a_killed_download_goes_on_where_it_was(
    server: Server, blobs: Blobs, how: signal.Signals, size: int
) -> None:
    data = noise(size)
    request = serve(server, "/big", data)
    over = threading.Event()
    server.inject(faults.stall(after=MB, until=over))
    expected = MB if size < LARGE else 4 * MB
    with child(blobs, request) as process:
        try:
            wait_until_noted(blobs, request, expected)
            process.send_signal(how)
            process.wait(10)
        finally:
            over.set()
    assert not blobs.has(sha256(data))
    server.heal()
    sent: list[int] = []
    server.inject(lambda seen, reply: sent.append(_asked(seen, len(reply.body))))
    assert stored(blobs, fetch(blobs, request)[0]) == data
    assert sum(sent) == size - expected
    assert left_over(blobs) == []


def _asked(seen: Seen, size: int) -> int:
    first, last = seen.range or (0, size - 1)
    return (size if last is None else last + 1) - first


@pytest.mark.parametrize("damage", ["note", "bytes", "short", "nonsense"])
def test_a_damaged_part_does_no_harm(server: Server, blobs: Blobs, damage: str) -> None:
    data = noise(MB)
    request = serve(server, "/a", data)
    server.inject(faults.cut(after=500_000), times=1)

    def refuse_after(seen: Seen, reply: Reply) -> None:
        if seen.range:
            faults.status(404)(seen, reply)

    server.inject(refuse_after)
    failure(blobs, request)
    part = blobs.folder / "partial" / request.key
    note = part.with_name(part.name + ".json")
    assert json.loads(note.read_bytes())["done"] == [[0, 500_000]]
    if damage == "note":
        note.write_bytes(b"{")
    elif damage == "bytes":
        part.write_bytes(b"\0" * 500_000)
    elif damage == "short":
        part.write_bytes(data[:1000])
    else:
        note.write_text(json.dumps({"size": MB, "etag": 5, "done": [[-5, 10**9], ["a"], 3]}))
    server.heal()
    assert stored(blobs, fetch(blobs, request)[0]) == data


def test_a_file_without_a_digest_is_joined_only_under_one_etag(
    server: Server, blobs: Blobs
) -> None:
    old = noise(MB, 1)

    def tagged(seen: Seen, reply: Reply) -> None:
        reply.headers["ETag"] = f'"{sha256(reply.body)}"'

    server.inject(tagged)
    same = serve(server, "/same", old, digest=None, size=None)
    server.inject(faults.cut(after=300_000), path="/same", times=1)
    assert stored(blobs, fetch(blobs, same)[0]) == old
    assert server.seen[1].range is not None

    server.seen.clear()
    for name, new in (("/equal", noise(MB, 2)), ("/short", b"short"), ("/long", noise(2 * MB, 3))):
        changed = serve(server, name, old, digest=None, size=None)

        def change(sent: int, name: str = name, new: bytes = new) -> None:
            server.files[name] = new

        server.inject(faults.cut(after=300_000), path=name, times=1)
        server.inject(faults.watch(change), path=name, times=1)
        assert stored(blobs, fetch(blobs, changed)[0]) == new
        first, second = server.gets(name)
        assert first.range is None
        assert second.headers["if-range"] == f'"{sha256(old)}"'


def test_a_left_part_without_a_digest_is_asked_for_again(server: Server, blobs: Blobs) -> None:
    data = noise(1000)
    server.inject(lambda seen, reply: reply.headers.update(ETag=f'"{sha256(reply.body)}"'))
    request = serve(server, "/a", data, digest=None, size=None)
    folder = blobs.folder / "partial"
    folder.mkdir(parents=True)
    for done in ([[0, 500]], [[0, 1000]]):
        (folder / request.key).write_bytes(data[: done[0][1]])
        note = {"size": 1000, "etag": f'"{sha256(data)}"', "done": done}
        (folder / f"{request.key}.json").write_text(json.dumps(note), encoding="ascii")
        server.seen.clear()
        assert stored(blobs, fetch(blobs, request)[0]) == data
        assert [s.range for s in server.seen] == [(500, 999) if done == [[0, 500]] else None]


def test_a_noted_size_that_is_wrong(server: Server, blobs: Blobs) -> None:
    data = noise(1000)
    request = serve(server, "/a", data, size=None)
    folder = blobs.folder / "partial"
    folder.mkdir(parents=True)
    for size, done in (
        (500, [[0, 500]]),
        (2000, [[0, 700]]),
        (2000, [[9, 90]]),
        (2000, [[0, 1500]]),
    ):
        (folder / request.key).write_bytes(data + data)
        note = {"size": size, "etag": "", "done": done}
        (folder / f"{request.key}.json").write_text(json.dumps(note), encoding="ascii")
        blobs.path(sha256(data)).unlink(missing_ok=True)
        assert stored(blobs, fetch(blobs, request)[0]) == data


def test_a_file_without_digest_and_etag_starts_again(server: Server, blobs: Blobs) -> None:
    data = noise(MB)
    server.inject(faults.cut(after=300_000), times=1)
    assert stored(blobs, fetch(blobs, serve(server, "/a", data, digest=None))[0]) == data
    assert [s.range for s in server.seen] == [None, None]


# This machine


def test_two_processes_share_a_store(server: Server, blobs: Blobs) -> None:
    request = serve(server, "/a", noise(MB))
    go_on, started = threading.Event(), threading.Event()

    def hold(sent: int) -> None:
        started.set()
        go_on.wait(30)

    server.inject(faults.watch(hold))

    class Told(Quiet):
        def step(self, text: str) -> None:
            assert "waiting for another mirror" in text
            go_on.set()

    with child(blobs, request) as process:
        assert started.wait(30)
        assert stored(blobs, Fetcher(blobs, Told()).fetch([request])[0]) == noise(MB)
        assert process.wait(30) == 0
    assert len(server.seen) == 1


@pytest.mark.skipif(os.name == "nt", reason="modes and roots are POSIX's")
def test_a_store_that_cannot_be_written(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    blobs = Blobs(tmp_path / "file" / "store")
    with pytest.raises(MachineError, match="cannot be written"):
        fetch(blobs, serve(server, "/a", b"x"))


def test_no_space(server: Server, blobs: Blobs) -> None:
    """A file size limit stands for a full disk: both fail the write."""
    request = serve(server, "/a", noise(3 * MB))
    script = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))\n" + _CHILD
    )
    arguments = _command(script, blobs, request)
    run = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=60)
    assert "MachineError" in run.stderr
    assert "File too large" in run.stderr
    assert not blobs.has(sha256(noise(3 * MB)))
