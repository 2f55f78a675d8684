"""What a build leaves out: what a bundle, a lock or an inventory says that the server has."""

from __future__ import annotations

import json
import os
import random
import shutil
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirror import build
from mirror.build import forecast, increments, proof
from mirror.bundle.reader import Reader
from mirror.core import inventory as inventories
from mirror.core.index import Index
from mirror.core.progress import Quiet
from mirror.core.target import Target
from mirror.ecosystems.source import Context
from mirror.errors import BundleError, MachineError, UsageError
from mirror.fetch.http import Fetcher
from mirror.project import Project, open_project
from mirror.store.blobs import Blobs
from tests.index import make_wheel, serve

TOOL = ("click", "tqdm", "packaging", "segno", "pip", "uv")
MANIFEST = """
name: demo
version: "1"
target: {python: "3.11", platform: linux-x86_64, glibc: "2.28"}
wheels: {requirements: [alpha]}
files: [{path: data/, to: ./}]
"""


class Told(Quiet):
    def __init__(self) -> None:
        self.steps: list[str] = []
        self.warnings: list[str] = []

    def step(self, text: str) -> None:
        self.steps.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)


class Builder:
    """A project with two wheels and some files, its index on loopback, and a cache of its own."""

    def __init__(self, folder: Path, shelf: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder, self.shelf, self._patch = folder, shelf, patch
        self.told = Told()
        self.data = folder / "data"
        self.data.mkdir(parents=True)
        (self.data / "large").write_bytes(bytes(range(256)) * 4000)
        (self.data / "note").write_text("1", encoding="utf-8")
        (folder / "run.sh").write_text("exit\n", encoding="utf-8")
        self.cache("cache")

    def cache(self, name: str) -> Path:
        """Build with this cache from now on."""
        self._patch.setenv("MIRROR_CACHE", str(self.folder / name))
        return self.folder / name

    def project(self, text: str = MANIFEST) -> Project:
        manifest = self.folder / "m.yaml"
        manifest.write_text(text, encoding="utf-8")
        self.told.steps.clear()
        self.told.warnings.clear()
        return open_project(manifest, self.told)

    def build(self, since: Path | None = None, *, name: str = "") -> build.Built:
        output = self.folder / name if name else None
        return build.build(self.project(), output, since)

    def file(self, name: str, data: bytes) -> Path:
        path = self.folder / name
        path.write_bytes(data)
        return path


@pytest.fixture
def builder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Builder]:
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    for name in TOOL:
        make_wheel(shelf, name, "99.0")
    make_wheel(shelf, "alpha", "1.0", requires=["beta"])
    make_wheel(shelf, "beta", "1.0")
    monkeypatch.chdir(tmp_path)
    with serve(shelf) as url:
        monkeypatch.setenv("UV_DEFAULT_INDEX", url)
        yield Builder(tmp_path / "p", shelf, monkeypatch)


def shipped(index: Index) -> list[str]:
    return [artifact.path for artifact in index.shipped]


def test_since_a_bundle_only_what_is_new_is_shipped(builder: Builder) -> None:
    full = builder.build()
    assert full.path is not None
    assert full.index.base is None
    assert full.index.shipped == full.index.artifacts
    (builder.data / "note").write_text("2", encoding="utf-8")
    made = builder.build(full.path)
    assert made.path == Path(f"bundles/demo-1-since-{full.index.digest[:8]}.tar.gz")
    assert full.path.is_file(), "the bundle that it builds on is still there"
    assert made.index.base == full.index.digest
    assert shipped(made.index) == ["SHA256SUMS", "sbom.cdx.json", "files/note"]
    assert [a.path for a in made.index.artifacts] == [a.path for a in full.index.artifacts]
    with Reader.open(made.path) as reader:
        assert reader.index == made.index
        reader.check(Quiet())
    assert made.size < 20_000 < full.size


def test_a_chain_and_no_change(builder: Builder) -> None:
    full = builder.build()
    (builder.data / "note").write_text("2", encoding="utf-8")
    second = builder.build(full.path)
    (builder.data / "more").write_text("3", encoding="utf-8")
    third = builder.build(second.path)
    assert third.index.base == second.index.digest
    # What the second only named is held all the same: its server has it from the first.
    assert shipped(third.index) == ["SHA256SUMS", "sbom.cdx.json", "files/more"]
    none = builder.build(third.path)
    assert shipped(none.index) == []
    assert none.size < 8_000
    assert none.index.base == third.index.digest
    assert none.changed
    assert not builder.build(third.path).changed


def test_an_increment_is_the_same_bytes_however_it_is_made(builder: Builder) -> None:
    full = builder.build(name="full.tar.gz")
    (builder.data / "note").write_text("2", encoding="utf-8")
    made = builder.build(full.path, name="a.tar.gz")
    assert made.path is not None
    kept = made.path.read_bytes()
    builder.cache("other")
    again = builder.build(full.path, name="b.tar.gz")
    assert again.path is not None
    assert again.path.read_bytes() == kept


def test_since_a_lock(builder: Builder) -> None:
    full = builder.build()
    lock = shutil.copy(builder.folder / "m.lock.toml", builder.folder / "old.toml")
    (builder.data / "note").write_text("2", encoding="utf-8")
    made = builder.build(Path(lock))
    assert made.index.base is None, "a lock names no bundle"
    # A lock does not list what follows from it, nor which mirror made the bundle.
    derived = {a.path for a in full.index.artifacts} - {
        a.path for a in build.lock(builder.project())[0].artifacts
    }
    assert set(shipped(made.index)) == derived | {"files/note"}
    assert made.path is not None
    assert made.path.name == f"demo-1-since-{full.index.lock[:8]}.tar.gz"


def bare(folder: Path) -> Context:
    """Of a builder that has built nothing yet."""
    blobs, target = Blobs(folder / "store"), Target(python="3.11", platform="linux-x86_64")
    return Context(folder, target, blobs, Fetcher(blobs, Quiet()), Quiet())


def inventory(**more: object) -> bytes:
    known = {"format": 1, "python": "3.11", "platform": "linux-x86_64", "glibc": "2.28"}
    return json.dumps({**known, "packages": [], **more}).encode()


def test_since_an_inventory(builder: Builder) -> None:
    full = builder.build()
    hashes = sorted(a.sha256 for a in full.index.artifacts if not a.path.endswith("note"))
    path = builder.file("i.json", inventory(bundle=full.index.digest, held=hashes))
    made = builder.build(path)
    assert made.index.base == full.index.digest
    assert shipped(made.index) == ["files/note"], "what counts is what the server has"
    path.write_bytes(inventory(held=hashes))
    made = builder.build(path)
    assert made.index.base is None, "nothing is in use there, and there are blobs"
    assert shipped(made.index) == ["files/note"]


def test_since_the_summary_of_an_inventory(builder: Builder) -> None:
    full = builder.build()
    (builder.data / "note").write_text("2", encoding="utf-8")
    second = builder.build()
    found = inventories.parse(inventory(bundle=full.index.digest, held=[]), "i")
    path = builder.file("s.txt", "\n".join(inventories.summary(found)).encode())
    made = builder.build(path)
    assert shipped(made.index) == ["SHA256SUMS", "sbom.cdx.json", "files/note"]
    assert made.index.base == full.index.digest
    # What any generation there holds is there.
    digests = (full.index.digest, second.index.digest)
    found = replace(found, bundles=digests)
    path.write_text("\n".join(inventories.summary(found)), encoding="utf-8")
    assert shipped(builder.build(path).index) == []
    builder.cache("other")
    with pytest.raises(UsageError, match="does not say which artifacts") as caught:
        builder.build(path)
    assert len(caught.value.problems) == 2, "bundles that were not built here"


@pytest.mark.parametrize(
    "data", [b"", b"hello", b"\xff\xfe\x00", b"a mirrored file", b"format = 1"]
)
def test_since_what_is_none_of_them(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "old"
    path.write_bytes(data)
    with pytest.raises(UsageError, match="old is no bundle, no lock and no inventory"):
        increments.of(path, bare(tmp_path))


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"{", "is no JSON"),
        (b"{" * 100_000, "is not an inventory"),
        (b" {}", "not an inventory of format 1"),
        (inventory(held=["x"]), "is not a sha256"),
        (b"MIRRORAAAAAAAA\nNOTHING\n", "was not copied as it stood"),
    ],
)
def test_since_an_inventory_that_is_wrong(tmp_path: Path, data: bytes, says: str) -> None:
    """Its own error is told: a line of a summary that was misread, say."""
    path = tmp_path / "old"
    path.write_bytes(data)
    with pytest.raises(UsageError, match=says) as caught:
        increments.of(path, bare(tmp_path))
    assert "--since" in caught.value.message


def test_since_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: Is a directory") as caught:
        increments.of(tmp_path, bare(tmp_path))
    assert "one of its volumes" in (caught.value.hint or "")


def test_an_old_bundle_that_a_person_hardly_meant_is_told(builder: Builder) -> None:
    other = builder.build(name="full.tar.gz").path
    assert other is not None
    text = MANIFEST.replace("name: demo", "name: another")
    build.build(builder.project(text), None, other)
    assert builder.told.warnings == [f"{other} is of another project, demo 1"]
    lock = builder.file("old.toml", (builder.folder / "m.lock.toml").read_bytes())
    text = MANIFEST.partition("wheels:")[0] + "files: [{path: note2, to: ./}]"
    builder.file("note2", b"new")
    blank = lock.read_text(encoding="utf-8").partition("[[")[0]
    lock.write_text(blank, encoding="utf-8")
    build.build(builder.project(text), None, lock)
    assert builder.told.warnings == [f"{lock} has none of these files: this is no increment"]


@pytest.mark.parametrize("kind", ["lock", "inventory", "summary"])
def test_a_large_file_is_compared_with_what_any_of_them_names(builder: Builder, kind: str) -> None:
    """The old version is in the builder's store; the server's newest is the one to compare with."""
    text = MANIFEST.partition("wheels:")[0] + "files: [{path: data/model.pt, to: ./}]"

    def made(version: int, since: Path | None = None) -> build.Built:
        with zipfile.ZipFile(builder.data / "model.pt", "w") as archive:
            for name, seed in (("frozen", 0), ("trained", version), ("half", version // 2)):
                member = zipfile.ZipInfo(name)  # of no time
                archive.writestr(member, random.Random(f"{name} {seed}").randbytes(2**20))
        return build.build(builder.project(text), None, since)

    full = [made(version) for version in (0, 1, 2)]
    blobs = builder.project(text).context.blobs
    for built in full:  # a plain file is not kept: what was fetched is
        [model] = built.index.of_kind("files")
        assert not blobs.has(model.sha256)
    for version, _built in enumerate(full):
        made(version)
        blobs.put((builder.data / "model.pt").read_bytes())
    held = sorted({a.sha256 for built in full for a in built.index.artifacts})
    digests = [built.index.digest for built in reversed(full)]
    found = inventories.parse(inventory(bundle=digests[0], bundles=digests, held=held), "i")
    spelled = {
        "lock": (builder.folder / "m.lock.toml").read_bytes(),
        "inventory": json.dumps(found.to_json()).encode(),
        "summary": "\n".join(inventories.summary(found)).encode(),
    }
    index = made(3, builder.file("old", spelled[kind])).index
    [delta] = index.of_kind("delta")
    assert delta.origin["base"] == full[2].index.of_kind("files")[0].sha256
    assert delta.size < 1.1 * 2**20


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with names")
def test_what_is_no_file_is_not_replaced(builder: Builder) -> None:
    pipe = builder.folder / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UsageError, match="it is no file") as caught:
        builder.build(name="pipe")
    assert caught.value.hint == "To a pipe: mirror build -o - > PIPE"
    assert pipe.is_fifo()


def test_since_an_inventory_of_no_root(tmp_path: Path) -> None:
    path = tmp_path / "i.json"
    path.write_bytes(inventory())
    with pytest.raises(UsageError, match="does not say which artifacts"):
        increments.of(path, bare(tmp_path))


def test_since_a_file_that_is_not_there_or_damaged(builder: Builder) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        builder.build(builder.folder / "gone")
    full = builder.build(name="full.tar.gz")
    assert full.path is not None
    cut = builder.file("cut.tar.gz", full.path.read_bytes()[:-1])
    with pytest.raises(BundleError, match="1 bytes short"):
        builder.build(cut)
    with pytest.raises(UsageError, match="cannot be written to"):
        builder.build(full.path, name="full.tar.gz")


def test_a_proof_is_made_once_for_a_set(builder: Builder) -> None:
    full = builder.build()
    (builder.data / "note").write_text("2", encoding="utf-8")
    builder.build(full.path)
    assert builder.told.steps[-1].endswith("without a network: files")
    builder.build()
    assert not any("wheels" in step for step in builder.told.steps), "a full one counts too"


def test_a_folder_is_looked_at_once_in_a_build(
    builder: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    scandir = os.scandir

    def counted(path: object) -> Any:
        looked.append(str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", counted)
    builder.build()
    assert looked.count(str(builder.data)) == 1
    (builder.data / "note").write_text("2", encoding="utf-8")
    assert builder.build().changed, "another build looks again"
    assert looked.count(str(builder.data)) == 2


def test_what_the_server_has_is_not_fetched(builder: Builder) -> None:
    """On a builder without a cache: the base's set of wheels was proved when that was built."""
    full = builder.build(name="full.tar.gz")
    (builder.data / "note").write_text("2", encoding="utf-8")
    build.lock(builder.project())
    cache = builder.cache("bare")
    for wheel in builder.shelf.glob("*.whl"):
        wheel.unlink()  # an index that has nothing any more
    made = builder.build(full.path)
    assert shipped(made.index) == ["SHA256SUMS", "sbom.cdx.json", "files/note"]
    wheels = {a.sha256 for a in made.index.of_kind("wheels") if a.path.endswith(".whl")}
    assert not [name for name in wheels if list(cache.rglob(name))]


def test_a_set_that_is_not_proved_is_read_whole(builder: Builder) -> None:
    full = builder.build(name="full.tar.gz")
    make_wheel(builder.shelf, "gamma", "1.0")
    text = MANIFEST.replace("[alpha]", "[alpha, gamma]")
    builder.cache("bare")
    project = builder.project(text)
    locked, _ = build.lock(project)
    assert full.path is not None
    base = increments.of(full.path, project.context)
    plan = build.make_plan(project, locked, None, base)
    assert "wheels/gamma-1.0-py3-none-any.whl" in shipped(plan.index)
    assert "wheels/alpha-1.0-py3-none-any.whl" not in shipped(plan.index)
    still = proof.outstanding(project, locked, plan.index, base)
    assert set(still.subjects) == {"wheels"}, "files ships none, and the tool is as it was"
    needed = {artifact.path for artifact in plan.needed(still)}
    assert "wheels/alpha-1.0-py3-none-any.whl" in needed
    assert "files/large" not in needed
    made = build.build(project, None, full.path)
    assert "wheels/alpha-1.0-py3-none-any.whl" not in shipped(made.index)


def test_a_dry_run_says_all_and_writes_nothing(builder: Builder) -> None:
    builder.cache("first")
    built = builder.build()
    cache = builder.cache("second")
    lock = builder.folder / "m.lock.toml"
    before = lock.read_bytes()
    seen = forecast.forecast(builder.project(), None, None)
    assert not cache.exists()
    assert (seen.lock, seen.built, seen.fits) == ("fresh", False, True)
    document = forecast.document(seen)
    assert isinstance(document, dict)
    assert document["digest"] == built.index.digest
    assert document["bytes"] == built.size
    kinds = {share.kind: share for share in seen.shares}
    assert {a.path for a in kinds["wheels"].missing} == {
        f"wheels/{name}-1.0-py3-none-any.whl" for name in ("alpha", "beta")
    }
    assert not kinds["files"].missing, "they lie beside the manifest"
    assert len(kinds["tool"].missing) == len(TOOL)
    # A stale lock is resolved, and stays as it is.
    (builder.data / "note").write_text("2", encoding="utf-8")
    seen = forecast.forecast(builder.project(), None, built.path)
    assert seen.lock == "stale"
    assert shipped(seen.plan.index) == ["SHA256SUMS", "sbom.cdx.json", "files/note"]
    assert lock.read_bytes() == before
    lock.unlink()
    assert forecast.forecast(builder.project(), None, None).lock == "missing"
    assert not lock.exists()
    text = "\n".join(forecast.lines(seen))
    assert "2 files" in text
    assert "would be written" in text


def test_a_dry_run_and_the_build_count_the_same(builder: Builder) -> None:
    builder.build(name="full.tar.gz")
    (builder.data / "note").write_text("2", encoding="utf-8")
    seen = forecast.forecast(builder.project(), None, builder.folder / "full.tar.gz")
    made = builder.build(builder.folder / "full.tar.gz")
    assert made.path is not None
    assert seen.plan.size == made.size == made.path.stat().st_size
    assert seen.plan.index == made.index
    assert forecast.forecast(builder.project(), None, builder.folder / "full.tar.gz").built


def test_room_is_checked_before_anything_is_fetched(tmp_path: Path, builder: Builder) -> None:
    project = builder.project()
    needs = build.supply.needs(project, 2**60, tmp_path, 2**61)
    assert [need.what for need in needs] == ["downloads and the bundle"], "one file system"
    with pytest.raises(MachineError, match="not enough room") as caught:
        build.supply.require_space(needs)
    assert len(caught.value.problems) == 1
    build.supply.require_space(build.supply.needs(project, 0, tmp_path, 1))
    assert build.supply.needs(project, 0, None, 2**61) == [], "a pipe takes no room"
