"""mirror run on real processes: ranks that meet, fail, are killed, hang, and are interrupted."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from mirror.store import environment
from mirror.store.generations import Root
from tests.e2e.conftest import CHECKOUT
from tests.environments import root_with_environment
from tests.terminals import PATIENCE, Terminal

#: Nothing here is for a GPU, also on a machine with some.
ENVIRONMENT = os.environ | {"PYTHONPATH": str(CHECKOUT), "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Root:
    return root_with_environment(tmp_path_factory.mktemp("run"))


def line(root: Root, *words: object, processes: int | None = 2) -> list[str]:
    count = ["--processes", processes] if processes else []
    command = [sys.executable, "-m", "mirror", "run", "--root", root.path, *count, "--", *words]
    return list(map(str, command))


def run(
    root: Root, *words: object, cwd: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        line(root, *words),
        cwd=cwd,
        env=ENVIRONMENT | (environment or {}),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert "mirror/cli/" not in done.stderr  # no traceback of mirror's own
    return done


def folder_in(said: str) -> Path:
    """The folder of the logs, as it is told at the start."""
    found = re.search(r"; logs in (\S+)", said)
    assert found, said
    return Path(found[1])


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


# -- ranks that meet ----------------------------------------------------------------------------

MEETS = """
import json, os, sys
import torch, torch.distributed as dist
from accelerate import Accelerator
from project import NAME
accelerator = Accelerator()
total = torch.tensor(float(accelerator.process_index + 1))
dist.all_reduce(total)
print(json.dumps({
    "rank": accelerator.process_index, "world": accelerator.num_processes,
    "backend": dist.get_backend(), "precision": accelerator.mixed_precision,
    "total": total.item(), "name": NAME, "cwd": os.getcwd(), "arguments": sys.argv[1:],
    "python": sys.executable, "environment": dict(os.environ),
}))
print("said to stderr", file=sys.stderr)
dist.destroy_process_group()
"""
FOREIGN = "compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\nnum_processes: 7\nfoo: bar\n"


def test_two_ranks_meet_whatever_the_shell_says(root: Root, tmp_path: Path) -> None:
    write(tmp_path, "project/__init__.py", "NAME = 'companionguard'\n")
    script = write(tmp_path, "scripts/train.py", MEETS)
    write(tmp_path, "hf/accelerate/default_config.yaml", FOREIGN)
    settings = {"env": {"NCCL_P2P_DISABLE": "1"}, "world_size": 2, "backend": "gloo"}
    environment.write_launch(root.current(), root.path, settings)  # type: ignore[arg-type]
    others = {
        "HF_HOME": str(tmp_path / "hf"),
        "PYTHON_EXEC": "/bin/false",
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "PET_NNODES": "2",
        "MASTER_ADDR": "192.0.2.1",
        "MASTER_PORT": "29500",
    } | dict.fromkeys(("RANK", "LOCAL_RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"), "9")
    with socket.socket() as busy:
        with suppress(OSError):  # then somebody else has it, which is as good
            busy.bind(("127.0.0.1", 29500))
            busy.listen()
        done = run(root, script, "--lr", "1e-3", "--", "-x", cwd=tmp_path, environment=others)
    assert done.returncode == 0, done.stderr
    assert "train.py: 2 processes on the CPU; logs in " in done.stderr
    lines = dict(said.split(": ", 1) for said in done.stdout.splitlines())
    assert sorted(lines) == ["[rank0]", "[rank1]"]
    seen: list[dict[str, Any]] = [json.loads(lines[mark]) for mark in sorted(lines)]
    assert [one["rank"] for one in seen] == [0, 1]
    for one in seen:
        assert (one["world"], one["backend"], one["total"]) == (2, "gloo", 3.0)
        assert (one["name"], one["cwd"]) == ("companionguard", str(tmp_path))
        assert one["arguments"] == ["--lr", "1e-3", "--", "-x"]
        assert one["python"] == str(root.current().python)
        assert one["precision"] == "bf16"
        table = one["environment"]
        assert table["NCCL_P2P_DISABLE"] == "1"
        assert table["HF_HUB_OFFLINE"] == "1"
        assert table["MIRROR_MODELS"] == str(root.current().models)
        assert table["MASTER_ADDR"] == "127.0.0.1"
        assert "SIGHUP" not in table["TORCHELASTIC_SIGNALS_TO_HANDLE"]
    assert {x for x in done.stderr.splitlines() if "stderr" in x} == {
        "[rank0]: said to stderr",
        "[rank1]: said to stderr",
    }
    logs = folder_in(done.stderr)
    assert logs.parent == root.logs
    assert json.loads((logs / "rank-1.stdout.log").read_text(encoding="utf-8")) == seen[1]
    assert (logs / "rank-0.stderr.log").read_text(encoding="utf-8") == "said to stderr\n"


# -- ranks that fail ----------------------------------------------------------------------------

RAISES = """
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
accelerator = Accelerator()
assert accelerator.mixed_precision == "no"
loader = DataLoader(torch.zeros(4))
if accelerator.process_index == 1:
    loader.sampler.set_epoch(1)
accelerator.wait_for_everyone()
"""


def test_the_rank_that_raised_is_named_and_so_is_what_it_died_of(
    root: Root, tmp_path: Path
) -> None:
    done = run(root, write(tmp_path, "train.py", RAISES), cwd=tmp_path)
    assert done.returncode == 1
    report = done.stderr.partition("\nerror: ")[2]
    assert re.match(r"\S*train.py, rank 1 of 2: .*; its last lines:\n", report), done.stderr
    assert "AttributeError: 'SequentialSampler' object has no attribute 'set_epoch'" in report
    assert "set_epoch was called on a sampler that has no epochs" in report
    assert "Another rank has ended" not in report
    assert "ChildFailedError" not in done.stderr  # torch's own, which is in the log
    logs = folder_in(done.stderr)
    assert report.splitlines()[-1] == f"Every rank's output: {logs}"
    assert "ChildFailedError" in (logs / "launch.log").read_text(encoding="utf-8")


ENDS = """
import os, signal, sys, time
if os.environ["RANK"] == "1":
    print("these are my last words")
    exec(sys.argv[1])
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("os._exit(3)", 3, "rank 1 of 2: it ended with exit code 3"),
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            137,
            "rank 1 of 2: it was killed by signal 9 (SIGKILL)",
        ),
    ],
)
def test_the_exit_code_is_that_of_the_rank_that_failed(
    root: Root, tmp_path: Path, end: str, code: int, said: str
) -> None:
    done = run(root, write(tmp_path, "train.py", ENDS), end, cwd=tmp_path)
    assert done.returncode == code
    assert said in done.stderr
    report = done.stderr.partition("\nerror: ")[2]
    assert "these are my last words" in report
    assert ("A process was killed (SIGKILL)" in report) == (code == 137)


# -- signals ------------------------------------------------------------------------------------

WAITS = """
import os, signal, sys, time
def told(number, frame):
    print("told", number)
signal.signal(signal.SIGUSR1, told)
if "stubborn" in sys.argv:
    signal.signal(signal.SIGINT, told)
    signal.signal(signal.SIGTERM, told)
print("process", os.getpid(), "waits")
while True:
    time.sleep(1)
"""


def waiting(root: Root, folder: Path, processes: int, *words: str) -> Terminal:
    """A terminal in which that many ranks wait."""
    script = write(folder, "train.py", WAITS)
    command = line(root, script, *words, processes=processes)
    # Torch itself would wait that long for who does not listen.
    terminal = Terminal(command, folder, ENVIRONMENT | {"PET_SHUTDOWN_TIMEOUT": str(4 * PATIENCE)})
    terminal.wait_for("waits", processes)
    return terminal


def nobody_left(terminal: Terminal) -> None:
    """Wait until no rank is there any more."""
    pids = re.findall(r"process (\d+) waits", terminal.screen)
    assert pids
    deadline = time.monotonic() + PATIENCE
    while left := [pid for pid in pids if Path(f"/proc/{pid}").exists()]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


@pytest.mark.parametrize("processes", [1, 2])
def test_ctrl_c_lets_the_ranks_finish(root: Root, tmp_path: Path, processes: int) -> None:
    with waiting(root, tmp_path, processes) as terminal:
        terminal.type(b"\x03")
        assert terminal.ended() == 128 + signal.SIGINT
        # Each said so itself: it was told, not killed.
        assert terminal.screen.count("KeyboardInterrupt\r\n") == processes
        nobody_left(terminal)


@pytest.mark.parametrize("processes", [1, 2])
def test_ctrl_c_again_ends_who_does_not_listen(root: Root, tmp_path: Path, processes: int) -> None:
    with waiting(root, tmp_path, processes, "stubborn") as terminal:
        terminal.type(b"\x03")
        terminal.wait_for("SIGINT: the ranks were asked to end")
        terminal.wait_for("told 2", processes)
        time.sleep(1)
        terminal.type(b"\x03")
        assert terminal.ended() == 128 + signal.SIGINT
        assert terminal.screen.count("told 2") == processes  # once each, by mirror alone
        nobody_left(terminal)


def test_a_schedulers_notice_reaches_every_rank(root: Root, tmp_path: Path) -> None:
    with waiting(root, tmp_path, 2) as terminal:
        terminal.process.send_signal(signal.SIGUSR1)
        terminal.wait_for(f"told {signal.SIGUSR1:d}", 2)
        terminal.process.send_signal(signal.SIGTERM)
        assert terminal.ended() == 128 + signal.SIGTERM
        nobody_left(terminal)


def test_a_lost_terminal_ends_everything(root: Root, tmp_path: Path) -> None:
    with waiting(root, tmp_path, 2) as terminal:
        terminal.close()
        assert terminal.process.wait(PATIENCE) == 128 + signal.SIGHUP
        nobody_left(terminal)


@pytest.mark.parametrize("processes", [1, 2])
def test_ranks_do_not_outlive_a_mirror_that_is_killed(
    root: Root, tmp_path: Path, processes: int
) -> None:
    with waiting(root, tmp_path, processes) as terminal:
        terminal.process.kill()
        nobody_left(terminal)
