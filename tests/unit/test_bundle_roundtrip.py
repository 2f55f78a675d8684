"""Bundles written and read again: by mirror, and by the programs that everybody has."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tarfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mirror.bundle import layout, writer
from mirror.bundle.reader import Reader
from mirror.core.artifact import Artifact
from mirror.core.index import Entry
from mirror.core.progress import Quiet
from mirror.core.text import human_size
from mirror.store.blobs import Blobs, hash_file
from tests import bundles

LONG = "/".join(["a-long-name"] * 30) + "/x"
FILES = {
    "wheels/a-1.0-py3-none-any.whl": bytes(range(256)) * 400,
    "files/empty": b"",
    "files/run.sh": b"#!/bin/sh\nexit 0\n",
    "files/block": b"b" * 512,
    "files/stored": b"s" * 65_024,
    LONG: b"long",
    "models/org/Größe-模型/config.json": b"{}",
}


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "store")


def test_what_is_packed_is_what_is_admitted(tmp_path: Path, blobs: Blobs) -> None:
    made = bundles.sources(tmp_path / "in", FILES, signature=b"signed")
    made.pack(tmp_path / "b.tar.gz")
    reader = bundles.admit(tmp_path / "b.tar.gz", blobs)
    assert reader.index == made.index
    assert reader.index_bytes == made.index.to_bytes()
    assert reader.signature == b"signed"
    for artifact in made.index.artifacts:
        assert bundles.held(blobs, artifact) == FILES[artifact.path]
        assert blobs.path(artifact.sha256).stat().st_mode & 0o777 == 0o444
    assert not bundles.staged(blobs)


def test_where_the_time_goes_is_told(tmp_path: Path, blobs: Blobs) -> None:
    """Of packing, installing and checking: what all the rest waits for, and what is done beside."""

    class Told(Quiet):
        def __init__(self) -> None:
            self.details: list[str] = []

        def detail(self, text: str) -> None:
            self.details.append(text)

    told, target = Told(), tmp_path / "b.tar.gz"
    made = bundles.sources(tmp_path / "in", FILES)
    writer.pack_file(made.index, b"", made.locate, target, told)
    with Reader.open(target) as reader:
        reader.admit(blobs, told)
    with Reader.open(target) as reader:
        reader.check(told)
    size = human_size(target.stat().st_size)
    assert [line.partition(" in ")[0] for line in told.details] == [
        f"{work}: {size}" for work in ("packing", "unpacking", "checking")
    ]
    for line in told.details:
        main, _, beside = line.partition("; beside them ")
        for work in ("reading", "writing", "checksums", "waiting for hashes"):
            assert f"{work} 0." in main
        assert ("waiting for the disk" in main) == ("checking" not in line)
        assert "hashing 0." in beside


def test_a_bundle_is_a_function_of_its_index_and_payload(tmp_path: Path) -> None:
    one = bundles.sources(tmp_path / "one", FILES).pack(tmp_path / "one.tar.gz")
    two = bundles.sources(tmp_path / "two", FILES).pack(tmp_path / "two.tar.gz")
    assert one == two
    assert [p.name for p in tmp_path.iterdir() if "tmp" in p.name] == []


def test_tar_and_gzip_unpack_the_same_tree(tmp_path: Path) -> None:
    made = bundles.sources(tmp_path / "in", FILES, signature=b"signed")
    bundle = tmp_path / "b.tar.gz"
    made.pack(bundle)
    subprocess.run(["gzip", "-t", bundle], check=True)
    (tmp_path / "gnu").mkdir()
    subprocess.run(["tar", "-xzf", bundle], cwd=tmp_path / "gnu", check=True, umask=0o022)
    with tarfile.open(bundle, "r:gz") as tar:
        names = tar.getnames()
        for member in tar.getmembers():
            assert (member.isreg(), member.uid, member.gid, member.mtime) == (True, 0, 0, 0)
            file = tmp_path / "gnu" / member.name
            content = tar.extractfile(member)
            assert content is not None
            assert file.read_bytes() == content.read()
            assert file.stat().st_mode & 0o777 == member.mode
    assert names == ["mirror-bundle.json", "mirror-bundle.json.sig", *FILES]
    gnu = tmp_path / "gnu"
    assert sum(p.is_file() for p in gnu.rglob("*")) == len(names)
    assert (gnu / "mirror-bundle.json").read_bytes() == made.index.to_bytes()
    assert (gnu / "mirror-bundle.json.sig").read_bytes() == b"signed"
    assert os.access(gnu / "files/run.sh", os.X_OK)
    assert not os.access(gnu / "files/block", os.X_OK)
    for path, data in FILES.items():
        assert (gnu / path).read_bytes() == data


# A member of the tar begins 512 bytes before its data: these end on, before and after a gzip seam.
@pytest.mark.parametrize("size", [layout.MEMBER - 1, layout.MEMBER, 2 * layout.MEMBER + 1])
def test_an_artifact_larger_than_a_gzip_member(tmp_path: Path, blobs: Blobs, size: int) -> None:
    made = bundles.sources(tmp_path / "in", {"f": b"\xa5" * size, "g": b"after"})
    made.pack(tmp_path / "b.tar.gz")
    subprocess.run(["gzip", "-t", tmp_path / "b.tar.gz"], check=True)
    bundles.admit(tmp_path / "b.tar.gz", blobs)
    for artifact in made.index.artifacts:
        assert hash_file(blobs.path(artifact.sha256)) == artifact.sha256


@pytest.mark.parametrize("exact", [layout.STORED, layout.CHUNK, layout.MEMBER])
def test_a_tar_that_ends_with_a_block_chunk_or_member(tmp_path: Path, exact: int) -> None:
    """The size of the one artifact is chosen so that the whole tar is exactly that long."""
    spare = exact - bundle_tar(tmp_path, 0)
    size = next(n for n in range(spare, spare - 2048, -1) if bundle_tar(tmp_path, n) == exact)
    made = bundles.sources(tmp_path / "in", {"f": bytes(size)})
    data = made.pack(tmp_path / "b.tar.gz")
    assert len(data) == layout.file_size(exact)
    subprocess.run(["gzip", "-t", tmp_path / "b.tar.gz"], check=True)
    with Reader.open(tmp_path / "b.tar.gz") as reader:
        reader.check(Quiet())


def bundle_tar(folder: Path, size: int) -> int:
    artifact = Artifact("files", "f", size, "0" * 64)
    index = bundles.index_of(artifact)
    return len(layout.head(index.to_bytes(), b"")) + layout.payload_size([artifact])


PATHS = st.lists(st.text("abcé模-_1", min_size=1, max_size=60), min_size=1, max_size=4).map(
    "/".join
)


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(PATHS, st.binary(max_size=5000), max_size=6),
    st.binary(max_size=1500),
    st.booleans(),
)
def test_round_trip_with_seams_everywhere(
    tmp_path_factory: pytest.TempPathFactory,
    files: dict[str, bytes],
    signature: bytes,
    piped: bool,
) -> None:
    folder = tmp_path_factory.mktemp("seams")
    files = {f"{n}/{path}": data for n, (path, data) in enumerate(files.items())}
    with pytest.MonkeyPatch.context() as patch:
        bundles.shrink(patch)
        if piped:  # as on Windows
            patch.delattr(os, "readv")
            patch.delattr(os, "writev")
        made = bundles.sources(folder / "in", files, signature)
        bundle = folder / "b.tar.gz"
        made.pack(bundle)
        blobs = Blobs(folder / "store")
        if piped:
            with bundles.stream(bundle.read_bytes()) as file:
                reader = bundles.admit(file, blobs)
        else:
            reader = bundles.admit(bundle, blobs)
    subprocess.run(["gzip", "-t", bundle], check=True)
    assert reader.index == made.index
    assert reader.signature == signature
    assert all(bundles.held(blobs, a) == files[a.path] for a in made.index.artifacts)
    assert not bundles.staged(blobs)


def test_a_bundle_is_written_to_a_pipe(tmp_path: Path) -> None:
    made = bundles.sources(tmp_path / "in", FILES | {"files/big": bytes(2_000_000)})
    expected = made.pack(tmp_path / "b.tar.gz")
    cat = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert cat.stdin
    assert cat.stdout
    got: list[bytes] = []
    drain = threading.Thread(target=lambda: got.append(cat.stdout.read()))  # type: ignore[union-attr]
    drain.start()
    writer.pack(made.index, b"", made.locate, cat.stdin.fileno(), Quiet())
    cat.stdin.close()
    drain.join()
    cat.stdout.close()
    assert cat.wait() == 0
    assert got == [expected]


def test_only_shipped_artifacts_are_in_the_bundle(tmp_path: Path, blobs: Blobs) -> None:
    made = bundles.sources(tmp_path / "in", FILES)
    first, *rest = made.index.entries
    index = replace(made.index, entries=(replace(first, shipped=False), *rest), base="1" * 64)
    made = replace(made, index=index)
    made.pack(tmp_path / "b.tar.gz")
    bundles.admit(tmp_path / "b.tar.gz", blobs)
    assert not blobs.has(first.artifact.sha256)
    assert all(blobs.has(e.artifact.sha256, e.artifact.size) for e in rest)
    with tarfile.open(tmp_path / "b.tar.gz") as tar:
        assert first.artifact.path not in tar.getnames()


def test_many_small_files(tmp_path: Path, blobs: Blobs) -> None:
    files = {f"files/{n // 100}/{n}": b"%d" % n for n in range(1500)}
    made = bundles.sources(tmp_path / "in", files)
    made.pack(tmp_path / "b.tar.gz")
    bundles.admit(tmp_path / "b.tar.gz", blobs)
    assert all(bundles.held(blobs, a) == files[a.path] for a in made.index.artifacts)
    assert not bundles.staged(blobs)


def test_two_paths_with_the_same_bytes(tmp_path: Path, blobs: Blobs) -> None:
    made = bundles.sources(tmp_path / "in", {"files/a": b"same", "files/b": b"same"})
    made.pack(tmp_path / "b.tar.gz")
    bundles.admit(tmp_path / "b.tar.gz", blobs)
    assert bundles.held(blobs, made.index.artifacts[1]) == b"same"
    assert not bundles.staged(blobs)


def test_an_index_of_several_gzip_members(tmp_path: Path, blobs: Blobs) -> None:
    files = {f"files/{n}": b"%d" % n for n in range(200)}
    with pytest.MonkeyPatch.context() as patch:
        bundles.shrink(patch)
        made = bundles.sources(tmp_path / "in", files)
        assert len(made.index.to_bytes()) > 3 * layout.MEMBER
        made.pack(tmp_path / "b.tar.gz")
        reader = bundles.admit(tmp_path / "b.tar.gz", blobs)
    assert reader.index == made.index
    assert hashlib.sha256(reader.index_bytes).hexdigest() == made.index.digest


def test_entries_keep_their_order(tmp_path: Path) -> None:
    made = bundles.sources(tmp_path / "in", {"z": b"1", "a": b"2", "m": b"3"})
    made.pack(tmp_path / "b.tar.gz")
    with tarfile.open(tmp_path / "b.tar.gz") as tar:
        assert tar.getnames()[2:] == ["z", "a", "m"]
    assert [Entry(a) for a in made.index.artifacts] == list(made.index.entries)
