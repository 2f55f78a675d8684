"""This machine's cache of the Hub, as the Hub's client writes it, as an origin of repositories."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import constants, snapshot_download

from mirror.core.manifest import HubRepository, RepositoryItem
from mirror.ecosystems.models.source import Repositories
from mirror.ecosystems.source import Context, LocalHashes
from mirror.errors import DownloadError
from mirror.fetch.http import Request
from tests.hub import Hub
from tests.hub.hub import git_id
from tests.origins import FILES, MODELS, WEIGHTS, build, make_context, sha256, warnings

ITEM = HubRepository(repo="org/tiny", from_cache=True)
SECTION: list[RepositoryItem] = [ITEM]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        running.add_model("org/tiny", FILES)
        yield running


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return make_context(tmp_path)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the cache has org/tiny, if it does."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
    return tmp_path / "hf" / "models--org--tiny"


@pytest.fixture
def download(hub: Hub, folder: Path) -> Callable[[], str]:
    """Has the Hub's own client fill the cache; returns the commit, and forgets the requests."""

    def fill() -> str:
        found = snapshot_download("org/tiny", cache_dir=folder.parent, endpoint=hub.url)
        hub.seen.clear()
        return Path(found).name

    return fill


@pytest.fixture
def no_hub(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on, the Hub may not be asked."""
    return lambda: monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def blob(folder: Path, name: str) -> Path:
    data = FILES[name]
    return folder / "blobs" / (sha256(data) if data is WEIGHTS else git_id(data))


def damage(path: Path) -> None:
    """Another byte, the same size: what the Hub's client takes for right."""
    data = bytearray(path.read_bytes())
    data[0] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)


def test_what_is_there_and_right_is_not_downloaded(
    hub: Hub, context: Context, download: Callable[[], str], folder: Path
) -> None:
    plain = MODELS.resolve([HubRepository(repo="org/tiny")], make_context(context.folder / "other"))
    commit = download()
    artifacts = MODELS.resolve(SECTION, context)
    assert artifacts == plain  # wherever the bytes come from, one lock
    assert {a.text("commit") for a in artifacts} == {commit}
    places = MODELS.requests(artifacts, SECTION, context)
    assert all(isinstance(p, Path) and p.is_relative_to(folder / "blobs") for p in places)
    assert build(artifacts, SECTION, context) == FILES
    assert hub.gets("*/resolve/*") == []
    assert not any(context.blobs.has(a.sha256) for a in artifacts)  # nor copied
    assert warnings(context) == []


@pytest.mark.parametrize("layout", ["shared blobs", "no links", "blobs alone", "moved"])
def test_layouts(
    layout: str,
    hub: Hub,
    context: Context,
    download: Callable[[], str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if layout == "no links":  # as for most users of Windows
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_SYMLINKS", True)
    commit = download()
    snapshot = folder / "snapshots" / commit
    assert (snapshot / "config.json").is_symlink() == (layout != "no links")
    if layout == "shared blobs":
        share_blob(folder)
    elif layout == "blobs alone":  # of another commit with the same files
        shutil.rmtree(snapshot)
    elif layout == "moved":
        moved = folder.parent.rename(folder.parent.with_name("elsewhere"))
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(moved))
    artifacts = MODELS.resolve(SECTION, context)
    assert {a.text("commit") for a in artifacts} == {commit}
    assert build(artifacts, SECTION, context) == FILES
    assert hub.gets("*/resolve/*") == []


def share_blob(folder: Path) -> None:
    """Keep the weights as newer clients do: under a name that looks like their hash and is not."""
    shared = folder.parent / "blobs" / "ab" / ("ab" * 32)
    shared.parent.mkdir(parents=True)
    weights = blob(folder, "model.safetensors").rename(shared)
    place = blob(folder, "model.safetensors")
    place.symlink_to(os.path.relpath(weights, place.parent))


def test_a_lock_keeps_its_commit_and_a_new_one_takes_the_cache_s(
    hub: Hub, context: Context, download: Callable[[], str]
) -> None:
    repo = hub.repos["org/tiny"]
    first = MODELS.resolve(SECTION, context)
    repo.commit({**FILES, "config.json": b'{"second": 2}'}, "main")
    cached = download()
    repo.commit({**FILES, "config.json": b'{"third": 33}'}, "main")
    second = MODELS.resolve(SECTION, context)
    assert {a.text("commit") for a in second} == {cached}
    assert MODELS.resolve(SECTION, replace(context, kept=tuple(first))) == first
    assert build(first, SECTION, context) == FILES
    newest = repo.refs["main"]
    by_commit: list[RepositoryItem] = [ITEM.model_copy(update={"revision": newest})]
    assert {a.text("commit") for a in MODELS.resolve(by_commit, context)} == {newest}


def test_what_is_damaged_is_named_and_fetched(
    hub: Hub, context: Context, download: Callable[[], str], folder: Path
) -> None:
    download()
    for name in ("config.json", "model.safetensors"):
        damage(blob(folder, name))
    artifacts = MODELS.resolve(SECTION, context)
    said = "org/tiny: {} is damaged in this machine's cache; it is fetched"
    assert warnings(context) == [said.format("config.json")]
    assert build(artifacts, SECTION, context) == FILES
    assert warnings(context) == [said.format("model.safetensors")]
    asked = [seen.path.rpartition("/")[2] for seen in hub.gets("*/resolve/*")]
    assert sorted(asked) == ["config.json", "model.safetensors"]


def test_what_is_missing_is_fetched(
    hub: Hub, context: Context, download: Callable[[], str], folder: Path
) -> None:
    download()
    blob(folder, "config.json").unlink()
    blob(folder, "model.safetensors").write_bytes(WEIGHTS[:1000])  # as of a copy that was cut
    blob(folder, "deep/er/config.json").unlink()
    blob(folder, "deep/er/config.json").symlink_to(blob(folder, "deep/er/config.json").name)
    artifacts = MODELS.resolve(SECTION, context)
    assert build(artifacts, SECTION, context) == FILES
    asked = {seen.path.partition("/resolve/")[2][41:] for seen in hub.gets("*/resolve/*")}
    assert asked == {"config.json", "deep/er/config.json", "model.safetensors"}


def test_locked_here_and_built_where_there_is_no_cache(
    hub: Hub,
    context: Context,
    download: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    download()
    artifacts = MODELS.resolve(SECTION, context)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "nothing"))
    other = make_context(tmp_path / "other")
    assert all(isinstance(r, Request) for r in MODELS.requests(artifacts, SECTION, other))
    assert build(artifacts, SECTION, other) == FILES


def test_bytes_are_hashed_once(
    hub: Hub,
    context: Context,
    download: Callable[[], str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    download()
    artifacts = MODELS.resolve(SECTION, context)
    MODELS.requests(artifacts, SECTION, context)
    monkeypatch.setattr("mirror.ecosystems.source.hash_file", lambda path: pytest.fail(str(path)))
    remembered = replace(context, hashes=LocalHashes(context.blobs.folder / "local.json"))
    assert all(isinstance(p, Path) for p in MODELS.requests(artifacts, SECTION, remembered))


# The Hub cannot be asked


@pytest.mark.parametrize("layout", ["listed", "older client", "shared blobs", "no links"])
def test_without_the_hub_what_lies_there_is_taken(
    layout: str,
    hub: Hub,
    context: Context,
    download: Callable[[], str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    no_hub: Callable[[], None],
) -> None:
    plain = MODELS.resolve([HubRepository(repo="org/tiny")], make_context(context.folder / "other"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_SYMLINKS", layout == "no links")
    commit = download()
    if layout in ("older client", "shared blobs"):  # then the blobs' names alone say what is right
        shutil.rmtree(folder / "trees")
    if layout == "shared blobs":
        share_blob(folder)
    no_hub()
    artifacts = MODELS.resolve(SECTION, context)
    assert [(a.path, a.sha256, a.text("blob_id")) for a in artifacts] == [
        (a.path, a.sha256, a.text("blob_id")) for a in plain
    ]
    assert {(a.text("commit"), a.text("license")) for a in artifacts} == {(commit, "mit")}
    assert build(artifacts, SECTION, context) == FILES
    assert hub.seen == []
    [said] = warnings(context)
    assert said.startswith(f"org/tiny: commit {commit[:12]} is taken from this machine's cache")
    assert ("does not tell whether it has all" in said) == (not (folder / "trees").is_dir())


def test_a_hub_that_is_away(
    hub: Hub, context: Context, download: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    download()
    with Hub() as gone:
        monkeypatch.setenv("HF_ENDPOINT", gone.url)
    assert build(MODELS.resolve(SECTION, context), SECTION, context) == FILES
    said = warnings(context)[0]
    assert "cannot be reached" in said
    assert said.count("org/tiny") == 1


def test_what_neither_the_cache_nor_a_hub_has(
    hub: Hub, context: Context, no_hub: Callable[[], None]
) -> None:
    no_hub()
    with pytest.raises(DownloadError) as caught:
        MODELS.resolve(SECTION, context)
    assert caught.value.message.startswith("org/tiny: this machine's cache does not have main (HF_")
    assert str(caught.value.hint).startswith("Unset")


def test_without_the_hub_every_byte_has_to_be_right(
    hub: Hub,
    context: Context,
    download: Callable[[], str],
    folder: Path,
    no_hub: Callable[[], None],
) -> None:
    download()
    damage(blob(folder, "config.json"))
    damage(blob(folder, "model.safetensors"))
    blob(folder, "deep/er/config.json").unlink()
    no_hub()
    for _ in range(2):
        with pytest.raises(DownloadError) as caught:
            MODELS.resolve(SECTION, context)
        assert caught.value.message.startswith("org/tiny is not all in this machine's cache (HF_")
        assert caught.value.problems == (
            "config.json is damaged",
            "deep/er/config.json is missing",
            "model.safetensors is damaged",
        )
        assert caught.value.hint
        shutil.rmtree(folder / "trees", ignore_errors=True)  # the links tell the same


def test_what_is_damaged_after_locking_without_the_hub(
    hub: Hub,
    context: Context,
    download: Callable[[], str],
    folder: Path,
    no_hub: Callable[[], None],
) -> None:
    download()
    no_hub()
    artifacts = MODELS.resolve(SECTION, context)
    damage(blob(folder, "model.safetensors"))
    with pytest.raises(DownloadError) as caught:
        MODELS.requests(artifacts, SECTION, context)
    assert caught.value.problems == ("model.safetensors is missing or damaged",)
    assert caught.value.hint


def test_without_the_hub_a_part_is_enough_for_a_part(
    hub: Hub, context: Context, folder: Path, no_hub: Callable[[], None]
) -> None:
    snapshot_download(
        "org/tiny", cache_dir=folder.parent, endpoint=hub.url, ignore_patterns=["deep/*"]
    )
    no_hub()
    part: list[RepositoryItem] = [ITEM.model_copy(update={"exclude": ["deep/"]})]
    assert build(MODELS.resolve(part, context), part, context).keys() == FILES.keys() - {
        "deep/er/config.json"
    }
    with pytest.raises(DownloadError) as caught:
        MODELS.resolve(SECTION, context)
    assert caught.value.problems == ("deep/er/config.json is missing",)


def test_bytes_that_nothing_vouches_for(
    hub: Hub,
    context: Context,
    download: Callable[[], str],
    folder: Path,
    no_hub: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_SYMLINKS", True)
    commit = download()
    no_hub()
    listing = folder / "trees" / f"{commit}.json"
    for damaged in (b"", b"[]", b'{"format_version": 2, "files": {}}', b"[" * 100_000):
        listing.write_bytes(damaged)
        with pytest.raises(DownloadError) as caught:
            MODELS.resolve(SECTION, context)
        assert "config.json has no known hash" in caught.value.problems


@pytest.mark.parametrize("ref", [None, b"nonsense\n", b"\xff" * 40], ids=["none", "odd", "binary"])
def test_a_cache_without_the_revision(
    ref: bytes | None, hub: Hub, context: Context, folder: Path, no_hub: Callable[[], None]
) -> None:
    if ref:
        (folder / "refs").mkdir(parents=True)
        (folder / "refs" / "main").write_bytes(ref)
    artifacts = MODELS.resolve(SECTION, context)
    assert {a.text("commit") for a in artifacts} == {hub.repos["org/tiny"].refs["main"]}
    no_hub()
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE"):
        MODELS.resolve(SECTION, context)


@pytest.mark.parametrize("kind", ["datasets", "spaces"])
def test_other_kinds_have_folders_of_their_own(
    kind: str,
    hub: Hub,
    context: Context,
    download: Callable[[], str],
    folder: Path,
    no_hub: Callable[[], None],
) -> None:
    download()
    no_hub()
    with pytest.raises(DownloadError):
        Repositories(kind).resolve(SECTION, context)
    folder.rename(folder.with_name(f"{kind}--org--tiny"))
    artifacts = Repositories(kind).resolve(SECTION, context)
    assert {a.path for a in artifacts} == {f"{kind}/org/tiny/{name}" for name in FILES}
