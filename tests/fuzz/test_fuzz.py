"""The readers of what strangers send, fed with wrong bytes for a while; and what that found."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from mirror.bundle import volumes
from mirror.core import index, inventory, reading
from mirror.core.index import canonical
from mirror.ecosystems.wheels import inspection
from mirror.errors import BundleError, UsageError
from mirror.trust.keys import PublicKey, UnknownAlgorithm
from tests.fuzz import run
from tests.fuzz.mutation import mutated
from tests.fuzz.targets import TARGETS, Surface
from tests.hostile.making import CHECKOUT
from tests.hostile.making import index as an_index

SECONDS = 8.0


def test_no_reader_does_what_it_may_not() -> None:
    workers = run.fuzz(SECONDS, seed=1)
    found = {w.surface.name: list(w.findings.items()) for w in workers if w.findings}
    assert found == {}
    assert all(worker.executions > 20 for worker in workers)


def test_one_seed_gives_one_order_of_inputs() -> None:
    first, second = random.Random(5), random.Random(5)
    inputs = [mutated(b'{"a":1}', b"x", first) for _ in range(50)]
    assert inputs == [mutated(b'{"a":1}', b"x", second) for _ in range(50)]
    assert len(set(inputs)) > 30


def test_a_finding_is_printed_and_its_input_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def crash(data: bytes) -> bool:
        return data == b"seed" or data[100_000_000] > 0

    monkeypatch.setattr(run, "TARGETS", [Surface("crash", lambda: [b"seed"], crash, ())])
    [worker] = run.fuzz(0.2)
    [(kind, (says, data))] = worker.findings.items()
    assert kind.startswith("IndexError at test_fuzz.py:")
    assert says == "index out of range"
    run._report(worker, tmp_path / "found")
    assert [path.read_bytes() for path in (tmp_path / "found").iterdir()] == [data]
    assert str(tmp_path / "found") in capsys.readouterr().out


def test_the_command_says_what_it_did() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.run", "--seconds", "0.1", "--only", "index"],
        capture_output=True,
        text=True,
        cwd=CHECKOUT,
        check=True,
    )
    assert done.stdout.endswith("executions, 0 findings\n")


def test_every_surface_has_a_name() -> None:
    assert len({surface.name for surface in TARGETS}) == len(TARGETS)


# -- what was found -----------------------------------------------------------------------------


@pytest.mark.parametrize("value", [b"NaN", b"Infinity", b"1e999"])
def test_a_number_that_json_has_not_is_damage(value: bytes) -> None:
    with pytest.raises(BundleError, match="not JSON"):
        index.parse(an_index().replace(b'"verify":{}', b'"verify":{"a":%s}' % value))


@pytest.mark.parametrize("name", [["a"], {"a": 1}, 7, None])
def test_a_volume_whose_name_is_no_text(tmp_path: Path, name: object) -> None:
    part = {"name": name, "size": 1, "sha256": "0" * 64}
    document = {"format": 1, "bundle": "0" * 64, "bytes": 1, "volumes": [part], "recovery": []}
    (tmp_path / "list").write_bytes(canonical(document) + b"\n")  # type: ignore[arg-type]
    with pytest.raises(BundleError, match="is no file's name"):
        volumes.read_list(tmp_path / "list")


def test_a_wheel_with_an_entry_without_a_name(tmp_path: Path) -> None:
    name, end = b"a", struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, 46, 31, 0)
    local = struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 0, 0, 0, 0, 0, 0, 1, 0) + name
    central = struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, 20, 0, 0, 0, 0, 0, 0, 0, 0, *([0] * 5), 0)
    (tmp_path / "blob").write_bytes(local + central + end)
    assert zipfile.ZipFile(tmp_path / "blob").namelist() == [""]
    found = inspection.check(tmp_path / "blob", "demo-1.0-py3-none-any.whl")
    assert " has an empty component" in found.problems


def test_a_key_of_a_manifest_that_begins_with_a_point_or_hides() -> None:
    with pytest.raises(UsageError) as caught:
        reading.parse(b"name: a\nversion: '1'\nfiles: [{path: a, to: b}]\n.hub: 1\n", "m.yaml")
    assert caught.value.problems == ("m.yaml:4:1: unknown key .hub",)
    with pytest.raises(UsageError) as caught:
        reading.parse(
            "name: a\nversion: '1'\nfiles: [{path: a, to: b}]\nx\ufeffy: 1\n".encode(), "m"
        )
    assert caught.value.problems == ("m:4:1: unknown key x\\ufeffy",)


def test_a_kind_of_key_without_end_is_named_by_its_front() -> None:
    with pytest.raises(UnknownAlgorithm) as caught:
        PublicKey.from_line(f"ssh-{'a' * 60_000} AAAA")
    assert len(str(caught.value)) < 400


def test_a_text_full_of_beginnings_of_summaries_is_refused_soon() -> None:
    begin = time.process_time()
    with pytest.raises(UsageError, match="not copied as it stood"):
        inventory.parse(b"MIRRORABCDEFGH " * 2000, "photo.txt")
    assert time.process_time() - begin < 5
