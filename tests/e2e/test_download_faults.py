"""`mirror build` from a Hub with every fault: the right bytes, or exit 4 and what is wrong."""

from __future__ import annotations

import email.utils
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mirror import cli
from mirror.fetch import http
from mirror.fetch.http import Patience
from tests.e2e.conftest import CHECKOUT
from tests.hub import Change, Hub, Reply, Seen, faults
from tests.hub.hub import Repo, pointer
from tests.index import make_wheel, serve

MB = 2**20
BIG, SMALL = "data/big.parquet", "data/small.json"
FILES = {BIG: os.urandom(3 * MB), SMALL: b'{"a": 1}\n', "README.md": b"a dataset\n"}
#: As a person's, with all waiting shorter.
QUICK = Patience(connect=5, stall=0.5, first=0.01, longest=5)


@dataclass(frozen=True)
class Ran:
    """How a command ended, and what it said to a person."""

    code: int
    said: str


@dataclass(frozen=True)
class Project:
    """A manifest of one dataset of a Hub, and the machine that builds it."""

    folder: Path
    hub: Hub
    capsys: pytest.CaptureFixture[str]

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    def bundle(self) -> Path:
        return self.folder / "bundles" / "faults-1.tar.gz"

    def write(self, item: str) -> None:
        text = f"name: faults\nversion: '1'\nendpoint: {self.hub.url}\ndatasets: [{item}]\n"
        (self.folder / "mirror.yaml").write_text(text, encoding="utf-8")

    def run(self, *arguments: str) -> Ran:
        """The command line, in this process."""
        self.capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.cli.main([*arguments], prog_name="mirror", standalone_mode=False)
        code = ended.value.code
        assert isinstance(code, int)
        return Ran(code, self.capsys.readouterr().err)

    def carried(self) -> dict[str, bytes]:
        """The dataset's files in the bundle."""
        found = {}
        with tarfile.open(self.bundle) as bundle:
            for member in bundle:
                if member.name.startswith("datasets/") and (data := bundle.extractfile(member)):
                    found[member.name.split("/", 3)[3]] = data.read()
        return found


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A package index with what the tool needs, in name."""
    shelf = tmp_path_factory.mktemp("shelf")
    for name in ("click", "tqdm", "packaging", "segno", "pip"):
        make_wheel(shelf, name, "99")
    with serve(shelf) as url:
        yield url


@pytest.fixture
def project(
    index: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Project]:
    monkeypatch.setattr(http, "PATIENCE", QUICK)
    monkeypatch.setenv("UV_DEFAULT_INDEX", index)
    monkeypatch.setenv("MIRROR_CACHE", str(tmp_path / "cache"))
    for name in ("HF_TOKEN", "HF_ENDPOINT", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    with Hub() as hub:
        hub.add(Repo("org/data", kind="datasets"), FILES)
        made = Project(tmp_path, hub, capsys)
        made.write("org/data")
        yield made


_OVER = threading.Event()
_DATE = email.utils.formatdate(time.time() - 5, usegmt=True)


def _other_tag(seen: Seen, reply: Reply) -> None:
    """The same bytes under another entity tag."""
    reply.headers["ETag"] = '"another"'


PASSING: dict[str, list[Change]] = {
    "truncated": [faults.cut(after=MB)],
    "reset": [faults.reset(after=MB)],
    "stalled": [faults.stall(after=MB, until=_OVER)],
    "another entity tag after a cut": [faults.cut(after=MB), _other_tag],
    "other bytes after a cut": [faults.cut(after=MB), faults.replace(os.urandom(3 * MB), "x")],
    "no ranges after a cut": [faults.cut(after=MB), faults.ignore_range(), faults.ignore_range()],
    "another range after a cut": [faults.cut(after=MB), *[faults.shift_range(1)] * 3],
    "no length": [faults.no_length()],
    "chunks": [faults.chunked()],
    "damaged": [faults.corrupt(at=2 * MB)],
    "too many requests": [faults.status(429), faults.status(429, retry_after="0")],
    "a quota": [faults.status(429, RateLimit='"resolvers";r=0;t=1')],
    "unavailable": [faults.status(503, retry_after=_DATE), faults.status(503, retry_after="1")],
    "broken": [faults.status(500), faults.status(502)],
}


@pytest.mark.parametrize("name", PASSING)
def test_a_fault_that_passes(project: Project, name: str) -> None:
    """One after the other, each hits one request for the large file."""
    left = list(PASSING[name])

    def in_turn(seen: Seen, reply: Reply) -> None:
        if left:
            left.pop(0)(seen, reply)

    project.hub.inject(in_turn, path=f"*/{BIG}")
    done = project.run("build")
    assert done.code == 0, done.said
    assert project.carried() == FILES
    assert not left


LASTING: dict[str, tuple[list[Change], str]] = {
    "a length that lies": ([faults.wrong_length(10)], "where 3,145,728 are right"),
    "no length, cut short": ([faults.no_length(), faults.cut(after=0)], "stopped at 0"),
    "damaged": ([faults.corrupt(at=2 * MB)], "the bytes that came are not the right ones"),
    "compressed": ([faults.compress()], "it compressed them: gzip"),
    "stalled": ([faults.stall(after=0, until=_OVER)], "the server has stopped sending"),
    "dripping": ([faults.drip(0.05)], "the server sends next to nothing"),
    "unavailable": ([faults.status(503)], "HTTP 503"),
    "too many requests": ([faults.status(429)], "HTTP 429: the server turns all requests away"),
    "away": ([faults.status(429, retry_after="3600")], "turns all requests away, for 60 min 00 s"),
    "gone": ([faults.status(404)], "HTTP 404: the server has no such file"),
    "a pointer": ([faults.replace(pointer(FILES[BIG]))], "an LFS pointer came instead of the file"),
    "a page": ([faults.replace(b"<html>Log in")], "an HTML page came instead of the file"),
}


@pytest.mark.parametrize("name", LASTING)
def test_a_fault_that_lasts(project: Project, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stall = 0.3 if name in ("stalled", "dripping") else 5.0
    monkeypatch.setattr(http, "PATIENCE", Patience(5, stall, stall, 2, 0.01, 5))
    changes, words = LASTING[name]
    for change in changes:
        project.hub.inject(change, path=f"*/{BIG}")
    failed = project.run("build")
    assert failed.code == 4, failed.said
    assert f"datasets/org/data/{BIG}: " in failed.said
    assert words in failed.said
    assert not project.bundle.exists()
    assert SMALL not in failed.said
    project.hub.heal()
    before = len(project.hub.gets(f"*/{SMALL}"))
    assert project.run("build").code == 0
    assert project.carried() == FILES
    assert len(project.hub.gets(f"*/{SMALL}")) == before  # it is here already


def test_what_is_in_xet_only(project: Project) -> None:
    project.hub.repos["datasets/org/data"].xet = "only"
    failed = project.run("build")
    assert failed.code == 4
    assert "it is stored in Xet, and this Hub has no plain HTTP way to it" in failed.said
    assert not project.bundle.exists()
    project.hub.repos["datasets/org/data"].xet = "bridge"
    assert project.run("build").code == 0
    assert project.carried() == FILES


def test_a_tag_that_moves_after_the_lock(project: Project) -> None:
    repo = project.hub.repos["datasets/org/data"]
    repo.refs["v1"] = repo.refs["main"]
    project.write("{repo: org/data, revision: v1}")
    assert project.run("lock").code == 0
    repo.commit({BIG: b"another" * 1000, "more.json": b"{}"}, "v1", "main")
    assert project.run("build").code == 0
    assert project.carried() == FILES


def test_a_repository_that_is_gated_meanwhile(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert project.run("lock").code == 0
    project.hub.repos["datasets/org/data"].gated = "hf_right"
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    failed = project.run("build")
    assert failed.code == 4
    assert "is restricted" in failed.said
    assert "HF_TOKEN" in failed.said
    assert "hf_wrong" not in failed.said
    assert not project.bundle.exists()


@pytest.mark.parametrize("lfs_from", [0, 10**9])
def test_three_of_700_files(project: Project, lfs_from: int) -> None:
    """All that fail are named at the end, and only they are asked for again."""
    files = {f"part/{n:03}.json": b"%d\n" % n for n in range(700)}
    project.hub.add(Repo("org/many", kind="datasets", lfs_from=lfs_from), files)
    project.write("org/many")
    bad = [f"part/{n:03}.json" for n in (7, 350, 699)]
    for name, code in zip(bad, (404, 500, 403), strict=True):
        project.hub.inject(faults.status(code), path=f"*/{name}")
    failed = project.run("build")
    assert failed.code == 4
    assert "error: 3 of 700 files could not be downloaded" in failed.said
    listed = [line.split(":")[0].strip() for line in failed.said.splitlines() if "HTTP " in line]
    assert listed == [f"datasets/org/many/{name}" for name in bad]
    assert not project.bundle.exists()
    project.hub.heal()
    project.hub.seen.clear()
    assert project.run("build").code == 0
    assert project.carried() == files
    asked = [seen.path for seen in project.hub.gets("*/resolve/*")]
    assert sorted(path.partition("/resolve/")[2].split("/", 1)[1] for path in asked) == bad


def test_a_build_that_is_killed_asks_for_the_rest_only(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "PATIENCE", Patience())
    files = {BIG: os.urandom(60 * MB)}
    project.hub.add(Repo("org/big", kind="datasets"), files)
    project.write("org/big")
    assert project.run("lock").code == 0
    project.hub.inject(faults.stall(after=MB, until=_OVER))
    process = subprocess.Popen(
        [sys.executable, "-m", "mirror", "build"],
        cwd=project.folder,
        env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        _noted(project.cache, at_least=4 * MB)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    here = _noted(project.cache, at_least=4 * MB)
    assert not project.bundle.exists()
    project.hub.heal()
    project.hub.seen.clear()
    assert project.run("build").code == 0
    assert project.carried() == files
    ranges = [seen.range or (0, None) for seen in project.hub.gets(f"*{BIG}")]
    assert all(
        (last or 60 * MB) < start or end <= first for first, last in ranges for start, end in here
    )


def _noted(cache: Path, at_least: int) -> list[tuple[int, int]]:
    """Which bytes of the one file that is not complete are noted, once they are enough."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for note in (cache / "partial").glob("*.json"):
            done = json.loads(note.read_bytes())["done"]
            if sum(end - start for start, end in done) >= at_least:
                return [(start, end) for start, end in done]
        time.sleep(0.01)
    raise AssertionError("no bytes were noted in time")
