"""Models, datasets and spaces on the server: from the store to a cache that loads offline."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mirror.core.artifact import Artifact, Json
from mirror.core.index import Entry, Index
from mirror.core.progress import Quiet
from mirror.core.target import Target
from mirror.ecosystems.deploy import Site
from mirror.ecosystems.models import deploy
from mirror.ecosystems.models.bundled import revisions
from mirror.ecosystems.models.source import Repositories
from mirror.ecosystems.source import Context
from mirror.errors import BundleError
from mirror.fetch.http import Fetcher, Request
from mirror.store.blobs import Blobs
from mirror.store.generation import Generation
from tests.hub import Hub
from tests.hub.hub import git_id, pointer
from tests.repositories import carried, tree

TINY = Path(__file__).parents[2] / "manifests" / "tiny-llama"
SMALL, LARGE = b"{}\n", bytes(range(256)) * 40
MODELS = Repositories("models")


@pytest.fixture
def blobs(tmp_path: Path) -> Blobs:
    return Blobs(tmp_path / "store")


def deployed(artifacts: list[Artifact], blobs: Blobs, folder: Path) -> Generation:
    """A generation with these, deployed as an install does: kind by kind."""
    index = Index("x", "1", "1", "0" * 64, None, tuple(map(Entry, artifacts)))
    generation = Generation(folder / "000001")
    generation.path.mkdir(parents=True)
    site = Site(index, blobs, generation, Path("python"), Quiet())
    for kind in ("models", "datasets", "spaces"):
        if own := index.of_kind(kind):
            deploy.deploy(own, site)
    return generation


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def refused(artifacts: list[Artifact], blobs: Blobs, folder: Path) -> BundleError:
    with pytest.raises(BundleError) as caught:
        deployed(artifacts, blobs, folder)
    assert tree(folder) == {}
    return caught.value


def test_the_layout(tmp_path: Path, blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """All the way from a Hub."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    target = Target(python="3.11", platform="linux-x86_64")
    context = Context(tmp_path, target, blobs, Fetcher(blobs, Quiet()), Quiet())
    with Hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        files = {"config.json": SMALL, "d/w.bin": LARGE, "d/same": LARGE}
        commit = hub.add_model("org/tiny", files).refs["main"]
        artifacts = MODELS.resolve(["org/tiny"], context)
        wanted = MODELS.requests(artifacts, ["org/tiny"], context)
        context.fetcher.fetch([r for r in wanted if isinstance(r, Request)])
    generation = deployed(artifacts, blobs, tmp_path / "root")
    found = tree(generation.path)
    cache = "hub/models--org--tiny"
    listing = json.loads(found.pop(f"{cache}/trees/{commit}.json"))
    weights = {
        "size": len(LARGE),
        "blob_id": git_id(pointer(LARGE)),
        "lfs_sha256": sha256(LARGE),
        "lfs_size": len(LARGE),
    }
    assert listing == {
        "format_version": 1,
        "files": {
            "config.json": {"size": 3, "blob_id": git_id(SMALL)},
            "d/same": weights,
            "d/w.bin": weights,
        },
    }
    assert found == {
        f"{cache}/blobs/{git_id(SMALL)}": SMALL,
        f"{cache}/blobs/{sha256(LARGE)}": LARGE,
        f"{cache}/refs/main": commit.encode(),
        f"{cache}/snapshots/{commit}/config.json": f"../../blobs/{git_id(SMALL)}",
        f"{cache}/snapshots/{commit}/d/same": f"../../../blobs/{sha256(LARGE)}",
        f"{cache}/snapshots/{commit}/d/w.bin": f"../../../blobs/{sha256(LARGE)}",
        "models/org/tiny": f"../../{cache}/snapshots/{commit}",
    }
    blob = generation.hub / "models--org--tiny" / "blobs" / sha256(LARGE)
    assert blob.samefile(blobs.path(sha256(LARGE)))  # one copy of the bytes
    assert (generation.models / "org" / "tiny" / "d" / "w.bin").read_bytes() == LARGE


def test_several_revisions_share_their_blobs(tmp_path: Path, blobs: Blobs) -> None:
    old, new, pull = "1" * 40, "2" * 40, "3" * 40
    config, other = {"config.json": SMALL, "w": LARGE}, {"config.json": b"[]", "w": LARGE}
    artifacts = [
        *carried(blobs, config, revision="v1", commit=old),
        *carried(blobs, other, revision="v2", commit=new, default=False),
        # Another name of the same commit, of which other files are carried.
        *carried(blobs, {"README.md": b"#"}, revision="stable", commit=new, default=False),
        *carried(blobs, other, revision="refs/pr/1", commit=pull, default=False),
        *carried(blobs, config, revision=pull, commit=pull, default=False, repo="org/by-commit"),
    ]
    generation = deployed(artifacts, blobs, tmp_path / "root")
    home = generation.hub / "models--org--tiny"
    assert {path.name for path in (home / "blobs").iterdir()} == {
        *(git_id(data) for data in (SMALL, b"[]", b"#")),
        sha256(LARGE),
    }
    assert tree(home / "refs") == {
        "main": old.encode(),
        "v1": old.encode(),
        "v2": new.encode(),
        "stable": new.encode(),
        "refs/pr/1": pull.encode(),
    }
    assert {
        path.relative_to(generation.models).as_posix(): path.resolve().name
        for path in generation.models.rglob("*")
        if path.is_symlink()
    } == {
        "org/tiny": old,
        "org/tiny@v2": new,
        "org/tiny@stable": new,
        "org/tiny@refs--pr--1": pull,
        f"org/by-commit@{pull}": pull,
    }
    listing = json.loads((home / "trees" / f"{new}.json").read_bytes())["files"]
    assert list(listing) == ["README.md", "config.json", "w"]
    assert {path.name for path in (home / "snapshots" / new).iterdir()} == set(listing)
    # A commit needs no ref, and what is no default is not main.
    assert not (generation.hub / "models--org--by-commit" / "refs").exists()


def test_datasets_and_spaces(tmp_path: Path, blobs: Blobs) -> None:
    artifacts = [
        *carried(blobs, {"config.json": SMALL}, repo="org/one"),
        *carried(blobs, {"train/a.parquet": LARGE}, kind="datasets", repo="org/one"),
        *carried(blobs, {"app.py": b"1"}, kind="spaces", repo="one"),
    ]
    generation = deployed(artifacts, blobs, tmp_path / "root")
    assert sorted(path.name for path in generation.hub.iterdir()) == [
        "datasets--org--one",
        "models--org--one",
        "spaces--one",
    ]
    assert (generation.datasets / "org" / "one" / "train" / "a.parquet").read_bytes() == LARGE
    assert (generation.spaces / "one" / "app.py").read_bytes() == b"1"
    assert [(r.kind, r.repo, r.path) for r in revisions(artifacts)] == [
        ("models", "org/one", "models/org/one"),
        ("datasets", "org/one", "datasets/org/one"),
        ("spaces", "one", "spaces/one"),
    ]


# Origins are hostile until they are checked


@pytest.mark.parametrize(
    "origin",
    [
        {"file": "../../../etc/passwd"},
        {"file": "../../x"},
        {"file": ""},
        {"repo": "org/other"},
        {"repo": "../org/a"},
        {"repo": ""},
        {"commit": "main"},
        {"commit": "0" * 39},
        {"commit": "../" * 13 + "x"},
        {"commit": 5},
        {"revision": "../../../x"},
        {"revision": "../x"},
        {"revision": ""},
        {"revision": "1" * 40},
        {"blob_id": "../../../../x"},
        {"blob_id": ""},
        {"blob_id": 7},
    ],
)
@pytest.mark.parametrize("path", ["models/org/a/f", "models/org/a@main/f"])
def test_an_origin_that_leads_astray(
    tmp_path: Path, blobs: Blobs, path: str, origin: dict[str, Json]
) -> None:
    sound = {"repo": "org/a", "file": "f", "commit": "0" * 40, "revision": "main"}
    artifact = Artifact("models", path, 1, blobs.put(b"x"), origin=sound)
    wrong = replace(artifact, origin={**sound, **origin})
    assert path in str(refused([wrong], blobs, tmp_path / "wrong"))
    deployed([artifact], blobs, tmp_path / "right")


@pytest.mark.parametrize(
    "path", ["datasets/org/a/f", "models/org/a/g", "models/a/f", "models/org/a@v2/f", "f"]
)
def test_a_path_that_is_not_its_origins(tmp_path: Path, blobs: Blobs, path: str) -> None:
    (artifact,) = carried(blobs, {"f": b"x"}, repo="org/a", revision="v1", default=False)
    assert path in str(refused([replace(artifact, path=path)], blobs, tmp_path / "root"))


def test_names_that_would_be_two_things(tmp_path: Path, blobs: Blobs) -> None:
    one, two = {"f": b"1"}, {"g": b"2"}
    cases: dict[str, list[Artifact]] = {
        # two defaults
        "are one file": carried(blobs, one) + carried(blobs, two, revision="v2"),
        # one path for two revisions
        "models/org/tiny@a--b": carried(blobs, one, revision="a/b", default=False)
        + carried(blobs, two, revision="a--b", default=False),
        "two commits that are main": carried(blobs, one, revision="v1")
        + carried(blobs, two, revision="main", default=False),
        "two files at one commit": carried(blobs, one, commit="0" * 40)
        + carried(blobs, {"f": b"2"}, commit="0" * 40, revision="v2", default=False),
        "is a file and also a folder": carried(blobs, {"a": b"1"}, commit="0" * 40)
        + carried(blobs, {"a/b": b"2"}, commit="0" * 40, revision="v2", default=False),
        "is a file and also a folder of 'models/org/name'": carried(blobs, one, repo="org")
        + carried(blobs, two, repo="org/name"),
    }
    for number, (words, artifacts) in enumerate(cases.items()):
        assert words in str(refused(artifacts, blobs, tmp_path / str(number)))


def test_a_false_object_id(tmp_path: Path, blobs: Blobs) -> None:
    """It would be believed in a cache for good."""
    true, other = carried(blobs, {"f": b"1", "g": b"2"})
    false = replace(true, origin={**true.origin, "blob_id": git_id(b"another file")})
    assert "models/org/tiny/f" in str(refused([false, other], blobs, tmp_path / "one"))
    both = replace(true, origin={**true.origin, "blob_id": other.text("blob_id")})
    assert "differ under one name" in str(refused([both, other], blobs, tmp_path / "two"))


def test_hostile_names_are_shown_harmless(tmp_path: Path, blobs: Blobs) -> None:
    artifact = Artifact("models", "models/\x1b[2J", 1, blobs.put(b"x"), origin={"repo": "\x1b"})
    assert str(refused([artifact], blobs, tmp_path / "root")).replace("\n", "").isprintable()


# The model that the project commits


def test_the_tiny_model_is_what_its_script_writes(tmp_path: Path) -> None:
    script = TINY.with_name("make_tiny_model.py")
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True)
    assert sum(path.stat().st_size for path in TINY.iterdir()) < 500_000
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    committed = {path.name: path.read_bytes() for path in TINY.iterdir()}
    assert made.keys() == committed.keys()
    tokenizers = [json.loads(files.pop("tokenizer.json")) for files in (made, committed)]
    assert made == committed
    assert tokenizers[0]["model"]["vocab"] == tokenizers[1]["model"]["vocab"]
