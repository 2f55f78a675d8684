"""Detached runs by their records: which is which, which is alive, and what became of the others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from mirror import detached
from mirror.errors import MachineError, UsageError


@pytest.fixture
def sleeper() -> Any:
    """A living process, which is somebody's detached run."""
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=-1) as it:
        yield it
        assert it.stdin is not None
        it.stdin.close()


def record(place: Path, name: str, pid: int, **changed: object) -> detached.Run:
    """A run's record as its process writes it, with something changed."""
    folder = place / name
    folder.mkdir(parents=True)
    host, boot, pids = detached._place()
    table = {
        "argv": ["run", "--detach", "--", name],
        "pid": pid,
        "began": detached._began(pid),
        "host": host,
        "boot": boot,
        "pids": pids,
        "started": f"2026-12-01T05:36:{len(name):02d}+00:00",
    }
    (folder / "detached.json").write_text(json.dumps(table | changed), encoding="utf-8")
    (folder / "output.log").write_text(f"this is {name}\n", encoding="utf-8")
    found = detached.read(folder)
    assert found
    return found


def end(run: detached.Run, code: int) -> None:
    outcome = {"code": code, "ended": "2026-12-01T06:00:00+00:00"}
    (run.folder / "ended.json").write_text(json.dumps(outcome), encoding="utf-8")


def follow(run: detached.Run) -> tuple[int, bytes, list[str]]:
    data: list[bytes] = []
    lines: list[str] = []
    code = detached.attach(run, data.append, lines.append)
    return code, b"".join(data), lines


def test_a_process_id_that_is_used_again_is_not_taken_for_the_run(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    assert record(tmp_path, "run-1", sleeper.pid).state == "running"
    began = detached._began(sleeper.pid)
    assert began
    assert record(tmp_path, "run-2", sleeper.pid, began=began - 1).state == "lost"
    assert record(tmp_path, "run-3", 2**22 + 1, began=began).state == "lost"  # above any pid


def test_a_restarted_machine_has_lost_its_runs(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    run = record(tmp_path, "run-1", sleeper.pid, boot="another-boot", pids="pid:[7]")
    assert run.state == "lost"
    with pytest.raises(MachineError, match="gone and left no exit code") as caught:
        follow(run)
    assert str(run.log) in str(caught.value.hint)


def test_another_machine_that_shares_the_folder_does_not_judge(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    run = record(tmp_path, "run-1", sleeper.pid, host="node7")
    assert run.state == "elsewhere"
    assert record(tmp_path, "run-2", sleeper.pid, pids="pid:[7]").state == "elsewhere"
    threading.Timer(0.5, end, (run, 4)).start()
    code, said, lines = follow(run)
    assert (code, said) == (4, b"this is run-1\n")
    assert "started on node7" in lines[0]


def test_a_run_that_ended_says_how(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    run = record(tmp_path, "run-1", sleeper.pid)
    end(run, 9)
    code, said, lines = follow(run)
    assert (code, said) == (9, b"this is run-1\n")
    assert lines == ["run-1 ended with exit code 9, at 2026-12-01T06:00:00+00:00"]
    assert run.to_json()["exit_code"] == 9


def test_what_was_said_long_ago_is_left_in_the_log(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    run = record(tmp_path, "run-1", sleeper.pid)
    run.log.write_text("".join(f"line {n}\n" for n in range(100_000)), encoding="utf-8")
    end(run, 0)
    _, said, lines = follow(run)
    shown = said.decode().splitlines()
    assert 1000 < len(shown) < 10_000
    assert shown == [f"line {n}" for n in range(100_000 - len(shown), 100_000)]
    assert f"before this are in {run.log}" in lines[0]


def test_the_one_that_runs_is_meant_else_the_last(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    places = [tmp_path / "one", tmp_path / "two"]
    with pytest.raises(MachineError, match="nothing was started") as none:
        detached.choose(places, "run", "")
    assert len(none.value.problems) == 2
    first = record(places[1], "run-1", sleeper.pid)
    end(record(places[0], "run-01", sleeper.pid), 0)
    record(places[0], "verify-000001", sleeper.pid)  # of another kind
    assert detached.choose(places, "run", "") == first
    end(first, 0)
    assert detached.choose(places, "run", "").name == "run-01"
    assert detached.choose(places, "run", "run-1") == first
    assert detached.choose([], "run", str(first.folder)) == first


def test_two_that_run_are_told_apart(tmp_path: Path, sleeper: subprocess.Popen[bytes]) -> None:
    runs = [record(tmp_path, name, sleeper.pid) for name in ("run-1", "run-02")]
    with pytest.raises(UsageError, match="2 are running: name one") as caught:
        detached.choose([tmp_path], "run", "")
    assert caught.value.problems == tuple(map(str, runs))
    assert caught.value.hint == "mirror run --attach run-02"
    assert detached.choose([tmp_path], "run", "run-1") == runs[0]
    with pytest.raises(UsageError, match=r"no detached run x\\x1b") as caught:
        detached.choose([tmp_path], "run", "x\x1b")
    assert caught.value.problems == tuple(map(str, runs))


def test_a_folder_in_use_is_not_used_twice(
    tmp_path: Path, sleeper: subprocess.Popen[bytes]
) -> None:
    run = record(tmp_path, "run-1", sleeper.pid)
    with pytest.raises(MachineError, match=f"run-1 is at work in .* .process {sleeper.pid}"):
        detached.detach(run.folder, ["run"], lambda: None)


@pytest.mark.parametrize("text", ["", "[]", "{", '{"argv": 1}', '{"argv": [], "pid": 1}'])
def test_damaged_records_are_no_runs(tmp_path: Path, text: str) -> None:
    (tmp_path / "run-1").mkdir()
    (tmp_path / "run-1" / "detached.json").write_text(text, encoding="utf-8")
    assert detached.find([tmp_path], "run") == []


DETACHES = """
import os, sys, time
from pathlib import Path
from mirror import detached
folder = Path(sys.argv[1])
def work():
    assert detached.here() == folder
    print("out"); print("err", file=sys.stderr)
    print("session", os.getsid(0) == os.getpid(), "open", sorted(os.listdir("/proc/self/fd"))[:-1])
    print("read", repr(sys.stdin.read()))
    exec(sys.argv[2])
os.dup2(1, 9)  # something that whoever started it has open
run = detached.detach(folder, ["run", "--detach"], work)
assert detached.here() is None
print(run.pid, run.state, os.getsid(run.pid) == run.pid)
"""


@pytest.mark.parametrize(
    ("last", "code"),
    [
        ("pass", 0),
        ("sys.exit(7)", 7),
        ("sys.exit('why')", 1),
        ("sys.exit()", 0),
        ("1 / 0", 1),
    ],
)
def test_work_is_done_in_a_session_of_its_own(tmp_path: Path, last: str, code: int) -> None:
    line = [sys.executable, "-c", DETACHES, str(tmp_path), last]
    # It ends although the work still has no reader: nothing of ours is kept open.
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=True)
    pid, state, leads = done.stdout.split()
    assert state in ("running", "ended")
    assert leads == "True" or state == "ended"
    run = detached.read(tmp_path)
    assert run
    assert run.pid == int(pid)
    assert run.argv == ("run", "--detach")
    got, said, _ = follow(run)
    assert got == code
    said_lines = said.decode().splitlines()
    assert said_lines[:4] == ["out", "err", "session True open ['0', '1', '2']", "read ''"]
    assert ("ZeroDivisionError" in said.decode()) == (last == "1 / 0")


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="cannot be written"):
        detached.detach(tmp_path / "absent", ["run"], lambda: None)
    assert not os.listdir(tmp_path)
