"""`mirror build` as people run it: killed and run again, to a pipe, in part, and only asked."""

from __future__ import annotations

import hashlib
import http.server
import json
import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.conftest import CHECKOUT, mirror, mirror_json

# Ends as kill -9 ends it, when it is about to give its Nth file a name.
KILLED = """
import os, signal, sys
real, count, last = os.replace, 0, int(sys.argv.pop(1))
def replace(*names, **options):
    global count
    count += 1
    if count == last:
        os.kill(os.getpid(), signal.SIGKILL)
    real(*names, **options)
os.replace = replace
from mirror.cli import main
main()
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of plain files with a cache of its own."""
    monkeypatch.setenv("MIRROR_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "p"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "large").write_bytes(os.urandom(3_000_000))
    (folder / "data" / "note").write_text("1", encoding="utf-8")
    write(folder, "files: [{path: data/, to: ./}]\n")
    return folder


def write(folder: Path, text: str) -> None:
    (folder / "mirror.yaml").write_text(f"name: x\nversion: 1\n{text}", encoding="utf-8")


def start(
    *arguments: object,
    code: str = "",
    cwd: Path,
    stdout: int | None = None,
    stderr: int | None = None,
) -> subprocess.Popen[bytes]:
    program = ["-c", code] if code else ["-m", "mirror"]
    return subprocess.Popen(
        [sys.executable, *program, *map(str, arguments)],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
        stdout=stdout,
        stderr=stderr,
    )


def test_a_build_killed_after_each_of_its_steps_ends_as_one_that_was_not(
    project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = 1
    while ended := start(run, "build", "-q", code=KILLED, cwd=project).wait(60):
        assert ended == -signal.SIGKILL
        run += 1
    assert run > 5
    assert [p.name for p in (project / "bundles").iterdir()] == ["x-1.tar.gz"], "nothing is left"
    lock, bundle = project / "mirror.lock.toml", project / "bundles" / "x-1.tar.gz"
    before = lock.read_bytes(), bundle.read_bytes()
    lock.unlink()
    bundle.unlink()
    monkeypatch.setenv("MIRROR_CACHE", str(tmp_path / "another"))
    mirror("build", cwd=project)
    assert (lock.read_bytes(), bundle.read_bytes()) == before


def test_a_build_killed_while_it_packs(project: Path) -> None:
    with open(project / "data" / "large", "r+b") as file:
        file.truncate(600_000_000)
    for _ in range(2):
        running = start("build", "-q", cwd=project)
        while not (left := list((project / "bundles").glob(".x-1*.tmp"))) or (
            left[0].stat().st_size < 1_000_000
        ):
            assert running.poll() is None
        running.kill()
        running.wait(60)
        # What the run before left has been removed, for it is as large as a bundle.
        assert len(list((project / "bundles").iterdir())) == 1
    built = mirror_json("build", cwd=project)
    assert [p.name for p in (project / "bundles").iterdir()] == ["x-1.tar.gz"]
    assert mirror_json("inspect", project / built["bundle"], "--deep")["checked"] is True


def test_two_builds_at_once_leave_each_other_alone(project: Path) -> None:
    mirror("build", "-o", "../other.tar.gz", cwd=project)
    running = [start("build", "-q", cwd=project) for _ in range(3)]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    built = project / "bundles" / "x-1.tar.gz"
    assert built.read_bytes() == (project.parent / "other.tar.gz").read_bytes()


@pytest.mark.parametrize("options", [[], ["--json"], ["-v"], ["-q"]])
def test_a_bundle_on_stdout_is_alone_there(project: Path, options: list[str]) -> None:
    mirror("build", "-o", "b.tar.gz", cwd=project)
    done = start(
        *("build", "-o", "-", *options), cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, said = done.communicate(timeout=60)
    assert done.returncode == 0, said
    assert out == (project / "b.tar.gz").read_bytes()
    assert b"digest" in said
    assert (b"hashing" in said) == (options == ["-v"])


def test_a_bundle_for_a_terminal_is_refused(project: Path) -> None:
    ours, theirs = pty.openpty()
    done = start("build", "-o", "-", cwd=project, stdout=theirs, stderr=subprocess.PIPE)
    _, said = done.communicate(timeout=60)
    os.close(theirs)
    os.close(ours)
    assert done.returncode == 2
    assert b"not written to a terminal" in said
    assert not (project / "mirror.lock.toml").exists()


def test_a_reader_that_goes_away_and_a_full_disk(project: Path) -> None:
    command = [sys.executable, "-m", "mirror", "build", "-o", "-"]
    piped = subprocess.Popen(
        ["sh", "-c", '{ "$@"; echo "exit $?" >&2; } | head -c 100 >/dev/null', "sh", *command],
        cwd=project,
        env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
        stderr=subprocess.PIPE,
    )
    said = piped.communicate(timeout=60)[1]
    assert b"ended before the bundle did" in said
    assert said.endswith(b"exit 8\n")
    with open("/dev/full", "wb") as full:
        done = start("build", "-o", "-", cwd=project, stdout=full.fileno(), stderr=subprocess.PIPE)
        assert b"No space left" in done.communicate(timeout=60)[1]
    assert done.returncode == 8


def test_increments_from_the_command_line(project: Path) -> None:
    full = mirror_json("build", cwd=project)
    assert full["base"] is None
    (project / "data" / "note").write_text("2", encoding="utf-8")
    done = mirror_json("build", "--since", full["bundle"], cwd=project)
    assert done["base"] == full["digest"]
    assert done["bundle"] == f"bundles/x-1-since-{full['digest'][:8]}.tar.gz"
    # The note, the list of hashes and the bill of materials.
    assert (done["files"], done["changed"]) == (3, True)
    assert done["bytes"] < 20_000
    again = mirror_json("build", "--since", full["bundle"], cwd=project)
    assert (again["digest"], again["changed"]) == (done["digest"], False)
    assert "2 of" not in mirror("inspect", project / done["bundle"], "--deep", cwd=project).stderr
    said = mirror("build", "--since", "mirror.yaml", cwd=project, code=2).stderr
    assert "no bundle, no lock and no inventory" in said
    assert "Traceback" not in mirror("build", "--since", "nowhere", cwd=project, code=2).stderr


def test_an_increment_unpacked_over_its_base_is_the_whole_tree(
    project: Path, tmp_path: Path
) -> None:
    full = mirror_json("build", cwd=project)
    (project / "data" / "note").write_text("2", encoding="utf-8")
    part = mirror_json("build", "--since", full["bundle"], cwd=project)
    for made in (full, part):
        subprocess.run(["tar", "-xzf", project / made["bundle"], "-C", tmp_path], check=True)
    subprocess.run(["sha256sum", "--quiet", "-c", "SHA256SUMS"], cwd=tmp_path, check=True)
    assert (tmp_path / "files" / "note").read_text(encoding="utf-8") == "2"


def test_a_dry_run_writes_nothing(project: Path) -> None:
    seen = mirror_json("build", "--dry-run", cwd=project)
    assert seen["lock"] == "missing"
    assert seen["kinds"]["files"]["missing"] == 0
    assert seen["kinds"]["tool"]["missing"] > 0
    assert sorted(p.name for p in project.iterdir()) == ["data", "mirror.yaml"]
    built = mirror_json("build", cwd=project)
    assert (seen["digest"], seen["bytes"]) == (built["digest"], built["bytes"])
    text = mirror("build", "--dry-run", "-o", "-", cwd=project).stdout
    assert "the pipe would be built" in text
    assert "is built already" in mirror("build", "--dry-run", cwd=project).stdout


class Huge(http.server.BaseHTTPRequestHandler):
    """A server with a file of an exabyte."""

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(2**52))
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        asked.append(self.path)

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""


asked: list[str] = []


@contextmanager
def serving() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Huge)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/huge"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_too_little_room_is_said_before_anything_is_fetched(project: Path) -> None:
    sha256 = hashlib.sha256(b"").hexdigest()
    with serving() as url:
        write(project, f"files: [{{url: '{url}', sha256: {sha256}, to: huge}}]\n")
        seen = json.loads(mirror("build", "--dry-run", "--json", cwd=project, code=8).stdout)
        assert seen["fits"] is False
        assert "NOT ENOUGH" in mirror("build", "--dry-run", cwd=project, code=8).stdout
        said = mirror("build", cwd=project, code=8).stderr
    assert "not enough room" in said
    assert "downloads and the bundle" in said
    assert not asked
    assert not (project / "bundles").exists()


def checkpoint(path: Path, seeds: dict[str, int]) -> bytes:
    """A real safetensors file of 4 MB, each tensor by its seed."""
    import torch
    from safetensors.torch import save_file

    def made(seed: int) -> torch.Tensor:
        return torch.randn(256, 1024, generator=torch.Generator().manual_seed(seed))

    save_file({name: made(seed) for name, seed in seeds.items()}, path)
    return path.read_bytes()


def test_a_retrained_checkpoint_is_shipped_in_part(project: Path, tmp_path: Path) -> None:
    """Its folder has the new one only: what is left of the old one is in its bundle."""
    path = project / "data" / "model.safetensors"
    seeds = {"body.0": 1, "body.1": 2, "body.2": 3, "head": 4}
    old = checkpoint(path, seeds)
    full = mirror_json("build", cwd=project)
    new = checkpoint(path, {**seeds, "head": 5})
    part = mirror_json("build", "--since", full["bundle"], cwd=project)
    assert part["bytes"] < 1_200_000
    again = mirror_json("build", "--since", full["bundle"], cwd=project)
    assert (again["digest"], again["changed"]) == (part["digest"], False)
    third = checkpoint(path, {**seeds, "head": 6})
    last = mirror_json("build", "--since", part["bundle"], cwd=project)
    assert last["bytes"] > len(third), "of the second no bundle has the whole"

    root, file = tmp_path / "root", "current/files/model.safetensors"
    for name in (full["bundle"], part["bundle"]):
        mirror("install", name, "--root", root, cwd=project)
    assert (root / file).read_bytes() == new
    mirror("rollback", "--root", root)
    assert (root / file).read_bytes() == old
    # In one go into an empty root; and without its base not at all.
    mirror("install", full["bundle"], part["bundle"], "--root", tmp_path / "b", cwd=project)
    assert (tmp_path / "b" / file).read_bytes() == new
    said = mirror("install", part["bundle"], "--root", tmp_path / "c", cwd=project, code=7).stderr
    assert "files/model.safetensors in its older version" in said
    assert full["digest"] in said
    assert not (tmp_path / "c").exists()
    mirror("install", last["bundle"], "--root", root, cwd=project)
    assert (root / file).read_bytes() == third
