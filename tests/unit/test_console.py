"""How far a long work is, on a terminal and in a log."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from mirror import console
from mirror.console import Console, fitted

CHECKOUT = Path(__file__).resolve().parents[2]
NAMES = ["org/a.safetensors", "org/b.json", "org/c.json"]

_WORK = """
import time
from mirror import console
console._REFRESH, console._DELAY = 0.05, 0.0
screen = console.Console()
names = ["org/a.safetensors", "org/b.json"]
with screen.bar("downloading 3 files", 1000, done=200, names=lambda: names) as advance:
    advance(400)
    time.sleep(0.5)
    screen.step("a step meanwhile")
    time.sleep(0.2)
"""


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (80, "org/a.safetensors, org/b.json, org/c.json"),
        (41, "org/a.safetensors, org/b.json, org/c.json"),
        (40, "org/a.safetensors, org/b.json and 1 more"),
        (30, "org/a.safetensors and 2 more"),
        (23, "…safetensors and 2 more"),
        (1, "…s and 2 more"),
    ],
)
def test_names_are_fitted(width: int, expected: str) -> None:
    assert fitted(NAMES, width) == expected


def test_no_names_and_one() -> None:
    assert fitted([], 80) == ""
    assert fitted(["abcdef"], 4) == "…def"


def test_a_log_gets_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now, lines, count = [100.0], list[str](), console._Count(100_000_000)
    monkeypatch.setattr("mirror.console.time.monotonic", lambda: now[0])
    report = console._Report("downloading 3 files", 10**9, "B", count, lines.append)
    for amount in (300_000_000, 0):
        count.advance(amount)
        now[0] += 30
        report.say()
    assert lines == [
        "  downloading 3 files: 400 MB of 1.00 GB, 10.0 MB/s, 1 min 00 s left",
        "  downloading 3 files: 400 MB of 1.00 GB, 0 B/s",
    ]
    report = console._Report("linking", 200, "packages", console._Count(0), lines.append)
    report._count.advance(50)
    now[0] += 30
    report.say()
    assert lines[2:] == ["  linking: 50 of 200 packages, 1 min 30 s left"]


@pytest.mark.parametrize(
    ("quiet", "verbose"), [(False, False), (True, False), (False, True), (True, True)]
)
def test_a_log_gets_no_progress_but_a_line_now_and_then_when_asked_for(
    quiet: bool,
    verbose: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(console, "_REPORT", 0.01)
    before, asked = threading.active_count(), verbose and not quiet
    with Console(quiet=quiet, verbose=verbose).bar("working", 10, "files", done=3) as advance:
        advance(2)
        assert (threading.active_count() > before) == asked
        said = ""
        while asked and "  working: 5 of 10 files" not in said:
            said += capsys.readouterr().err
    assert threading.active_count() == before
    assert asked or capsys.readouterr().err == ""


def test_short_work_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Console().bar("working", 10) as advance:
        advance(10)
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(os.name == "nt", reason="a terminal of POSIX")
def test_a_terminal_gets_a_bar_and_the_names_below_it_and_is_left_clean() -> None:
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 60, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", _WORK],
        stderr=theirs,
        env=os.environ | {"PYTHONPATH": str(CHECKOUT), "TERM": "xterm"},
    )
    os.close(theirs)
    said = b""
    try:
        while part := os.read(ours, 65536):
            said += part
    except OSError:
        pass  # how a terminal's end is told
    os.close(ours)
    assert process.wait(30) == 0
    text = said.decode()
    assert "downloading 3 files:" in text
    assert "60%" in text
    assert "    org/a.safetensors, org/b.json" in text
    assert screen(text) == ["· a step meanwhile  (TIME)"]


#: What a use case does, and then the result that it was for.
_SAYS = """
import sys
from mirror.console import Console
console = Console(as_json="--json" in sys.argv)
for number in range(1000):
    console.step(f"step {number} " + "." * 100)
open(sys.argv[1], "w").close()
console.result([f"line {number} " + "." * 100 for number in range(1000)], {"a": 1})
"""


@pytest.mark.parametrize("ends", ["", "2>&1", ">&-", "2>&-", ">&- 2>&-"])
def test_the_work_goes_on_when_nobody_reads_what_it_says(ends: str, tmp_path: Path) -> None:
    """The reader of a pipe has left, or a stream is closed: the exit code is the work's own."""
    python, done = shlex.quote(sys.executable), tmp_path / "done"
    script = f"{python} -c {shlex.quote(_SAYS)} {done} {ends} | true; exit ${{PIPESTATUS[0]}}"
    process = subprocess.run(
        ["bash", "-c", script],
        env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (process.returncode, "Error" in process.stderr) == (0, False), process.stderr
    assert done.is_file()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a disk that is always full")
def test_a_full_disk_ends_a_result_and_not_a_log(tmp_path: Path) -> None:
    for log, code in ((True, 0), (False, 1)):
        with open("/dev/full", "w", encoding="utf-8") as full:
            process = subprocess.run(
                [sys.executable, "-c", _SAYS, tmp_path / "done"],
                env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
                stdout=subprocess.DEVNULL if log else full,
                stderr=full if log else subprocess.PIPE,
                timeout=300,
                check=False,
            )
        assert bool(process.returncode) == bool(code)


def screen(text: str) -> list[str]:
    """The lines that a terminal shows in the end."""
    lines, row, column = [""], 0, 0
    text = re.sub(r"\x1b\[[0-9;]*m", "", re.sub(r"\(\d.*? s\)", "(TIME)", text))
    for token in re.findall(r"\x1b\[A|\r|\n|.", text):
        if token == "\x1b[A":
            row -= 1
        elif token == "\r":
            column = 0
        elif token == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        else:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + token + line[column + 1 :]
            column += 1
    return [line.rstrip() for line in lines if line.strip()]
