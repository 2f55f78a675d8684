"""An install takes its payload once, and the margin that it states: on the disk, byte by byte."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import bundles
from tests.e2e.conftest import mirror, mirror_json

MEGABYTE = 10**6
PAYLOAD = 96 * MEGABYTE
#: What install asks for besides: 64 MB, and 8 KiB a file.
MARGIN = 64 * MEGABYTE
FILES = 12


def _mountable() -> str:
    """Why nothing can be mounted here; empty when it can."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or not shutil.which("mount"):
        return "file systems of a size need Linux and root"
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, text=True)
    return tried.stderr.strip() if tried.returncode else ""


@contextlib.contextmanager
def _mounted(place: Path, *command: str) -> Iterator[Path]:
    place.mkdir()
    subprocess.run(["mount", *command, str(place)], check=True, capture_output=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def _tmpfs(folder: Path, size: int) -> contextlib.AbstractContextManager[Path]:
    return _mounted(folder / "tmpfs", "-t", "tmpfs", "-o", f"size={size}", "tmpfs")


@contextlib.contextmanager
def _xfs(folder: Path, size: int) -> Iterator[Path]:
    """A file system that can share blocks between files; its log takes some of it."""
    image = folder / "xfs.img"
    with open(image, "wb") as file:
        file.truncate(size + 128 * MEGABYTE)
    made = ["mkfs.xfs", "-q", "-m", "reflink=1", str(image)]
    subprocess.run(made, check=True, capture_output=True)
    with _mounted(folder / "xfs", "-o", "loop", str(image)) as place:
        yield place


@contextlib.contextmanager
def _most_used(place: Path) -> Iterator[list[int]]:
    """The most bytes in use on a file system meanwhile, beyond those at first."""
    begin = shutil.disk_usage(place).used
    most, done = [0], threading.Event()

    def look() -> None:
        while not done.wait(0.002):
            most[0] = max(most[0], shutil.disk_usage(place).used - begin)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield most
    finally:
        done.set()
        thread.join()


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    files = {f"files/{n:02}.bin": os.urandom(PAYLOAD // FILES) for n in range(FILES)}
    bundles.sources(folder / "sources", files).pack(folder / "demo-1.tar.gz")
    return folder / "demo-1.tar.gz"


pytestmark = pytest.mark.skipif(bool(_mountable()), reason=_mountable() or "-")


def test_the_payload_is_written_once_and_the_stated_margin_is_enough(
    bundle: Path, tmp_path: Path
) -> None:
    needed = PAYLOAD + MARGIN + 2 * 4096 * FILES
    # tmpfs counts whole pages, folders and links too: a page or two for each is not there at first.
    with _tmpfs(tmp_path, needed + 2**20) as place, _most_used(place) as most:
        plan = mirror_json("install", bundle, "--root", place / "root", "--dry-run")
        assert plan["bytes"] == needed
        mirror("install", bundle, "--root", place / "root")
    assert PAYLOAD <= most[0] < PAYLOAD + 4 * MEGABYTE


def test_where_there_is_less_nothing_is_begun(bundle: Path, tmp_path: Path) -> None:
    with _tmpfs(tmp_path, PAYLOAD + MARGIN - MEGABYTE) as place:
        done = mirror("install", bundle, "--root", place / "root", code=8)
        assert "free; this needs 160 MB" in done.stderr
        assert not (place / "root").exists()


@pytest.mark.skipif(not shutil.which("mkfs.xfs"), reason="xfsprogs is not installed")
def test_with_bundle_and_root_on_a_file_system_that_shares_blocks_it_is_no_more(
    bundle: Path, tmp_path: Path
) -> None:
    with _xfs(tmp_path, 2 * PAYLOAD + MARGIN) as place:
        there = shutil.copy(bundle, place)
        subprocess.run(["sync", "--file-system", str(place)], check=True)
        with _most_used(place) as most:
            mirror("install", there, "--root", place / "root")
            subprocess.run(["sync", "--file-system", str(place)], check=True)
        assert PAYLOAD <= most[0] < PAYLOAD + 16 * MEGABYTE
