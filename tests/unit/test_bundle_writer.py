"""What the writer refuses, and what stays behind then: nothing."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from mirror.bundle import flow, writer
from mirror.core.artifact import Artifact
from mirror.core.index import MAX_SIGNATURE_BYTES
from mirror.errors import BundleError, MachineError
from tests import bundles

FILES = {
    "files/a": b"a",
    "files/empty": b"",
    "files/run.sh": b"exit 0\n",
    "files/block": b"b" * 512,
}
LARGE = {"files/a": b"a", "files/big": bytes(9_000_000)}


@pytest.mark.parametrize(
    ("now", "says"),
    [
        (b"Hello", "has the sha256"),
        (b"hell", "is 4 bytes long, not 5"),
        (b"hello!", "is 6 bytes long, not 5"),
        (None, "cannot be read: No such file"),
    ],
)
def test_a_file_that_has_changed_is_not_packed(
    tmp_path: Path, now: bytes | None, says: str
) -> None:
    made = bundles.sources(tmp_path / "in", {"files/ok": b"ok", "files/greeting": b"hello"})
    file = made.locate(made.index.artifacts[1])
    file.unlink() if now is None else file.write_bytes(now)
    target = tmp_path / "b.tar.gz"
    target.write_bytes(b"the one before")
    with pytest.raises(BundleError, match=says) as caught:
        made.pack(target)
    assert "files/greeting" in caught.value.message
    assert str(file) in caught.value.message
    assert target.read_bytes() == b"the one before"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["b.tar.gz", "in"]


def test_space_is_checked_before_packing(tmp_path: Path) -> None:
    index = bundles.index_of(Artifact("files", "huge", 2**50, "0" * 64))
    with pytest.raises(MachineError, match=r"free; .* are needed"):
        bundles.Sources(tmp_path, index).pack(tmp_path / "b.tar.gz")
    assert list(tmp_path.iterdir()) == []


def test_packing_into_a_folder_that_is_not_there(tmp_path: Path) -> None:
    made = bundles.sources(tmp_path / "in", FILES)
    with pytest.raises(MachineError, match="cannot be written: No such file"):
        made.pack(tmp_path / "nowhere" / "b.tar.gz")


def test_no_bundle_is_written_that_no_reader_accepts(tmp_path: Path) -> None:
    index = bundles.index_of(bundles.artifact("../x", b""))
    with pytest.raises(BundleError, match="no bundle may hold"):
        bundles.Sources(tmp_path, index).pack(tmp_path / "b.tar.gz")
    made = bundles.sources(tmp_path / "in", FILES, signature=bytes(MAX_SIGNATURE_BYTES + 1))
    with pytest.raises(BundleError, match="signature"):
        made.pack(tmp_path / "b.tar.gz")
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_an_interrupt_leaves_no_bundle(tmp_path: Path) -> None:
    made = bundles.sources(tmp_path / "in", LARGE)
    with pytest.raises(KeyboardInterrupt):
        writer.pack_file(made.index, b"", made.locate, tmp_path / "b.tar.gz", bundles.Interrupted())
    assert [p.name for p in tmp_path.iterdir()] == ["in"]


def test_a_stage_that_fails_stops_the_ring() -> None:
    def fail(item: list[int]) -> None:
        if item[0] == 3:
            raise ValueError("third")
        item.append(0)

    def run() -> None:
        with flow.Ring([[0], [0]], fail) as ring:
            for number in range(10):
                item = ring.take()
                item[0] = number
                ring.put(item)
            for _ in ring.drain():
                pass

    before = threading.active_count()
    with pytest.raises(ValueError, match="third"):
        run()
    assert threading.active_count() == before


def test_work_in_the_background_reports_its_error() -> None:
    def fail() -> None:
        raise OSError("no")

    def run() -> None:
        with flow.Background() as disk:
            disk.submit(fail)
            disk.finish()

    with pytest.raises(OSError, match="no"):
        run()
