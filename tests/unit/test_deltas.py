"""Large files that changed in part: cut, compared, shipped in part, and put together again."""

from __future__ import annotations

import hashlib
import io
import json
import random
import struct
import threading
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from mirror.build import deltas as making
from mirror.build.increments import Base
from mirror.build.regions import cut
from mirror.bundle import writer
from mirror.bundle.splitting import Volumes, pack_volumes
from mirror.core import delta
from mirror.core.artifact import Artifact, Json
from mirror.core.delta import Piece
from mirror.core.index import Entry, Index, parse
from mirror.core.progress import Quiet
from mirror.errors import BundleError
from mirror.store import patching
from mirror.store.blobs import Blobs
from tests import bundles
from tests.bundles import artifact, index_of, staged

MB = 2**20


def tensors(values: Mapping[str, bytes], metadata: str = "") -> bytes:
    """A safetensors file."""
    header: dict[str, Json] = {"__metadata__": {"note": metadata}}
    at = 0
    for name, data in values.items():
        header[name] = {"dtype": "U8", "shape": [len(data)], "data_offsets": [at, at + len(data)]}
        at += len(data)
    spelled = json.dumps(header).encode()
    return struct.pack("<Q", len(spelled)) + spelled + b"".join(values.values())


def wheel(files: Mapping[str, bytes], year: int) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in files.items():
            member = zipfile.ZipInfo(name, (year, 1, 1, 0, 0, 0))
            archive.writestr(member, data, zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def noise(seed: int, size: int = MB) -> bytes:
    return random.Random(seed).randbytes(size)


@dataclass
class Pair:
    """An old and a new file of one name: the builder has both."""

    folder: Path
    old: bytes
    new: bytes
    path: str = "files/model"

    def __post_init__(self) -> None:
        self.server = Blobs(self.folder / "server")
        self.builder = Blobs(self.folder / "builder")
        self.olds = index_of(artifact(self.path, self.old))
        self.complete = index_of(artifact(self.path, self.new), artifact("files/a", b"a"))
        self.server.put(self.old)
        self.builder.put(b"a")
        self.fresh = self.folder / "new"
        self.fresh.write_bytes(self.new)

    def base(self, bundle: Path | None = None) -> Base:
        held = frozenset(a.sha256 for a in self.olds.artifacts)
        known = self.olds.artifacts
        return Base("old", self.olds.digest, self.olds.digest, held, known, self.olds, bundle)

    def locate(self, found: Artifact) -> Path:
        return self.fresh if found.path == self.path else self.builder.path(found.sha256)

    def increment(self, bundle: Path | None = None) -> Index:
        base = self.base(bundle)
        complete = base.increment(self.complete, {})
        making.make(complete, base, self.locate, self.builder, Quiet())
        return base.increment(self.complete, making.noted(complete, base, self.builder))

    def install(self, index: Index) -> bytes:
        """Pack, read and put together; returns what the server has then."""
        target = self.folder / "b.tar.gz"
        writer.pack_file(index, b"", self.locate, target, Quiet())
        reader = bundles.admit(target, self.server)
        assert reader.index == index
        patching.make_all(delta.deltas(reader.index), self.server, Quiet())
        return self.server.path(hashlib.sha256(self.new).hexdigest()).read_bytes()


def part_changed(folder: Path) -> Pair:
    parts = {f"layer.{n}": noise(n) for n in range(4)}
    return Pair(folder, tensors(parts), tensors({**parts, "layer.2": noise(9)}, "longer header"))


def test_only_the_tensors_that_changed_are_shipped(tmp_path: Path) -> None:
    pair = part_changed(tmp_path)
    pair.builder.put(pair.old)
    index = pair.increment()
    shipped = {a.kind: a for a in index.shipped}
    assert shipped["delta"].path == f"delta/{hashlib.sha256(pair.new).hexdigest()}"
    assert MB < shipped["delta"].size < MB + 1000
    assert parse(index.to_bytes()) == index
    assert pair.install(index) == pair.new
    assert not staged(pair.server)


def test_the_old_file_is_read_out_of_the_old_bundle(tmp_path: Path) -> None:
    """Where a checkpoint was written over, the bundle that carried it is all there is of it."""
    pair = part_changed(tmp_path)
    made = bundles.sources(tmp_path / "in", {"files/0": noise(7, 70_001), pair.path: pair.old})
    made.pack(tmp_path / "old.tar.gz")
    pair.olds = made.index
    index = pair.increment(tmp_path / "old.tar.gz")
    assert [a.kind for a in index.shipped] == ["files", "delta"]
    assert pair.install(index) == pair.new
    # One whose bytes are nowhere is shipped whole, and nothing is noted about it.
    (tmp_path / "other").mkdir()
    other = part_changed(tmp_path / "other")
    assert [a.kind for a in other.increment().shipped] == ["files", "files"]
    assert not (other.builder.folder / "deltas").exists()


@pytest.mark.parametrize("size", [70_000, 2**20, 2**30])
def test_the_old_file_is_read_out_of_the_old_volumes(tmp_path: Path, size: int) -> None:
    pair = part_changed(tmp_path)
    made = bundles.sources(tmp_path / "in", {"files/0": noise(7, 70_001), pair.path: pair.old})
    target = tmp_path / "old.tar.gz"
    pack_volumes(made.index, b"", made.locate, target, Volumes(size), Quiet())
    pair.olds = made.index
    index = pair.increment(tmp_path / "old.tar.gz.001")
    assert [a.kind for a in index.shipped] == ["files", "delta"]
    assert pair.install(index) == pair.new


def test_a_damaged_copy_of_the_old_file_is_not_relied_on(tmp_path: Path) -> None:
    pair = part_changed(tmp_path)
    pair.builder.put(pair.old)
    blob = pair.builder.path(hashlib.sha256(pair.old).hexdigest())
    blob.chmod(0o644)
    blob.write_bytes(pair.old[:-1] + b"?")
    assert [a.kind for a in pair.increment().shipped] == ["files", "files"]


def test_an_interrupt_does_not_wait_for_the_old_file(tmp_path: Path) -> None:
    pair = part_changed(tmp_path)
    pair.builder.put(pair.old)
    threads = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        making.make(
            pair.base().increment(pair.complete, {}),
            pair.base(),
            pair.locate,
            pair.builder,
            bundles.Interrupted(),
        )
    assert threading.active_count() == threads
    assert not (pair.builder.folder / "deltas").exists()
    assert not staged(pair.builder)


def test_wheels_are_compared_member_by_member(tmp_path: Path) -> None:
    files = {f"p/{n}.py": noise(n, 300_000).hex().encode() for n in range(6)}
    files |= {f"p/tiny{n}.py": b"%d" % n for n in range(100)}
    new = {"p/new.py": b"new", **files, "p/3.py": noise(33, 290_000).hex().encode()}
    pair = Pair(tmp_path, wheel(files, 2020), wheel(new, 2021))
    pair.builder.put(pair.old)
    index = pair.increment()
    [shipped] = [a for a in index.shipped if a.kind == "delta"]
    assert shipped.size < 370_000  # which half a million digits are compressed to
    pieces = shipped.origin["pieces"]
    assert isinstance(pieces, list)
    assert len(pieces) < 20, "to name a tiny member takes more than to ship it"
    assert pair.install(index) == pair.new


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (noise(1), noise(2)),  # no format that is known
        (tensors({"a": noise(1)}), tensors({"a": noise(2)})),  # all is new
        (
            tensors({"a": noise(1), "b": noise(2, 90_000)}),
            tensors({"b": noise(2, 90_000), "a": noise(3)}),
        ),
        (tensors({"a": noise(1, MB // 2)}), tensors({"a": noise(1, MB // 2)}, "x")),  # small
    ],
    ids=["unknown", "all", "too little", "small"],
)
def test_what_saves_too_little_is_shipped_whole(tmp_path: Path, old: bytes, new: bytes) -> None:
    pair = Pair(tmp_path, old, new)
    pair.builder.put(old)
    index = pair.increment()
    assert [a.kind for a in index.shipped] == ["files", "files"]
    base = pair.base()
    assert not making.make(index, base, lambda a: Path("/nowhere"), pair.builder, Quiet()), "noted"


@pytest.mark.parametrize("seed", range(8))
def test_whatever_changes_the_same_bytes_come_out(tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    values = {f"t{n}": noise(n, dice.choice([0, 1, 400, 70_000, 600_000])) for n in range(12)}
    values["large"] = noise(99, 2 * MB)
    names = [name for name in values if dice.random() < 0.8]
    dice.shuffle(names)
    changed = {name: values[name] for name in names} | {"large": values["large"]}
    for name in dice.sample(names, 3):
        changed[name] = noise(seed + 1000, len(values[name]) + dice.randrange(3))
    pair = Pair(tmp_path, tensors(values), tensors(changed))
    pair.builder.put(pair.old)
    assert pair.install(pair.increment()) == pair.new


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"PK\x03\x04",
        b"PK\x03\x04" + bytes(100),
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 50) + b'{"a":{"data_offsets":[1e999,-5]}}'.ljust(50),
        struct.pack("<Q", 100_000) + b"[" * 100_000,
        wheel({"a": b"a" * 1000}, 2020)[:-3],
    ],
)
def test_what_is_no_such_file_is_one_part(data: bytes) -> None:
    assert set(cut(io.BytesIO(data), len(data))) == {0, len(data)}


# -- what a server is sent -----------------------------------------------------------------------


def sent(*pieces: Json, **more: Json) -> Index:
    """An index with a delta of 4 new bytes for a file of 10, and a base of 8."""
    result = artifact("files/x", b"01234567ab")
    new = artifact("delta/x", b"abcd")
    origin: dict[str, Json] = {
        "result": result.sha256,
        "base": hashlib.sha256(b"01234567").hexdigest(),
        "pieces": list(pieces),
        **more,
    }
    entries = (Entry(result, shipped=False), Entry(replace(new, kind="delta", origin=origin)))
    return Index("demo", "1", "0.1", "0" * 64, None, entries)


@pytest.mark.parametrize(
    "index",
    [
        sent(),
        sent([0, 6], 3),
        sent([0, 7], 4),
        sent([-1, 6], 4),
        sent([0, 6], [0, 0], 4),
        sent([0, 6], True, 3),
        sent([0.0, 6], 4),
        sent([0, 6, 1], 4),
        sent("06", 4),
        sent([0, 6], 4, result="0" * 64),
        sent([0, 6], 4, result=["x"]),
        sent([0, 6], 4, base="../" * 21 + "x"),
        sent([0, 6], 4, base=1),
        sent([0, 6], 4, pieces={"0": 6}),
        sent([0, 6], 4, pieces=None),
    ],
)
def test_a_delta_that_makes_no_sense_is_refused(index: Index) -> None:
    with pytest.raises(BundleError, match="is no delta"):
        delta.deltas(index)


@pytest.mark.parametrize("pieces", [([0, 6], 4), ([5, 6], 4), ([2**52, 6], 4), (4, [0, 6])])
def test_what_comes_out_wrong_is_not_kept(tmp_path: Path, pieces: Sequence[Json]) -> None:
    blobs = Blobs(tmp_path)
    blobs.put(b"01234567")
    blobs.put(b"abcd")
    with pytest.raises(BundleError, match="cannot be put together"):
        patching.make_all(delta.deltas(sent(*pieces)), blobs, Quiet())
    assert sorted(blobs) == sorted(hashlib.sha256(d).hexdigest() for d in (b"01234567", b"abcd"))
    assert not staged(blobs)


def test_pieces_are_spelled_as_they_are_read() -> None:
    new = artifact("files/x", b"0123abcd")
    carried = delta.artifact(
        new.sha256, "a" * 64, [Piece(4, 8), Piece(4)], size=4, sha256=artifact("x", b"abcd").sha256
    )
    entries = (Entry(new, shipped=False), Entry(carried))
    index = Index("demo", "1", "0.1", "0" * 64, None, entries)
    [found] = delta.deltas(parse(index.to_bytes()))
    assert found.pieces == (Piece(4, 8), Piece(4))
    assert (found.result, found.base) == (new, "a" * 64)
