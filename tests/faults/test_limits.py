"""What a machine may lack, for real: room, rights, handles, links; and two at once."""

from __future__ import annotations

import hashlib
import os
import resource
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from mirror import machine
from mirror.bundle import writer
from mirror.core.artifact import Artifact
from mirror.core.index import Entry, Index
from mirror.core.progress import Quiet
from mirror.core.target import Target
from tests.e2e.conftest import CHECKOUT, mirror
from tests.faults.invariants import Whole, things

_APART = ("unshare", "--user", "--map-root-user", "--mount")
_MOUNTS = (
    subprocess.run([*_APART, "true"], capture_output=True) if shutil.which("unshare") else None
)
mounts = pytest.mark.skipif(
    not _MOUNTS or _MOUNTS.returncode != 0, reason="nothing can be mounted here"
)


class Made:
    """A bundle of many small files, one of them a script, and where it will be installed."""

    def __init__(self, folder: Path, target: Target | None = None) -> None:
        self.root = folder / "root"
        self.bundle = folder / "b.tar.gz"
        data = {f"files/{number}": f"{number}".encode() for number in range(200)}
        entries = []
        for path, text in {**data, "files/run.sh": b"exit\n"}.items():
            sha256 = hashlib.sha256(text).hexdigest()
            (folder / sha256).write_bytes(text)
            made = Artifact("files", path, len(text), sha256, executable=path.endswith(".sh"))
            entries.append(Entry(made))
        self.index = Index("limits", "1", "0.1", "0" * 64, target, tuple(entries))
        writer.pack_file(self.index, b"", lambda a: folder / a.sha256, self.bundle, Quiet())

    @property
    def command(self) -> list[str]:
        return ["install", str(self.bundle), "--root", str(self.root)]

    def whole(self) -> bool:
        """Whether all of it is installed, and nothing else is there."""
        assert Whole([self.index], current=[self.index.digest])(self.root) == []
        assert not list((self.root / "tmp").iterdir())
        return not (self.root / "store" / "tmp").exists()


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


def mounted(made: Made, *steps: str) -> str:
    """Run steps of a shell where mounts are its own, and say what each printed.

    $ROOT is the root; `install CODE` installs, and checks how it ended.
    """
    install = " ".join([sys.executable, "-m", "mirror", *made.command])
    script = f"""set -eu
        install() {{ code=0; {install} 2>&1 || code=$?
            [ $code = $1 ] || {{ echo "ended with $code, not $1"; exit 1; }}; }}
        """ + "\n".join(steps)
    done = subprocess.run(
        [*_APART, "sh", "-c", script],
        env=os.environ | {"PYTHONPATH": str(CHECKOUT), "ROOT": str(made.root)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stdout
    return done.stdout


@mounts
def test_too_little_room_is_found_before_anything_is_written(made: Made) -> None:
    made.root.mkdir()
    said = mounted(
        made,
        'mount -t tmpfs -o mode=755,size=20m none "$ROOT"',
        "install 8",
        'ls -A "$ROOT"; echo end',
    )
    assert "free; this needs" in said
    assert said.endswith("\nend\n")
    assert said.splitlines()[-2].startswith("Make room"), "nothing is in the root"


@mounts
def test_a_disk_that_fills_up_on_the_way(made: Made) -> None:
    """It runs out of inodes, of which no plan knows; then it is given more."""
    made.root.mkdir()
    said = mounted(
        made,
        'mount -t tmpfs -o mode=755,size=200m,nr_inodes=150 none "$ROOT"',
        "install 8",
        'find "$ROOT/store/tmp" "$ROOT/generations" "$ROOT/tmp" -mindepth 1; echo clean',
        'mount -o remount,nr_inodes=9000 "$ROOT"',
        "install 0",
        f'cp -a "$ROOT" "{made.root}.out"',
    )
    assert "No space left on device\nNothing half-made was left behind." in said
    assert "then run this again.\nclean\n" in said
    made.root = made.root.with_name("root.out")
    assert made.whole()


@mounts
def test_what_cannot_be_written_or_run_in_is_refused_first(tmp_path: Path) -> None:
    here = Target(machine.this_python(), machine.this_platform(), machine.this_glibc())
    made = Made(tmp_path, here)
    made.root.mkdir()
    said = mounted(made, 'mount -t tmpfs -o mode=755,ro none "$ROOT"', "install 8")
    assert f"error: the root {made.root} cannot be written" in said
    said = mounted(
        made, 'mount -t tmpfs -o mode=755,noexec none "$ROOT"', "install 8", 'ls -A "$ROOT"'
    )
    assert f"error: {made.root} is on a file system that is mounted noexec" in said
    assert said.endswith("have it mounted with exec.\n"), "nothing is in the root"


@mounts
def test_files_need_no_right_to_run(made: Made) -> None:
    made.root.mkdir()
    mounted(made, 'mount -t tmpfs -o mode=755,noexec none "$ROOT"', "install 0")


@mounts
def test_generations_on_another_device_than_the_store(made: Made) -> None:
    """Nothing can be linked there, so it is copied; nothing is renamed from one to the other."""
    (made.root / "generations").mkdir(parents=True)
    mounted(
        made,
        'mount -t tmpfs -o mode=755 none "$ROOT/generations"',
        "install 0",
        f'cp -a "$ROOT" "{made.root}.out"',
    )
    made.root = made.root.with_name("root.out")
    assert made.whole()


def test_modes_are_constants(made: Made) -> None:
    found = []
    for mask in (0o000, 0o022, 0o077):
        done = subprocess.run(
            [sys.executable, "-m", "mirror", *made.command],
            env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
            umask=mask,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        found.append({p: t.mode for p, t in things([made.root]).items()})
        assert made.whole()
        shutil.rmtree(made.root)
    assert found[0] == found[1] == found[2]
    assert set(found[0].values()) <= {0o444, 0o555, 0o644, 0o755, 0o777}, "0777: links"


def test_few_files_are_open_at_once(made: Made) -> None:
    limit = 24
    done = subprocess.run(
        [sys.executable, "-m", "mirror", *made.command],
        env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert made.whole()


def test_two_at_once(made: Made) -> None:
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "mirror", *made.command],
            env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    ended = [(process.communicate()[1], process.returncode) for process in both]
    codes = sorted(code for _, code in ended)
    assert codes in ([0, 0], [0, 8])
    if 8 in codes:
        assert any("another mirror is at work" in said for said, code in ended if code == 8)
    assert made.whole()
    mirror(*made.command)


def test_a_root_on_another_device_than_the_bundle(made: Made) -> None:
    elsewhere = Path("/dev/shm")
    if not elsewhere.is_dir() or elsewhere.stat().st_dev == made.bundle.stat().st_dev:
        pytest.skip("there is one file system only")
    made.root = elsewhere / f"mirror-{os.getpid()}"
    try:
        mirror(*made.command)
        assert made.whole()
        assert stat.S_IMODE(made.root.stat().st_mode) == 0o755
    finally:
        shutil.rmtree(made.root)
