"""--detach and --attach: work that survives its terminal, behind a pty and behind a real sshd."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from mirror.core.index import Index
from mirror.core.progress import Quiet
from mirror.store.generations import Root
from mirror.verify.report import document
from tests import sshd
from tests.e2e.conftest import CHECKOUT, mirror, mirror_json
from tests.environments import root_with_environment
from tests.terminals import PATIENCE, Terminal

MIRROR = [sys.executable, "-m", "mirror"]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(CHECKOUT), "CUDA_VISIBLE_DEVICES": ""}
#: Says that it lives until it is told to end, by a file.
WORK = 'echo begun; while [ ! -e "$0" ]; do sleep 0.1; done; echo done; exit 5'


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """A generation of nothing."""
    root = Root(tmp_path / "root")
    root.prepare()
    generation = root.begin()
    root.finish(generation, Index("n", "1", "0.1.0", "0" * 64, None, ()))
    root.commit(generation)
    return root


@pytest.fixture
def go(tmp_path: Path) -> Iterator[Path]:
    """The file whose presence ends WORK; it is made at the latest when the test ends."""
    yield tmp_path / "go"
    (tmp_path / "go").touch()


def words(root: Root, *more: object) -> list[str]:
    return [*MIRROR, "run", "--root", str(root.path), *map(str, more)]


def detach(root: Root, go: Path) -> str:
    """Start WORK; its name."""
    said = mirror("run", "--root", root.path, "--detach", "--", "sh", "-c", WORK, go).stdout
    return said.split()[0]


def pid_in(said: str) -> int:
    found = re.search(r"end it: +kill (\d+)", said)
    assert found, said
    return int(found[1])


def test_a_terminal_that_is_closed_does_not_end_it(root: Root, go: Path) -> None:
    shell = ["sh", "-c", '"$@"; echo told; exec sleep 600', "sh"]
    with Terminal([*shell, *words(root, "--detach", "--", "sh", "-c", WORK, go)]) as terminal:
        terminal.wait_for("told")
        pid = pid_in(terminal.screen)
        assert "follow it: mirror run --attach /" in terminal.screen
        terminal.close()
        assert terminal.process.wait(PATIENCE) == -signal.SIGHUP  # the shell is gone
    os.kill(pid, signal.SIGHUP)  # and what a system's clean-up would send
    attached = [*words(root, "--attach")]
    with subprocess.Popen(attached, env=ENVIRONMENT, stdout=subprocess.PIPE) as following:
        assert following.stdout
        assert following.stdout.readline() == b"begun\n"
        go.touch()
        assert following.stdout.read() == b"done\n"
        assert following.wait(PATIENCE) == 5


def test_nothing_running_shows_how_the_last_one_ended(root: Root, go: Path) -> None:
    assert "nothing was started" in mirror("run", "--root", root.path, "--attach", code=8).stderr
    name = detach(root, go)
    go.touch()
    mirror("run", "--root", root.path, "--attach", code=5)
    done = mirror("run", "--root", root.path, "--attach", code=5)
    assert f"nothing is running; the last was {name} (mirror run " in done.stderr
    assert f"{name} ended with exit code 5" in done.stderr
    assert done.stdout == "begun\ndone\n"


def test_ctrl_c_leaves_it_running(root: Root, go: Path) -> None:
    name = detach(root, go)
    with Terminal(words(root, "--attach"), environment=ENVIRONMENT) as terminal:
        terminal.wait_for("begun")
        terminal.type(b"\x03")
        assert terminal.ended() == 130
    assert f"{name} goes on; mirror run --attach follows it again" in terminal.screen
    go.touch()
    assert mirror("run", "--root", root.path, "--attach", code=5).stdout == "begun\ndone\n"


def test_a_reader_that_leaves_leaves_it_running(root: Root, go: Path) -> None:
    detach(root, go)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words(root, "--attach"), env=ENVIRONMENT, **pipes) as following:  # type: ignore[call-overload]
        assert following.stdout.readline() == b"begun\n"
        following.stdout.close()
        go.touch()
        said = following.stderr.read().decode()
        assert following.wait(PATIENCE) == 130
    assert "goes on" in said
    assert "Exception" not in said


def test_two_at_once_are_told_apart(root: Root, go: Path, tmp_path: Path) -> None:
    first, second = detach(root, go), detach(root, tmp_path / "never")
    said = mirror("run", "--root", root.path, "--attach", code=2).stderr
    assert "2 are running: name one" in said
    assert first in said
    go.touch()
    done = mirror("run", "--root", root.path, "--attach", first, code=5)
    assert f"following {first}" in done.stderr or f"{first} ended" in done.stderr
    following = json.loads((root.logs / second / "detached.json").read_bytes())
    os.kill(following["pid"], signal.SIGTERM)
    mirror("run", "--root", root.path, "--attach", second, code=128 + signal.SIGTERM)


def test_what_can_be_told_at_once_is_not_left_to_the_log(root: Root, tmp_path: Path) -> None:
    detached = ("run", "--root", root.path, "--detach")
    assert "neither in the environment" in mirror(*detached, "--", "absent", code=2).stderr
    assert "no command was given" in mirror(*detached, code=2).stderr
    assert "takes no command" in mirror("run", "--attach", "--", "true", code=2).stderr
    assert not list(root.logs.iterdir())
    mirror(*detached, "--log", tmp_path / "own", "--", "true")
    mirror("run", "--attach", tmp_path / "own")
    assert "is not empty" in mirror(*detached, "--log", tmp_path / "own", "true", code=2).stderr


def test_a_run_that_was_killed_is_not_waited_for(root: Root, go: Path) -> None:
    name = detach(root, go)
    os.kill(json.loads((root.logs / name / "detached.json").read_bytes())["pid"], signal.SIGKILL)
    said = mirror("run", "--root", root.path, "--attach", name, code=8).stderr
    assert f"{name} is gone and left no exit code" in said
    assert "begun" in (root.logs / name / "output.log").read_text(encoding="utf-8")


ONE_ENDS = """
import os, time
if os.environ["RANK"] == "1":
    print("this is rank", 1)
    os._exit(3)
time.sleep(600)
"""


def test_a_script_keeps_its_logs_beside_what_it_says(tmp_path: Path) -> None:
    root = root_with_environment(tmp_path / "root")
    script = tmp_path / "train.py"
    script.write_text(ONE_ENDS, encoding="utf-8")
    detached = ("run", "--root", root.path, "--processes", "2", "--detach", "--", script)
    name = mirror(*detached).stdout.split()[0]
    done = mirror("run", "--root", root.path, "--attach", code=3)
    assert "[rank1]: this is rank 1" in done.stdout
    assert "train.py, rank 1 of 2: it ended with exit code 3" in done.stdout
    folder = root.logs / name
    assert {path.name for path in folder.iterdir()} >= {
        *("detached.json", "ended.json", "output.log", "launch.log"),
        *("rank-0.stdout.log", "rank-1.stderr.log"),
    }
    assert list(root.logs.iterdir()) == [folder]


def test_verify_goes_on_alone_and_leaves_its_report(root: Root, tmp_path: Path) -> None:
    from mirror.verify import verify

    before = verify(root, gpus=None, report_folder=tmp_path / "before", progress=Quiet())
    started = mirror_json("verify", "--root", root.path, "--detach")
    assert started["name"].startswith("verify-000001-")
    done = mirror("verify", "--root", root.path, "--attach", "--json")
    ended = json.loads(done.stdout)
    assert ended["exit_code"] == 0
    assert ended["state"] == "ended"
    assert before.headline in done.stderr  # what it said goes to stderr beside a document
    report = json.loads((Path(ended["folder"]) / "report.json").read_bytes())
    assert report["headline"] == document(before)["headline"]
    assert ended["folder"] == started["folder"] == str(root.logs / started["name"])
    own = tmp_path / "own"
    mirror("verify", "--root", root.path, "--detach", "--report", own)
    mirror("verify", "--attach", own)
    assert (own / "report.html").is_file()
    mirror("verify", "--root", root.path, "--detach", "--report", own, "--gpus", "1")
    mirror("verify", "--attach", own, code=9)


# -- sshd ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ssh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    with sshd.serving(tmp_path_factory.mktemp("ssh")) as start:
        yield start


def remote(root: Root, *more: object) -> str:
    """What a person would type behind `ssh SERVER`."""
    return shlex.join(["env", f"PYTHONPATH={CHECKOUT}", *words(root, *more)])


def test_a_connection_that_is_cut_does_not_end_it(root: Root, go: Path, ssh: list[str]) -> None:
    typed = f"{remote(root, '--detach', '--', 'sh', '-c', WORK, go)}"
    typed += "; echo the shell is $$ itself; exec sleep 600"
    with Terminal([*ssh[:1], "-tt", *ssh[1:], typed]) as terminal:
        terminal.wait_for(" itself")
        shell = terminal.screen.split("the shell is ")[1].split()[0]
        terminal.process.kill()  # no goodbye, as when the network goes
    deadline = time.monotonic() + PATIENCE
    while Path(f"/proc/{shell}").exists():  # until sshd has noticed, and hung up on everybody
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert Path(f"/proc/{pid_in(terminal.screen)}").exists()
    with Terminal([*ssh[:1], "-tt", *ssh[1:], remote(root, "--attach")]) as terminal:
        terminal.wait_for("begun")
        go.touch()
        assert terminal.ended() == 5
        assert "done" in terminal.screen


def test_ssh_does_not_wait_for_what_is_detached(root: Root, go: Path, ssh: list[str]) -> None:
    """It stays for as long as anybody has its pipes open."""
    command = remote(root, "--detach", "--", "sh", "-c", WORK, go)
    done = subprocess.run([*ssh, command], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert Path(f"/proc/{pid_in(done.stdout)}").exists()
