"""The stage `ray` with real Ray on the CPU: it runs, it fails by name, and nothing of it stays.

Ray has an environment of its own: MIRROR_RAY_PYTHON names its Python, else .venv-ray has it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from mirror.core.progress import Quiet
from mirror.store.generations import Root
from mirror.verify import extras, processes
from mirror.verify.report import Check
from mirror.verify.subject import Subject
from tests.e2e.conftest import CHECKOUT
from tests.environments import root_with_environment

RAY = Path(os.environ.get("MIRROR_RAY_PYTHON") or CHECKOUT / ".venv-ray" / "bin" / "python")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Root:
    return root_with_environment(tmp_path_factory.mktemp("ray") / "root")


@pytest.fixture
def subject(root: Root, tmp_path: Path) -> Subject:
    generation = root.current()
    work = tmp_path / "work"
    work.mkdir()
    return Subject(root, generation, generation.index(), None, work, Quiet())


@pytest.fixture(autouse=True)
def nothing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A home of its own, in which Ray writes nothing; no process and no folder is left."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    before = set(Path("/tmp").glob("mirror-ray-*"))
    yield
    assert list(home.iterdir()) == []
    assert set(Path("/tmp").glob("mirror-ray-*")) <= before
    assert of_ray(home) == {}


def of_ray(home: Path) -> dict[int, str]:
    """Every process, of whatever parent, that has this home in its environment."""
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and f"HOME={home}".encode() in (
                (folder / "environ").read_bytes().split(b"\0")
            ):
                words = (folder / "cmdline").read_bytes().split(b"\0")
                found[int(folder.name)] = b" ".join(words[:3]).decode("utf-8", "replace")
        except OSError:
            continue
    return found


def ray(subject: Subject, gpus: int = 0, python: Path = RAY) -> dict[str, Check]:
    with processes.nothing_left_behind():
        found = list(extras.check("ray", subject, python, gpus=gpus, env={}))
        assert not processes.descendants()  # before that block ends them
    return {check.name: check for check in found}


def verdicts(found: Mapping[str, Check]) -> dict[str, str]:
    return {name: check.verdict for name, check in found.items()}


def test_two_processes_run_at_the_same_time(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever cluster the shell names, and however long the path of TMPDIR is."""
    long = tmp_path / ("d" * 100)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("RAY_ADDRESS", "192.0.2.1:6379")
    monkeypatch.setenv("RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES", "1")
    found = ray(subject)
    assert verdicts(found) == {"start": "pass", "tasks": "pass", "stop": "pass"}
    assert "(CPU 2, GPU 0)" in found["start"].evidence
    first, *rows = found["tasks"].evidence.splitlines()
    assert first.startswith("2 tasks in ")
    assert len(set(rows)) == 2
    assert (subject.work / "ray" / "session" / "raylet.out").is_file()


def test_each_task_gets_one_gpu_of_its_own(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray is told of two, which without torch nobody computes on: it hands out numbers."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = ray(subject, gpus=2)
    rows = found["tasks"].evidence.splitlines()[2:]
    assert sorted(row.partition(": ")[2].split()[0] for row in rows) == [
        "CUDA_VISIBLE_DEVICES=0",
        "CUDA_VISIBLE_DEVICES=1",
    ]
    assert "(CPU 2, GPU 2)" in found["start"].evidence


def test_more_gpus_than_are_visible_are_a_failure_at_once(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    found = ray(subject, gpus=2)
    assert found["start"].verdict == "fail"
    assert "CUDA_VISIBLE_DEVICES" in found["start"].evidence


def test_servers_that_are_not_reached_end_with_the_time_and_the_proxy_is_named(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(extras.LIMITS, "ray", 45.0)
    monkeypatch.setenv("RAY_grpc_enable_http_proxy", "1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    found = ray(subject)
    assert found["start"].verdict == "fail"
    assert "it had not ended after 45 s" in found["start"].evidence
    assert "it stood in " in found["start"].evidence
    assert "Ray does not start, or cannot be reached" in found
    assert "no_proxy=127.0.0.1,localhost" in found["proxy"].advice


SCRIPT = """
import sys
from pathlib import Path
from mirror.core.progress import Quiet
from mirror.store.generations import Root
from mirror.verify import extras, processes
from mirror.verify.subject import Subject

root = Root(Path(sys.argv[1]))
generation = root.current()
subject = Subject(root, generation, generation.index(), None, Path(sys.argv[2]), Quiet())
with processes.nothing_left_behind():
    extras.check("ray", subject, Path(sys.argv[3]), gpus=0, env={})
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_person_who_interrupts_leaves_nothing_of_ray(
    subject: Subject, number: signal.Signals
) -> None:
    home = Path(os.environ["HOME"])
    command = [sys.executable, "-c", SCRIPT, subject.root.path, subject.work, RAY]
    with subprocess.Popen(
        list(map(str, command)),
        env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        deadline = time.monotonic() + 120
        while not any("gcs_server" in line for line in of_ray(home).values()):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(1)
        process.send_signal(number)
        assert process.wait(timeout=60) != 0
