"""Facts of the machine, versions of packages, processes that are ended, the launch command."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mirror.core.artifact import Artifact, Json
from mirror.core.index import Entry, Index
from mirror.core.progress import Quiet
from mirror.core.target import Target
from mirror.store import blobs
from mirror.store.generation import Generation
from mirror.store.generations import Root
from mirror.verify import environment, host, processes, store, verify
from mirror.verify.subject import Subject

TWO = """\
0, NVIDIA H200, GPU-aaaa, 580.159.04, 143771, 4
1, NVIDIA H200, GPU-bbbb, 580.159.04, 143771, 0
"""


def test_nvidia_smi_is_read() -> None:
    first, second = host.parse(TWO)
    assert (first.index, first.name, first.used) == ("0", "NVIDIA H200", "4")
    assert (second.uuid, host.driver([second])) == ("GPU-bbbb", "580.159.04")
    assert host.parse("No devices were found\n") == []
    assert host.driver(None) == ""


@pytest.mark.parametrize(
    ("visible", "uuids"),
    [
        (None, ["GPU-aaaa", "GPU-bbbb"]),
        ("1", ["GPU-bbbb"]),
        ("1,0", ["GPU-bbbb", "GPU-aaaa"]),
        ("GPU-b", ["GPU-bbbb"]),
        ("", []),
        ("-1", []),
        ("0,7,1", ["GPU-aaaa"]),  # CUDA stops at the first that it does not know
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_does(visible: str | None, uuids: list[str]) -> None:
    assert [gpu.uuid for gpu in host.chosen(host.parse(TWO), visible)] == uuids


def fake_smi(folder: Path, output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An nvidia-smi on PATH that prints this."""
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{output}END\n", encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def subject(
    folder: Path, *, gpus: int | None = None, verify: dict[str, Json] | None = None
) -> Subject:
    artifact = Artifact("wheels", "wheels/Some_Thing-1.0-py3-none-any.whl", 3, "0" * 64)
    target = Target("3.11", "linux-x86_64", provided=("torch==2.8.0",))
    index = Index("n", "1", "0.1.0", "0" * 64, target, (Entry(artifact),), verify or {})
    work = folder / "work"
    work.mkdir(exist_ok=True)
    return Subject(Root(folder), Generation(folder / "000001"), index, gpus, work, Quiet())


def test_fewer_gpus_than_asked_for_fail_with_what_was_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_smi(tmp_path, TWO, monkeypatch)
    found = host.visible_gpus()
    checks = {check.name: check for check in host.check(subject(tmp_path, gpus=4), found)}
    assert checks["gpus"].verdict == "fail"
    assert checks["gpus"].evidence.startswith("4 asked for; driver 580.159.04, 2 GPUs\n0: NVIDIA")
    checks = {check.name: check for check in host.check(subject(tmp_path, gpus=2), found)}
    assert checks["gpus"].verdict == "pass"
    assert checks["loopback"].verdict == "pass"


@pytest.mark.parametrize(
    ("packages", "problems"),
    [
        ({"some-thing": "1.0.0", "torch": "2.8.0+cu128"}, []),
        ({"some-thing": "1.1", "torch": "2.8.0"}, ["Some_Thing 1.0: 1.1 is installed"]),
        ({"some-thing": "1.0"}, ["torch 2.8.0: not installed"]),
        ({"some-thing": "1.0", "torch": "2.8.1"}, ["torch 2.8.0: 2.8.1 is installed"]),
        ({"some-thing": "1.0+cpu", "torch": "2.8.0"}, []),
    ],
)
def test_versions_are_those_declared(
    tmp_path: Path, packages: dict[str, str], problems: list[str]
) -> None:
    found = environment.versions(subject(tmp_path), packages)
    assert found.verdict == ("fail" if problems else "pass")
    assert not problems or found.evidence.splitlines() == problems


def test_an_index_from_outside_is_taken_for_what_it_can_be(tmp_path: Path) -> None:
    odd: dict[str, Json] = {"imports": ["a", 1], "steps": "x", "precision": "int4", "model": 7}
    found = subject(tmp_path, verify=odd)
    assert (found.imports, found.steps, found.precision) == (["a"], 40, "no")
    assert found.model is None
    assert found.models == []


def holding(folder: Path, named: Json, *models: str) -> Root:
    """A root whose current bundle carries these models, to verify with the one that is named."""
    root = Root(folder)
    root.prepare()
    generation = root.begin()
    config = b'{"model_type": "llama"}'
    entries = []
    for name in models:
        path = f"models/{name}/config.json"
        origin = {"repo": name, "revision": "main", "commit": "0" * 40, "file": "config.json"}
        digest = root.blobs.put(config)
        entries.append(Entry(Artifact("models", path, len(config), digest, origin=origin)))
        (generation.models / name).mkdir(parents=True)
        os.link(root.blobs.path(digest), generation.models / name / "config.json")
    index = Index("n", "1", "0.1.0", "0" * 64, None, tuple(entries), {"model": named})
    root.finish(generation, index)
    root.commit(generation)
    return root


@pytest.mark.parametrize(
    ("carried", "there"), [((), "no models"), (("a/one", "b/two"), "a/one, b/two")]
)
def test_a_model_to_train_that_the_bundle_lacks_fails_and_nothing_else_is_trained(
    tmp_path: Path, carried: tuple[str, ...], there: str
) -> None:
    root = holding(tmp_path, "org/gone", *carried)
    report = verify(root, gpus=None, report_folder=None, progress=Quiet())
    stages = {stage.name: stage for stage in report.stages}
    check = stages["models"].checks[0]
    assert (check.name, check.verdict) == ("verify.model", "fail")
    assert check.evidence == f"the manifest names org/gone; the bundle carries {there}"
    assert stages["single"].checks[0].evidence == "models (verify.model) failed"
    assert {stages[name].verdict for name in ("single", "multi")} == {"skip"}
    assert report.headline.startswith("Verification failed: models")
    assert report.gpus == 0


def test_a_model_to_train_is_the_one_named_else_the_first(tmp_path: Path) -> None:
    cases: list[tuple[Json, str | None]] = [
        ("b/two", "b/two"),
        ("", "a/one"),
        (7, "a/one"),
        ("org/gone", None),
    ]
    for number, (named, expected) in enumerate(cases):
        root = holding(tmp_path / str(number), named, "a/one", "b/two")
        generation = root.current()
        found = Subject(root, generation, generation.index(), None, tmp_path, Quiet())
        assert found.model == (generation.models / expected if expected else None)


def test_a_file_of_the_generation_that_differs_from_its_blob_is_found(tmp_path: Path) -> None:
    root = Root(tmp_path)
    root.prepare()
    generation = root.begin()
    entries = []
    for name, data in (("a", b"abc"), ("b", b"xyz"), ("c", b"ok")):
        place = f"files/{name}.txt"
        entries.append(Entry(Artifact("files", place, len(data), root.blobs.put(data))))
        blobs.place(root.blobs.path(entries[-1].artifact.sha256), generation.path / place)
    # What was laid out wrongly is found as well: it was sealed so.
    (generation.files / "b.txt").unlink()
    (generation.files / "b.txt").write_bytes(b"xyZ")
    root.finish(generation, Index("n", "1", "0.1.0", "0" * 64, None, tuple(entries)))
    (generation.files / "c.txt").unlink()
    (generation.files / "mine.txt").write_bytes(b"")
    (generation.files / "__pycache__").mkdir()
    (generation.files / "__pycache__" / "x.cpython-311.pyc").write_bytes(b"")
    found = Subject(root, generation, generation.index(), None, tmp_path, Quiet())
    stored, laid_out, added = store.check(found)
    assert stored.verdict == "pass"
    assert laid_out.verdict == "fail"
    assert "files/b.txt is sealed with bytes that are not the bundle's" in laid_out.evidence
    assert "files/c.txt is missing" in laid_out.evidence
    assert "files/a.txt" not in laid_out.evidence
    assert (added.verdict, "files/mine.txt" in added.evidence) == ("warn", True)
    assert "pycache" not in laid_out.evidence + added.evidence


# -- processes ---------------------------------------------------------------------------------

ORPHAN = """
import os, signal, sys, time
if os.fork():
    os._exit(0)
os.setsid()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="orphans are adopted on Linux")
def test_an_orphan_in_a_session_of_its_own_that_ignores_sigterm_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(processes, "GRACE", 0.3)
    with processes.nothing_left_behind():
        read, write = os.pipe()
        subprocess.run([sys.executable, "-c", ORPHAN], stdout=write, check=True)
        os.close(write)
        with os.fdopen(read, encoding="ascii") as pipe:
            orphan = int(pipe.readline())
            assert orphan in processes.descendants()
    assert not Path(f"/proc/{orphan}").exists()


def test_a_stopped_process_is_seen_as_one() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as running:
        assert not processes.is_stopped(running.pid)
        running.send_signal(signal.SIGSTOP)
        os.waitpid(running.pid, os.WUNTRACED)
        assert processes.is_stopped(running.pid)
        running.kill()


def test_nohup_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    old = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with processes.nothing_left_behind():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, old)
