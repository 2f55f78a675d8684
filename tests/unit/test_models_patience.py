"""With what patience a Hub is asked: nothing hangs, what may pass is tried again."""

from __future__ import annotations

import email.utils
import gc
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirror.core.manifest import RepositoryItem
from mirror.ecosystems.models.origins import api
from mirror.ecosystems.source import Context
from mirror.errors import DownloadError, ResolutionError
from mirror.fetch.http import Patience
from tests.asking import FILES, MODELS, error, heard, make_context, nobody
from tests.hub import Change, Hub, Reply, Seen, faults

TIRELESS = Patience(attempts=4, first=0.01, longest=5)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    nobody(monkeypatch, tmp_path)
    with Hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return make_context(tmp_path)


@pytest.mark.parametrize("code", [500, 429, 404, 403, 503])
def test_a_hub_in_trouble(hub: Hub, context: Context, code: int) -> None:
    hub.inject(faults.status(code))
    found = error(["org/tiny"], context)
    assert f"answers HTTP {code}" in found.message
    assert found.exit_code == (3 if code == 403 else 4)
    assert ("No token is set" in str(found.hint)) == (code == 403)


def date(seconds: float) -> str:
    """So many seconds from now, as HTTP writes it."""
    return email.utils.formatdate(time.time() + seconds, usegmt=True)


@pytest.mark.parametrize("where", ["*/revision/*", "*/tree/*", "*/resolve/*"])
@pytest.mark.parametrize(
    "fault",
    [
        faults.status(429, "0"),
        faults.status(503, date(-60)),
        faults.status(429),
        faults.status(502),
        faults.reset(0),
        faults.cut(1),
    ],
)
def test_it_is_asked_again(
    hub: Hub, tmp_path: Path, where: str, fault: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "right")
    hub.add_model("org/gated", FILES, gated="right")
    methods = ("HEAD",) if "resolve" in where else ("GET",)
    hub.inject(fault, path=where, times=2, methods=methods)
    artifacts = MODELS.resolve(["org/gated"], make_context(tmp_path, TIRELESS))
    assert len(artifacts) == len(FILES)


def test_a_retry_after_is_waited_for(hub: Hub, tmp_path: Path) -> None:
    hub.add_model("org/tiny", FILES)
    hub.inject(faults.status(429, "1"), path="*/tree/*", times=1)
    before = time.monotonic()
    MODELS.resolve(["org/tiny"], make_context(tmp_path, TIRELESS))
    assert time.monotonic() - before >= 1


@pytest.mark.parametrize("form", ["seconds", "date"])
@pytest.mark.parametrize("where", ["*/revision/*", "*/tree/*", "*/resolve/*"])
def test_a_retry_after_that_is_too_long(
    hub: Hub, tmp_path: Path, where: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "right")
    hub.add_model("org/gated", FILES, gated="right")
    methods = ("HEAD",) if "resolve" in where else ("GET",)
    retry_after = "3600" if form == "seconds" else date(3600)
    hub.inject(faults.status(429, retry_after), path=where, methods=methods)
    found = error(["org/gated"], make_context(tmp_path, TIRELESS))
    assert isinstance(found, DownloadError)
    assert "answers HTTP 429" in found.message
    assert re.search(r"it asks to wait (60 min 00|59 min 5\d) s", found.message)


@pytest.mark.parametrize("where", ["*/revision/*", "*/tree/*", "*/resolve/*", "*/whoami-v2"])
@pytest.mark.parametrize("after", [None, 0])
def test_nothing_is_waited_for_without_an_end(
    hub: Hub, tmp_path: Path, where: str, after: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """after: bytes of the body that come; None: not even a status does."""
    monkeypatch.setenv("HF_TOKEN", "hf_x")
    hub.add_model("org/gated", FILES, gated="right")
    release = threading.Event()
    if after is None:
        hub.inject(lambda seen, reply: release.wait(), path=where, methods=("GET", "HEAD"))
    else:
        hub.inject(faults.stall(after, release), path=where, methods=("GET", "HEAD"))
    before = time.monotonic()
    try:
        found = error(["org/gated"], make_context(tmp_path, Patience(stall=0.2, attempts=1)))
    finally:
        release.set()
    assert time.monotonic() - before < 5
    assert isinstance(found, (DownloadError, ResolutionError))
    assert "org/gated" in found.message
    if "whoami" not in where and (after is None or "resolve" not in where):
        assert isinstance(found, DownloadError)


def test_many_at_once(hub: Hub, tmp_path: Path) -> None:
    names: list[RepositoryItem] = [f"org/m{number}" for number in range(30)]
    for name in names:
        hub.add_model(str(name), FILES)
    for name in names[::3]:
        hub.inject(faults.status(503, "0"), path=f"*/{name}/*", times=1)
    for name in names[1::3]:
        hub.inject(faults.reset(0), path=f"*/{name}/*", times=1)
    artifacts = MODELS.resolve(names, make_context(tmp_path, TIRELESS))
    assert [a.text("repo") for a in artifacts][:: len(FILES)] == names


def test_an_unreachable_hub_is_given_up_once_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    names: list[RepositoryItem] = [f"org/m{number}" for number in range(300)]
    before = time.monotonic()
    found = error(names, make_context(tmp_path, Patience(attempts=3, first=0.1)))
    assert time.monotonic() - before < 5
    assert isinstance(found, DownloadError)
    assert "org/m0: the Hub 127.0.0.1:1 cannot be reached: the server refuses" in found.message
    for words in ("HF_ENDPOINT", "Behind a proxy?"):
        assert words in str(found.hint)
    assert any("org/m299: the Hub 127.0.0.1:1 cannot be reached" in p for p in found.problems)


def test_what_fails_for_one_is_tried_for_the_others(hub: Hub, tmp_path: Path) -> None:
    names: list[RepositoryItem] = [f"org/m{number}" for number in range(30)]
    for name in names:
        hub.add_model(str(name), FILES)
    once, twice = threading.Event(), threading.Event()

    def hang_up(seen: Seen, reply: Reply) -> None:
        (twice if once.is_set() else once).set()
        raise ConnectionResetError

    hub.inject(hang_up, path="*/org/m0/*")
    hub.inject(lambda seen, reply: once.wait(10), path="*/org/m[1-9]*/revision/*")
    hub.inject(lambda seen, reply: twice.wait(10), path="*/org/m[1-9]*/tree/*")
    found = error(names, make_context(tmp_path, Patience(attempts=2, first=0.01)))
    assert "org/m0: the Hub" in found.message
    assert found.problems == ()


def test_where_it_redirects_to_is_not_the_hub(hub: Hub, context: Context) -> None:
    hub.add_model("org/tiny", FILES)
    hub.inject(faults.redirect("http://127.0.0.1:1"), path="/api/*")
    assert "the server refuses the connection" in error(["org/tiny"], context).message
    hub.heal()
    assert len(MODELS.resolve(["org/tiny"], context)) == len(FILES)


@pytest.mark.parametrize("code", ["403", "404", "501", "GatedRepo", "RevisionNotFound"])
def test_what_is_final_is_asked_for_once(hub: Hub, tmp_path: Path, code: str) -> None:
    if code.isdecimal():
        hub.inject(faults.status(int(code)))
    else:
        hub.inject(faults.status(403, X_Error_Code=code))
    error(["org/tiny"], make_context(tmp_path, TIRELESS))
    assert len(hub.seen) == 1


def test_a_long_pause_is_told_once(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "_WORTH_TELLING", 0.1)
    names: list[RepositoryItem] = [f"org/m{number}" for number in range(8)]
    for name in names:
        hub.add_model(str(name), FILES)
        hub.inject(faults.status(429, "0"), path=f"*/{name}/revision/*", times=1)
    context = make_context(tmp_path, Patience(attempts=2, first=0.15))
    MODELS.resolve(names, context)
    said = heard(context)
    assert set(said) == {f"{hub.url.removeprefix('http://')} is asked again in 0.15 s"}
    assert len(said) < 8


@pytest.mark.skipif(sys.platform == "win32", reason="sends itself a signal")
def test_ctrl_c_waits_for_nobody(hub: Hub, tmp_path: Path) -> None:
    main = threading.main_thread().ident
    assert main is not None
    busy, release = faults.status(503, "100"), threading.Event()

    def interrupt(seen: Seen, reply: Reply) -> None:
        busy(seen, reply)
        if len(hub.seen) == 8:  # all threads are at work
            signal.pthread_kill(main, signal.SIGINT)
            release.wait()

    hub.inject(interrupt)
    names: list[RepositoryItem] = [f"org/m{number}" for number in range(100)]
    gc.collect()
    gc.disable()  # while an object is finalized, Python drops exceptions; mirror.cli sees to that
    before = time.monotonic()
    try:
        with pytest.raises(KeyboardInterrupt):
            MODELS.resolve(names, make_context(tmp_path, Patience()))
        assert time.monotonic() - before < 5
    finally:
        gc.enable()
        release.set()
    for thread in threading.enumerate():
        if thread.name.startswith("ThreadPool"):
            thread.join(5)
            assert not thread.is_alive()
    assert time.monotonic() - before < 5
    assert len(hub.seen) < 50
