"""From the builder to the server and back by hand: increments, volumes, photos of a screen."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from mirror.cli import cli
from tests.e2e.conftest import CHECKOUT, mirror, mirror_json

#: Sends itself Ctrl-C when it has moved so many bytes of a bundle.
INTERRUPTED = """
import os, signal, sys
from mirror.bundle import flow
name, left = sys.argv.pop(1), 3_000_000
real = getattr(flow, name)
def moved(file, views):
    global left
    done = real(file, views)
    left -= sum(map(len, views))
    if left < 0:
        left = 2**60
        os.kill(os.getpid(), signal.SIGINT)
    return done
setattr(flow, name, moved)
from mirror.cli import main
main()
"""


@dataclass(frozen=True)
class Carried:
    """A project, its first bundle, and a root that has it."""

    folder: Path
    bundle: Path
    root: Path

    def note(self, text: str) -> None:
        (self.folder / "data" / "note").write_text(text, encoding="utf-8")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, demo_cache: Path) -> Carried:
    folder = tmp_path_factory.mktemp("carried")
    (folder / "data").mkdir()
    (folder / "data" / "large").write_bytes(os.urandom(6_000_000))
    (folder / "mirror.yaml").write_text(
        "name: carried\nversion: 1\nfiles: [{path: data/, to: ./}]\n", encoding="utf-8"
    )
    made = Carried(folder, folder / "bundles" / "carried-1.tar.gz", folder / "root")
    made.note("1")
    mirror("build", cwd=folder)
    mirror("install", made.bundle, "--root", made.root)
    return made


@pytest.fixture
def carried(first: Carried, tmp_path: Path) -> Carried:
    """A copy of its own."""
    shutil.copytree(first.folder, tmp_path / "c", symlinks=True)
    return Carried(tmp_path / "c", tmp_path / "c" / "bundles" / first.bundle.name, first.root)


def test_from_a_server_of_which_only_a_photo_may_leave(carried: Carried) -> None:
    shown = mirror("probe", "--root", carried.root, "--summary").stdout
    assert len(shown) < 2000
    carried.note("2")
    read = "$ mirror probe --summary\n" + textwrap.fill(shown.replace("\n", ""), 40).lower()
    photo = carried.folder / "photo.txt"
    photo.write_text(read.replace("o", "0"), encoding="utf-8")
    made = mirror_json("build", "--since", photo, cwd=carried.folder)
    assert made["files"] == 3, "the note, the list of hashes, the bill of materials"
    assert mirror("install", made["bundle"], "--root", carried.root, cwd=carried.folder)
    mirror("rollback", "--root", carried.root)

    lines = shown.splitlines()
    lines[2] = lines[2][:9] + lines[2][10:]
    photo.write_text("\n".join(lines), encoding="utf-8")
    said = mirror("build", "--since", photo, cwd=carried.folder, code=2).stderr
    assert "photo.txt is a summary that was not copied as it stood" in said
    assert f"\n  line 3 is misread: {lines[2]}\n" in said
    photo.write_text("\n".join(shown.splitlines()[:-1]), encoding="utf-8")
    said = mirror("build", "--since", photo, cwd=carried.folder, code=2).stderr
    assert f"line {len(lines)} and those after it are not there" in said


def at_terminal(rows: int, columns: int, arguments: Sequence[object], *, code: int = 0) -> str:
    """What a terminal of this size shows, at which a person presses a key now and then."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "mirror", *map(str, arguments)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
        | {"PYTHONPATH": str(CHECKOUT), "TERM": "xterm"},
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # how a terminal's end is told
        while process.poll() is None or select.select([ours], [], [], 0)[0]:
            if select.select([ours], [], [], 0.5)[0]:
                shown += os.read(ours, 65_536)
            else:
                os.write(ours, b" ")
    os.close(ours)
    assert process.wait(60) == code, shown.decode()
    return shown.decode()


def test_the_summary_as_codes_that_a_camera_reads(carried: Carried) -> None:
    probe = ("probe", "--root", carried.root, "--qr")
    text = at_terminal(30, 80, probe)
    assert "\x1b[37;40m" in text
    count = int(re.findall(r"code 1 of (\d)", text)[0])
    assert count > 1
    assert text.count("press a key for the next one") == count - 1
    assert f"code {count} of {count}" in text
    assert "\x1b" not in mirror(*probe).stdout, "in a pipe blocks are all there is"
    assert mirror_json(*probe)["summary"][0].startswith("MIRROR")
    assert "too small for QR codes" in at_terminal(9, 132, probe, code=8)
    assert "--qr is for a screen" in mirror(*probe, "-o", "x", code=2).stderr


def test_where_an_inventory_may_be_written(carried: Carried) -> None:
    probe = ("probe", "--root", carried.root, "-o")
    said = mirror(*probe, carried.folder, code=8).stderr
    assert f"error: {carried.folder} cannot be written: Is a directory" in said
    place = carried.folder / "not" / "there"
    assert f"error: {place} cannot be written: No such" in mirror(*probe, place, code=8).stderr
    done = mirror(*probe, "/dev/stdout")
    assert '"held": [' in done.stdout
    assert Path("/dev/stdout").is_symlink(), "what is no file is written to, not replaced"
    done = mirror("probe", "--root", place, "-o", carried.folder / "i.json")
    assert f"{place} is not there" in done.stderr
    assert "no root" in done.stdout


def test_what_would_not_fit_is_refused_before_anything_is_written(carried: Carried) -> None:
    carried.note("2")
    part = mirror_json("build", "--since", carried.bundle, cwd=carried.folder)["bundle"]
    second = carried.folder / part
    empty = carried.folder / "empty"
    said = mirror("install", second, "--root", empty, code=7).stderr
    assert "SHA256SUMS" not in said
    assert "files/large (6.00 MB)" in said
    assert "nothing is installed here" in said
    wrong = mirror("install", second, carried.bundle, "--root", empty, code=2).stderr
    assert f"{second} builds on {carried.bundle}, after it" in wrong
    assert not empty.exists()
    seen = mirror("inspect", second).stdout
    assert re.search(r"ships +3 files, .*\n +needs +\d+ files, .* in the root's store", seen)
    mirror("install", carried.bundle, second, "--root", empty)
    again = mirror_json("install", second, "--root", empty)
    assert (again["changed"], again["generation"]) == (False, 1)
    said = mirror("build", "--since", carried.folder / "bundles", cwd=carried.folder, code=2).stderr
    assert "Is a directory" in said


def test_volumes_that_were_lost_mixed_up_and_rebuilt(carried: Carried, tmp_path: Path) -> None:
    size = ("--volume-size", "1M", "--recovery", "40%")
    built = mirror("build", *size, cwd=carried.folder)
    folder, root, new = carried.folder / "bundles", tmp_path / "root", tmp_path / "new" / "folder"
    volumes = sorted(folder.glob("*.tar.gz.0*"))
    volumes[0].rename(folder / "lost its name")
    volumes[1].unlink()
    done = mirror("inspect", "--volumes", *sorted(folder.iterdir()), code=5)
    assert f"rename   {folder / 'lost its name'} to {volumes[0].name}" in done.stdout
    assert f"send again: {volumes[1].name}\n" in done.stdout
    said = mirror("inspect", folder, code=2).stderr
    assert f"mirror inspect --volumes {folder}" in said
    repaired = mirror("inspect", "--volumes", folder, "--repair", new)
    found = [path.name for path in sorted(new.iterdir())]
    assert found == [volume.name for volume in volumes[:2]]
    installed = mirror("install", *folder.glob("*.tar.gz.*"), *new.iterdir(), "--root", root)
    for step in (built, done, repaired, installed):
        assert "\r" not in step.stderr, "no bars where nobody watches"
        assert "%" not in step.stderr
    for volume in volumes[2:]:
        volume.unlink()
    said = mirror("inspect", "--volumes", folder, "--repair", tmp_path / "more", code=5).stderr
    assert "more are needed, of volumes or of recovery data" in said
    assert "\x1b" not in said


@pytest.mark.parametrize(
    ("function", "command"),
    [
        ("write_from", "build -o new/b.tar.gz"),
        ("write_from", "build --volume-size 1M -o new/b.tar.gz"),
        ("read_into", "inspect --deep bundles/carried-1.tar.gz"),
    ],
)
def test_an_interrupt_leaves_nothing_half_made(
    carried: Carried, function: str, command: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, function, *command.split()],
        cwd=carried.folder,
        env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert done.returncode == 130, done.stderr
    assert done.stderr.endswith(
        "error: interrupted\n"
        "Nothing half-made is in use; the same command goes on with what is there.\n"
    )
    new = carried.folder / "new"
    assert not new.exists() or not list(new.iterdir())


def test_help_fits_80_columns_and_no_line_is_cut() -> None:
    text = mirror("--help", environment={"COLUMNS": "80"}).stdout
    assert "..." not in text.partition("Commands:")[2]
    for name in cli.list_commands(None):  # type: ignore[arg-type]  # ours asks nothing of it
        text += mirror(name, "--help", environment={"COLUMNS": "80"}).stdout
    assert max(map(len, text.splitlines())) <= 80
