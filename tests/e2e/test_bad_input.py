"""What a person or a machine can get wrong: one clear error, the right code, nothing half-made."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import CHECKOUT, Demo, mirror
from tests.index import make_wheel, serve


def left_in(root: Path) -> list[str]:
    """What an attempt left in a root, whole blobs aside, and a log that tells of no change."""
    if not root.exists():
        return []
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file() and path.name != "lock" and "sha256" not in path.parts
    }
    log = root / "log" / "audit.jsonl"
    states = [json.loads(line)["state"] for line in log.read_text(encoding="utf-8").splitlines()]
    return sorted(found - {"log/audit.jsonl"} if states[-1:] in ([], ["undone"]) else found)


def project(folder: Path, text: str) -> Path:
    path = folder / "mirror.yaml"
    path.write_text(f"name: x\nversion: 1\n{text}", encoding="utf-8")
    return path


def test_no_manifest(tmp_path: Path) -> None:
    assert "no mirror.yaml here" in mirror("build", cwd=tmp_path, code=2).stderr
    assert "cannot be read" in mirror("build", "nowhere.yaml", cwd=tmp_path, code=2).stderr
    (tmp_path / "manifests").mkdir()
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / "manifests" / name).touch()
    said = mirror("build", cwd=tmp_path, code=2).stderr
    assert "manifests/a.yaml" in said
    assert "manifests/b.yaml" in said


def test_a_wrong_manifest_in_json(tmp_path: Path) -> None:
    project(tmp_path, "fils: []\n")
    done = mirror("build", "--json", cwd=tmp_path, code=2)
    error = json.loads(done.stdout)["error"]
    assert error["exit_code"] == 2
    assert error["problems"] == ["mirror.yaml:3:1: unknown key fils; did you mean files?"]


def test_every_missing_thing_is_named_in_one_run(tmp_path: Path) -> None:
    project(tmp_path, "files: [{path: gone.txt, to: a}, {path: lost/, to: b/}]\n")
    said = mirror("build", cwd=tmp_path, code=2).stderr
    assert "gone.txt" in said
    assert "lost" in said
    assert not (tmp_path / "bundles").exists()
    assert not (tmp_path / "mirror.lock.toml").exists()


def test_two_wheels_that_conflict(tmp_path: Path) -> None:
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    make_wheel(shelf, "a", "1", requires=["c<2"])
    make_wheel(shelf, "b", "1", requires=["c>=2"])
    make_wheel(shelf, "c", "1")
    make_wheel(shelf, "c", "2")
    project(tmp_path, "wheels: {requirements: [a, b]}\n")
    with serve(shelf) as url:
        # The tool's own wheels are not on this index either, and are named in the same run.
        done = mirror("build", cwd=tmp_path, code=3, environment={"UV_DEFAULT_INDEX": url})
    assert "c>=2" in done.stderr
    assert "click" in done.stderr
    assert not (tmp_path / "mirror.lock.toml").exists()


def test_a_model_that_does_not_exist(tmp_path: Path) -> None:
    project(tmp_path, "models: [{path: nothing/, name: our/model}]\n")
    assert "nothing" in mirror("build", cwd=tmp_path, code=2).stderr


@pytest.mark.parametrize("share", [0, 0.001, 0.3, 0.7, 0.9999])
def test_a_cut_bundle(demo_bundle: Demo, tmp_path: Path, share: float) -> None:
    data = demo_bundle.bundle.read_bytes()
    cut = tmp_path / "cut.tar.gz"
    cut.write_bytes(data[: int(len(data) * share)])
    for command in (("inspect", cut), ("install", cut, "--root", tmp_path / "root")):
        assert "cut.tar.gz" in mirror(*command, code=5).stderr
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize("share", [0.0, 0.0001, 0.2, 0.5, 0.99999])
def test_a_changed_byte(demo_bundle: Demo, tmp_path: Path, share: float) -> None:
    data = bytearray(demo_bundle.bundle.read_bytes())
    data[int((len(data) - 1) * share)] ^= 0x20
    changed = tmp_path / "changed.tar.gz"
    changed.write_bytes(data)
    root = tmp_path / "root"
    mirror("install", changed, "--root", root, code=5)
    mirror("inspect", changed, "--deep", code=5)
    assert left_in(root) == []
    assert not (root / "current").exists()


def test_a_bundle_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "b.tar.gz").write_bytes(b"hello" * 1000)
    assert "b.tar.gz" in mirror("inspect", tmp_path / "b.tar.gz", code=5).stderr
    assert "gone.tar.gz" in mirror("inspect", tmp_path / "gone.tar.gz", code=2).stderr


def test_a_root_that_is_not_writable(demo_bundle: Demo, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for root in (tmp_path / "file" / "x", tmp_path / "file"):
        said = mirror("install", demo_bundle.bundle, "--root", root, code=8).stderr
        assert "cannot be written" in said
        assert "--root" in said


def test_a_target_that_is_not_this_machine(tmp_path: Path) -> None:
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    project(
        tmp_path,
        "target: {platform: linux-aarch64, python: 3.12, glibc: 2.28}\n"
        "wheels: {requirements: [six]}\n",
    )
    mirror("build", "-o", "b.tar.gz", cwd=tmp_path)
    said = mirror("install", "b.tar.gz", "--root", "root", cwd=tmp_path, code=7).stderr
    assert "linux-aarch64" in said
    assert not (tmp_path / "root").exists()


def test_what_the_bundle_expects_is_not_here(demo_bundle: Demo, tmp_path: Path) -> None:
    import venv

    venv.create(tmp_path / "bare", with_pip=False)
    said = mirror(
        *("install", demo_bundle.bundle, "--root", tmp_path / "root"),
        *("--over", tmp_path / "bare"),
        code=7,
    ).stderr
    assert "torch is not installed" in said
    assert not (tmp_path / "root").exists()


def test_nothing_installed(tmp_path: Path) -> None:
    for command in (["list"], ["rollback"], ["verify"], ["run", "--", "true"]):
        index = command.index("--") if "--" in command else len(command)
        command[index:index] = ["--root", str(tmp_path / "none")]
        assert "nothing is installed" in mirror(*command, code=8).stderr


def test_usage(tmp_path: Path) -> None:
    mirror("nonsense", code=2)
    mirror("build", "--nonsense", code=2)
    mirror("install", code=2)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_install_leaves_the_old_state(
    demo_bundle: Demo, tmp_path: Path, how: signal.Signals
) -> None:
    root = tmp_path / "root"
    command = [sys.executable, "-m", "mirror", "install", str(demo_bundle.bundle), "--root"]
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    process = subprocess.Popen(
        [*command, str(root)], env=environment, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not (root / "generations" / "000001").exists() and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(how)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert left_in(root) == []
    assert not (root / "current").exists()
    mirror("install", demo_bundle.bundle, "--root", root)
    assert (root / "current" / "index.json").exists()


def test_a_root_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    mirror("rollback", "--root", tmp_path / "typo", code=8)
    assert not (tmp_path / "typo").exists()


def test_what_is_no_bundle_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a", encoding="utf-8")
    manifest = project(tmp_path, "files: [{path: a.txt, to: a.txt}]\n")
    text = manifest.read_bytes()
    for name in ("mirror.yaml", "a.txt", ".", ""):
        mirror("build", "-o", name, cwd=tmp_path, code=2)
    assert manifest.read_bytes() == text
    assert (tmp_path / "a.txt").read_text(encoding="utf-8") == "a"


def test_names_that_clash_are_a_mistake_of_the_manifest(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a", encoding="utf-8")
    project(tmp_path, "files: [{path: a.txt, to: X}, {path: a.txt, to: x}]\n")
    assert "one file on some systems" in mirror("build", cwd=tmp_path, code=2).stderr
    assert not (tmp_path / "mirror.lock.toml").exists()


def test_a_model_to_verify_that_is_not_carried(tmp_path: Path) -> None:
    project(tmp_path, "models: [org/name]\nverify: {model: org/nome}\n")
    said = mirror("build", cwd=tmp_path, code=2).stderr
    assert "mirror.yaml:4:10: verify.model: org/nome is not among the models" in said
    assert "did you mean org/name?" in said
    project(tmp_path, "")
    assert "asks for nothing" in mirror("build", cwd=tmp_path, code=2).stderr


def test_options_that_exclude_each_other(tmp_path: Path) -> None:
    project(tmp_path, "models: [org/name]\n")
    mirror("lock", "--check", "--upgrade", cwd=tmp_path, code=2)
    mirror("lock", "--upgrade", "-P", "x", cwd=tmp_path, code=2)


def test_an_environment_for_a_bundle_that_has_no_use_for_one(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a", encoding="utf-8")
    project(tmp_path, "files: [{path: a.txt, to: a.txt}]\n")
    mirror("build", "-o", "b.tar.gz", cwd=tmp_path)
    mirror("install", "b.tar.gz", "--root", "r", "--over", "/nope", cwd=tmp_path, code=2)
    assert not (tmp_path / "r").exists()


def test_usage_errors_in_json(tmp_path: Path) -> None:
    done = mirror("build", "--nonsense", "--json", cwd=tmp_path, code=2)
    assert json.loads(done.stdout)["error"]["exit_code"] == 2


def test_local_files_are_hashed_once(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a", encoding="utf-8")
    project(tmp_path, "files: [{path: a.txt, to: a.txt}]\n")
    cache = {"MIRROR_CACHE": str(tmp_path / "cache")}
    mirror("build", "-o", "b.tar.gz", cwd=tmp_path, environment=cache)
    os.utime(tmp_path / "a.txt", (1, 1))
    before = (tmp_path / "cache" / "local.json").read_bytes()
    mirror("build", "-o", "b.tar.gz", cwd=tmp_path, environment=cache)
    assert (tmp_path / "cache" / "local.json").read_bytes() != before
