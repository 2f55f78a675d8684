"""What the reader does to a store, and what stays behind when it cannot."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import pytest

from mirror.bundle import flow, layout
from mirror.bundle.reader import Reader
from mirror.core.artifact import Artifact
from mirror.core.progress import Quiet
from mirror.errors import MachineError, UsageError
from mirror.store import atomic
from mirror.store.blobs import Blobs
from tests import bundles

FILES = {
    "files/a": b"a",
    "files/empty": b"",
    "files/run.sh": b"exit 0\n",
    "files/block": b"b" * 512,
}
LARGE = {"files/a": b"a", "files/big": bytes(9_000_000)}


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "store")


def test_what_the_store_has_is_not_written_again(tmp_path: Path, blobs: Blobs) -> None:
    made = bundles.sources(tmp_path / "in", FILES)
    made.pack(tmp_path / "b.tar.gz")
    bundles.admit(tmp_path / "b.tar.gz", blobs)
    before = {p: p.stat().st_ino for p in blobs.folder.rglob("*")}
    bundles.admit(tmp_path / "b.tar.gz", blobs)
    assert {p: p.stat().st_ino for p in blobs.folder.rglob("*")} == before


@pytest.mark.parametrize("wrong", [b"", b"\0" * 512])
def test_installing_again_mends_a_blob(tmp_path: Path, blobs: Blobs, wrong: bytes) -> None:
    made = bundles.sources(tmp_path / "in", {"files/block": b"b" * 512})
    made.pack(tmp_path / "b.tar.gz")
    (artifact,) = made.index.artifacts
    blobs.path(artifact.sha256).parent.mkdir(parents=True)
    blobs.path(artifact.sha256).write_bytes(wrong)
    bundles.admit(tmp_path / "b.tar.gz", blobs)
    assert bundles.held(blobs, artifact) == b"b" * 512


def test_space_is_checked_before_anything_is_stored(tmp_path: Path, blobs: Blobs) -> None:
    index = bundles.index_of(
        bundles.artifact("files/a", b"a"), Artifact("files", "huge", 2**50, "0" * 64)
    )
    head = layout.head(index.to_bytes(), b"")
    total = len(head) + layout.payload_size(index.shipped)
    front = layout.Chunk(0, len(head)).frame(total)[0]
    with bundles.stream(front + head) as file, Reader.open(file) as reader:
        assert reader.index == index
        with pytest.raises(MachineError, match=r"free; .* are needed"):
            reader.admit(blobs, Quiet())
    assert [p for p in blobs.folder.rglob("*") if p.is_file()] == []


def test_a_store_that_refuses_to_grow(tmp_path: Path, blobs: Blobs) -> None:
    made = bundles.sources(tmp_path / "in", LARGE)
    made.pack(tmp_path / "b.tar.gz")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4_000_000, limits[1]))
    try:
        with pytest.raises(MachineError, match="cannot be written: File too large"):
            bundles.admit(tmp_path / "b.tar.gz", blobs)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not bundles.staged(blobs)


def test_a_blob_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = bundles.sources(tmp_path / "in", LARGE | {f"files/{n}": b"%d" % n for n in range(40)})
    made.pack(tmp_path / "b.tar.gz")
    synced: set[tuple[int, int]] = set()
    named: list[str] = []
    sync, sync_everything, rename = os.fsync, atomic.sync_all, os.replace

    def fsync(file: int) -> None:
        status = os.fstat(file)
        sync(file)
        synced.add((status.st_ino, status.st_size))

    def replace(source: str, target: str) -> None:
        status = os.stat(source)
        assert (status.st_ino, status.st_size) in synced
        rename(source, target)
        named.append(Path(target).name)

    def sync_all(file: int) -> None:
        sync_everything(file)
        for path in blobs.temporary.rglob("*"):
            synced.add((path.stat().st_ino, path.stat().st_size))

    monkeypatch.setattr(flow, "SYNC_EVERY", 1_000_000)
    monkeypatch.setattr(atomic, "sync_all", sync_all)
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    bundles.admit(tmp_path / "b.tar.gz", blobs)
    assert sorted(named) == sorted(a.sha256 for a in made.index.artifacts)
    for folder in {blobs.path(sha256).parent for sha256 in named}:
        assert any(ino == folder.stat().st_ino for ino, _ in synced)


def test_checking_writes_nothing(tmp_path: Path) -> None:
    made = bundles.sources(tmp_path / "in", FILES)
    made.pack(tmp_path / "b.tar.gz")
    before = sorted(tmp_path.rglob("*"))
    with Reader.open(tmp_path / "b.tar.gz") as reader:
        reader.check(Quiet())
        with pytest.raises(RuntimeError, match="once"):
            reader.check(Quiet())
    assert sorted(tmp_path.rglob("*")) == before


def test_opening_reads_the_head_only(tmp_path: Path) -> None:
    made = bundles.sources(tmp_path / "in", {"files/big": bytes(20_000_000)})
    made.pack(tmp_path / "b.tar.gz")
    file = os.open(tmp_path / "b.tar.gz", os.O_RDONLY)
    with Reader.open(file) as reader:
        assert os.lseek(file, 0, os.SEEK_CUR) < 5000
        assert reader.index == made.index
    os.close(file)


def test_opening_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no bundle"):
        Reader.open(tmp_path / "none.tar.gz")
    with pytest.raises(UsageError, match="is a folder"):
        Reader.open(tmp_path)


def test_an_interrupt_leaves_nothing_half_made(tmp_path: Path, blobs: Blobs) -> None:
    made = bundles.sources(tmp_path / "in", LARGE)
    made.pack(tmp_path / "b.tar.gz")
    with Reader.open(tmp_path / "b.tar.gz") as reader, pytest.raises(KeyboardInterrupt):
        reader.admit(blobs, bundles.Interrupted())
    assert not bundles.staged(blobs)
    assert not blobs.has(made.index.artifacts[1].sha256)


def test_an_interrupt_ends_the_wait_for_a_silent_pipe(tmp_path: Path, blobs: Blobs) -> None:
    made = bundles.sources(tmp_path / "in", LARGE)
    data = made.pack(tmp_path / "b.tar.gz")
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with bundles.stream(data[:4_000_000], end=False) as file, Reader.open(file) as reader:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(KeyboardInterrupt):
                reader.admit(blobs, Quiet())
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert not bundles.staged(blobs)
