"""Models: from a Hub or a folder to the lock, and from the store to a cache that loads offline."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from mirror.core.artifact import Artifact
from mirror.core.index import Entry, Index
from mirror.core.manifest import HubModel, LocalModel, ModelItem
from mirror.core.progress import Quiet
from mirror.core.target import Target
from mirror.ecosystems.deploy import Site
from mirror.ecosystems.models import deploy, source
from mirror.ecosystems.source import Context
from mirror.errors import BundleError, DownloadError, MirrorError, ResolutionError, UsageError
from mirror.fetch.http import Fetcher, Patience, Request
from mirror.store.blobs import Blobs
from mirror.store.generations import Generation
from tests.hub import Hub, Server, faults
from tests.hub.hub import git_id, pointer

TINY = Path(__file__).parents[2] / "manifests" / "tiny-llama"
WEIGHTS = bytes(range(256)) * 40  # in LFS on the test hub: 5,000 bytes or more
FILES = {
    ".gitattributes": b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n",
    "README.md": b"# a model\n",
    "config.json": b"{}\n",
    "model.safetensors": WEIGHTS,
    "onnx/deep/model.onnx": WEIGHTS[::-1],
}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub(page_size=2) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield running


@pytest.fixture
def context(tmp_path: Path) -> Context:
    blobs, progress = Blobs(tmp_path / "store"), Quiet()
    folder = tmp_path / "project"
    folder.mkdir()
    return Context(
        folder=folder,
        target=Target(python="3.11", platform="linux-x86_64"),
        blobs=blobs,
        fetcher=Fetcher(blobs, progress, patience=Patience(attempts=1)),
        progress=progress,
    )


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def fetch(artifacts: list[Artifact], section: list[ModelItem], context: Context) -> None:
    """As a build does: have every byte in the store (local files too, as an install has)."""
    requests = source.requests(artifacts, section, context)
    context.fetcher.fetch([r for r in requests if isinstance(r, Request)])
    for request in requests:
        if isinstance(request, Path):
            context.blobs.put(request.read_bytes())
    for artifact in artifacts:
        assert context.blobs.has(artifact.sha256, artifact.size)
        context.blobs.check(artifact.sha256)


def resolve(section: list[ModelItem], context: Context) -> list[Artifact]:
    artifacts = source.resolve(section, context)
    fetch(artifacts, section, context)
    source.prove(artifacts, section, context)
    assert source.derived(artifacts, context) == {}
    return artifacts


def error(section: list[ModelItem], context: Context) -> MirrorError:
    with pytest.raises(MirrorError) as caught:
        source.resolve(section, context)
    return caught.value


# From a Hub


def test_a_model_from_a_hub(hub: Hub, context: Context) -> None:
    repo = hub.add_model("org/tiny", FILES)
    commit = repo.refs["main"]
    artifacts = resolve(["org/tiny"], context)
    assert [a.path for a in artifacts] == [f"models/org/tiny/{name}" for name in FILES]
    assert [(a.size, a.sha256) for a in artifacts] == [
        (len(data), sha256(data)) for data in FILES.values()
    ]
    origin = {"repo": "org/tiny", "revision": "main", "commit": commit}
    assert artifacts[2].origin == {
        **origin,
        "file": "config.json",
        "blob_id": git_id(FILES["config.json"]),
    }
    assert artifacts[3].origin == {**origin, "file": "model.safetensors"}
    revisions = [s for s in hub.seen if "/revision/" in s.path]
    assert len(revisions) == 1  # resolved once; everything after that is by commit
    assert [s.path for s in hub.seen if s not in revisions and commit not in s.path] == []
    assert source.inputs(["org/tiny"], context) == {}


def test_small_files_are_read_when_locking_and_large_ones_are_not(
    hub: Hub, context: Context
) -> None:
    hub.add_model("org/tiny", FILES)
    source.resolve(["org/tiny"], context)
    read = {s.path.rpartition("/")[2] for s in hub.gets("*/resolve/*")}
    assert read == {".gitattributes", "README.md", "config.json"}


@pytest.mark.parametrize("revision", ["v1", "refs/pr/1", "branch", "commit"])
def test_revisions(hub: Hub, context: Context, revision: str) -> None:
    repo = hub.add_model("org/tiny", FILES)
    old = repo.commit({**FILES, "config.json": b'{"old": 1}'}, "v1", "refs/pr/1", "branch")
    revision = old if revision == "commit" else revision
    artifacts = resolve([HubModel(repo="org/tiny", revision=revision)], context)
    assert {a.text("commit") for a in artifacts} == {old}
    assert {a.text("revision") for a in artifacts} == {revision}


def test_what_moves_after_locking_stays_locked(hub: Hub, context: Context) -> None:
    repo = hub.add_model("org/tiny", FILES)
    locked = source.resolve(["org/tiny"], context)
    repo.commit({**FILES, "model.safetensors": WEIGHTS * 2}, "main")
    fetch(locked, ["org/tiny"], context)
    hub.seen.clear()
    assert source.resolve(["org/tiny"], replace(context, kept=tuple(locked))) == locked
    assert hub.seen == []
    moved = source.resolve(["org/tiny"], context)
    assert moved != locked
    other: list[ModelItem] = [HubModel(repo="org/tiny", revision=repo.refs["main"])]
    assert source.resolve(other, replace(context, kept=tuple(locked)))[3] != locked[3]


def test_names_that_need_quoting(hub: Hub, context: Context) -> None:
    files = {"config.json": b"{}", "a b/ü%20#?.txt": b"odd", "x+y.bin": WEIGHTS}
    hub.add_model("org/odd.name", files)
    assert {a.text("file") for a in resolve(["org/odd.name"], context)} == set(files)


def test_a_model_without_an_organization(hub: Hub, context: Context) -> None:
    hub.add_model("gpt2", FILES)
    assert resolve(["gpt2"], context)[0].path == "models/gpt2/.gitattributes"


def test_all_models_that_cannot_be_had_are_named(hub: Hub, context: Context) -> None:
    hub.add_model("org/fine", FILES)
    hub.add_model("org/gated", FILES, gated="right")
    hub.add_model("org/private", FILES, token="right")
    section: list[ModelItem] = [
        "org/missing",
        "org/fine",
        HubModel(repo="org/fine2", revision="v9"),
        "org/gated",
        "org/private",
        "a--b/c",  # no Hub allows --
    ]
    hub.add_model("org/fine2", FILES)
    found = error(section[:-1], context)
    assert isinstance(found, ResolutionError)
    host = hub.url.removeprefix("http://")
    assert found.problems == (
        f"org/missing: {host} has no such model, or shows it to others only",
        "org/fine2 has no revision 'v9'",
        "org/gated is gated, and this user may not download it",
        f"org/private: {host} has no such model, or shows it to others only",
    )
    for words in ("HF_TOKEN", "HF_ENDPOINT", "Accept its terms", "a branch, a tag or a commit"):
        assert words in str(found.hint)
    assert isinstance(error(section, context), UsageError)
    assert not hub.gets("*/resolve/*")  # nothing is downloaded before all can be had


def test_a_token_opens_and_is_never_told(
    hub: Hub, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.add_model("org/gated", FILES, gated="hf_secret")
    hub.add_model("org/private", FILES, token="hf_secret")
    section: list[ModelItem] = ["org/gated", "org/private"]
    artifacts = resolve(section, context)
    assert "hf_secret" not in repr(artifacts)
    assert "hf_secret" not in repr(source.requests(artifacts, section, context))
    for repo in hub.repos.values():
        repo.token = repo.gated = "hf_other"
    assert "hf_secret" not in str(error(section, context))


def test_a_gate_that_closes_after_locking(hub: Hub, context: Context) -> None:
    repo = hub.add_model("org/gated", FILES)
    artifacts = source.resolve(["org/gated"], context)
    repo.gated = "right"
    with pytest.raises(DownloadError) as caught:
        fetch(artifacts, ["org/gated"], context)
    assert "org/gated/model.safetensors: HTTP 401: Access to model org/gated" in str(caught.value)
    assert "HF_TOKEN" in str(caught.value.hint)


@pytest.mark.parametrize("code", [500, 429, 404, 403])
def test_a_hub_in_trouble(
    hub: Hub, context: Context, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.inject(faults.status(code))
    found = error(["org/tiny"], context)
    assert f"answers HTTP {code}" in found.message
    assert found.exit_code == (3 if code == 403 else 4)


@pytest.mark.parametrize("body", [b"<html>Please log in</html>", b"[]", b'{"sha": "main"}'])
def test_what_is_no_hub(hub: Hub, context: Context, body: bytes) -> None:
    hub.inject(faults.replace(body))
    found = error(["org/tiny"], context)
    assert isinstance(found, DownloadError)
    assert "does not answer as a Hub does" in found.message


def test_an_unreachable_hub(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://user:s3cret@127.0.0.1:1")
    found = error(["org/tiny", "org/other"], context)
    assert isinstance(found, DownloadError)
    assert "org/tiny: the Hub 127.0.0.1:1 cannot be reached" in found.problems[0]
    assert "HF_ENDPOINT" in str(found.hint)
    assert "s3cret" not in str(found)


def test_bytes_that_the_hub_spoils(hub: Hub, context: Context) -> None:
    hub.add_model("org/tiny", FILES)
    hub.inject(faults.corrupt(at=0), path="*/config.json")
    assert "git-sha1:" in str(error(["org/tiny"], context))
    hub.heal()
    artifacts = source.resolve(["org/tiny"], context)
    hub.inject(faults.corrupt(at=0), path="*.safetensors")
    with pytest.raises(DownloadError, match=r"org/tiny/model\.safetensors: the bytes that came"):
        fetch(artifacts, ["org/tiny"], context)


def test_large_files_come_from_another_origin_without_the_token(
    hub: Hub, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    commit = hub.add_model("org/tiny", FILES).refs["main"]
    with Server() as storage:
        storage.files[f"/org/tiny/resolve/{commit}/model.safetensors"] = WEIGHTS
        hub.inject(faults.redirect(storage.url), path="*.safetensors")
        resolve(["org/tiny"], context)
        assert all("authorization" not in s.headers for s in storage.seen)
        assert len(storage.seen) == 1


# Completeness


def index_of(*shards: str) -> bytes:
    return json.dumps({"weight_map": {f"w{n}": shard for n, shard in enumerate(shards)}}).encode()


def test_every_shard_must_be_there(hub: Hub, context: Context) -> None:
    shards = ("model-1-of-2.safetensors", "model-2-of-2.safetensors")
    whole = {
        "config.json": b"{}",
        "model.safetensors.index.json": index_of(*shards) + b" " * 6000,  # itself in LFS
        **dict.fromkeys(shards, WEIGHTS),
        "unet/diffusion.index.json": index_of("d.bin"),
        "unet/d.bin": b"",
    }
    hub.add_model("org/whole", whole)
    assert len(resolve(["org/whole"], context)) == 6
    hub.add_model("org/cut", {k: v for k, v in whole.items() if k not in (shards[1], "unet/d.bin")})
    hub.add_model("org/bare", {"model.safetensors": WEIGHTS, "x.index.json": b"[]"})
    found = error(["org/cut", "org/whole", "org/bare"], context)
    assert isinstance(found, ResolutionError)
    assert found.problems == (
        "org/cut has no model-2-of-2.safetensors, which model.safetensors.index.json asks for",
        "org/cut has no d.bin, which unet/diffusion.index.json asks for",
        "org/bare has no config.json: nothing could load it by its id",
        "org/bare: x.index.json is no index of shards: it has no weight_map",
    )


def test_a_lock_that_lacks_a_shard_is_not_proved(hub: Hub, context: Context) -> None:
    hub.add_model("org/a", {"config.json": b"{}", "m.index.json": index_of("s"), "s": WEIGHTS})
    artifacts = resolve(["org/a"], context)
    with pytest.raises(ResolutionError, match=r"org/a has no s, which m\.index\.json asks for"):
        source.prove([a for a in artifacts if a.text("file") != "s"], ["org/a"], context)


# From a folder


def test_a_model_from_a_folder(context: Context) -> None:
    folder = write(context.folder / "run7", FILES)
    junk = {".git/config": b"", ".cache/huggingface/x": b"", "a/__pycache__/b.pyc": b""}
    section: list[ModelItem] = [LocalModel(path="run7", name="our/run7")]
    artifacts = resolve(section, context)
    write(folder, {**junk, ".DS_Store": b""})
    assert source.resolve(section, context) == artifacts
    assert [a.path for a in artifacts] == [f"models/our/run7/{name}" for name in FILES]
    (commit,) = {a.text("commit") for a in artifacts}
    assert len(bytes.fromhex(commit)) == 20
    assert source.inputs(section, context) == {"model our/run7": commit}
    shutil.copytree(folder, context.folder / "copy")
    assert source.inputs([LocalModel(path="copy", name="x")], context) == {"model x": commit}
    write(folder, {"config.json": b"{ }"})
    assert source.inputs(section, context) != {"model our/run7": commit}


def test_a_snapshot_of_links_is_a_folder_too(context: Context) -> None:
    write(context.folder / "blobs", {"one": b"{}"})
    snapshot = context.folder / "snapshot"
    snapshot.mkdir()
    (snapshot / "config.json").symlink_to("../blobs/one")
    (artifact,) = resolve([LocalModel(path="snapshot", name="a/b")], context)
    assert (artifact.path, artifact.sha256) == ("models/a/b/config.json", sha256(b"{}"))


def test_what_is_wrong_with_folders_is_told_at_once(context: Context) -> None:
    (context.folder / "empty").mkdir()
    (context.folder / "broken").mkdir()
    (context.folder / "broken" / "config.json").symlink_to("nowhere")
    section: list[ModelItem] = [
        LocalModel(path=name, name=f"a/{name}") for name in ("missing", "empty", "broken")
    ]
    for call in (source.inputs, source.resolve):
        with pytest.raises(UsageError) as caught:
            call(section, context)
        for words in ("missing is missing", "holds no files", "config.json is a link to nothing"):
            assert words in str(caught.value)
    write(context.folder / "bare", {"model.safetensors": WEIGHTS})
    assert isinstance(error([LocalModel(path="bare", name="a/b")], context), ResolutionError)


def test_a_model_twice(context: Context) -> None:
    section: list[ModelItem] = ["a/b", LocalModel(path="x", name="A/b"), "c/d"]
    assert error(section, context).problems == ("A/b", "a/b")


# On the server


def a_site(artifacts: list[Artifact], blobs: Blobs, folder: Path) -> Site:
    index = Index("x", "1", "1", "0" * 64, None, tuple(map(Entry, artifacts)))
    folder.mkdir(parents=True)
    return Site(index, blobs, Generation(folder), Path("python"), Quiet())


def tree(folder: Path) -> dict[str, bytes | str]:
    """Every file below, links as their targets."""
    paths = (p for p in sorted(folder.rglob("*")) if p.is_symlink() or p.is_file())
    return {
        p.relative_to(folder).as_posix(): os.readlink(p) if p.is_symlink() else p.read_bytes()
        for p in paths
    }


def test_the_layout(hub: Hub, context: Context, tmp_path: Path) -> None:
    small, large = b"{}\n", WEIGHTS
    repo = hub.add_model("org/tiny", {"config.json": small, "d/w.bin": large, "d/same": large})
    commit = repo.refs["main"]
    repo.refs["v1"] = commit
    artifacts = resolve([HubModel(repo="org/tiny", revision="v1")], context)
    site = a_site(artifacts, context.blobs, tmp_path / "000001")
    deploy.deploy(artifacts, site)
    found = tree(site.generation.path)
    cache = "hub/models--org--tiny"
    listing = json.loads(found.pop(f"{cache}/trees/{commit}.json"))
    weights = {
        "size": len(large),
        "blob_id": git_id(pointer(large)),
        "lfs_sha256": sha256(large),
        "lfs_size": len(large),
    }
    assert listing == {
        "format_version": 1,
        "files": {
            "config.json": {"size": 3, "blob_id": git_id(small)},
            "d/same": weights,
            "d/w.bin": weights,
        },
    }
    assert found == {
        f"{cache}/blobs/{git_id(small)}": small,
        f"{cache}/blobs/{sha256(large)}": large,
        f"{cache}/refs/main": commit.encode(),
        f"{cache}/refs/v1": commit.encode(),
        f"{cache}/snapshots/{commit}/config.json": f"../../blobs/{git_id(small)}",
        f"{cache}/snapshots/{commit}/d/same": f"../../../blobs/{sha256(large)}",
        f"{cache}/snapshots/{commit}/d/w.bin": f"../../../blobs/{sha256(large)}",
        "models/org/tiny": f"../../{cache}/snapshots/{commit}",
    }
    blob = site.generation.path / cache / "blobs" / sha256(large)
    assert blob.samefile(context.blobs.path(sha256(large)))  # one copy of the bytes
    assert (site.generation.models / "org" / "tiny" / "d" / "w.bin").read_bytes() == large


_LOAD = """
import json, os, sys

def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        os.write(2, f"{event}{arguments}".encode())
        os._exit(77)

sys.addaudithook(refuse)
from huggingface_hub import hf_hub_download, snapshot_download
import huggingface_hub

repo, commit, revision, plain, files = json.loads(sys.argv[1])
folders = [snapshot_download(repo), snapshot_download(repo, revision=commit)]
folders += [snapshot_download(repo, revision=revision), plain]
for name, size in files.items():
    places = [hf_hub_download(repo, name), hf_hub_download(repo, name, revision=commit)]
    places += [os.path.join(folder, name) for folder in folders]
    real = {os.path.realpath(place) for place in places}
    assert len(real) == 1 and os.path.getsize(real.pop()) == size, (name, places)
print(huggingface_hub.__version__)
"""


def loads_offline(site: Site, artifacts: list[Artifact], python: str = sys.executable) -> str:
    """Load each file in all ways, with sockets refused; returns huggingface_hub's version."""
    one = artifacts[0]
    plain = str(site.generation.models / one.text("repo"))
    files = {a.text("file"): a.size for a in artifacts}
    what = [*(one.text(key) for key in ("repo", "commit", "revision")), plain, files]
    keep = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    environment = {**keep, "HF_HUB_CACHE": str(site.generation.hub), "HF_HUB_OFFLINE": "1"}
    command = [python, "-c", _LOAD, json.dumps(what)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


def test_it_loads_offline(hub: Hub, context: Context, tmp_path: Path) -> None:
    repo = hub.add_model("org/tiny", FILES)
    repo.refs["refs/pr/7"] = repo.refs["main"]
    artifacts = resolve([HubModel(repo="org/tiny", revision="refs/pr/7")], context)
    site = a_site(artifacts, context.blobs, tmp_path / "000001")
    deploy.deploy(artifacts, site)
    # Another Python with another version of huggingface_hub, to try by hand.
    assert loads_offline(site, artifacts, os.environ.get("MIRROR_TEST_HUB_PYTHON", sys.executable))


def test_a_folder_loads_offline(context: Context, tmp_path: Path) -> None:
    shutil.copytree(TINY, context.folder / "tiny")
    artifacts = resolve([LocalModel(path="tiny", name="demo/tiny-llama")], context)
    site = a_site(artifacts, context.blobs, tmp_path / "000001")
    deploy.deploy(artifacts, site)
    moved = site.generation.path.rename(tmp_path / "000002")
    site = replace(site, generation=Generation(moved))
    for folder in (moved, *(p for p in moved.rglob("*") if p.is_dir() and not p.is_symlink())):
        folder.chmod(0o555)
    try:
        assert loads_offline(
            site, artifacts, os.environ.get("MIRROR_TEST_HUB_PYTHON", sys.executable)
        )
    finally:
        for folder in [moved, *(p for p in moved.rglob("*") if not p.is_symlink())]:
            folder.chmod(0o755)


@pytest.mark.parametrize(
    "origin",
    [
        {"file": "../../../etc/passwd"},
        {"repo": "org/other"},
        {"commit": "main"},
        {"commit": "../" * 13 + "x"},
        {"revision": "../../../x"},
        {"revision": ""},
        {"blob_id": "../../../../x"},
        {"blob_id": ""},
        {"commit": 5},
    ],
)
def test_an_origin_that_leads_astray(
    context: Context, tmp_path: Path, origin: dict[str, str]
) -> None:
    sound = {"repo": "org/a", "file": "f", "commit": "0" * 40, "revision": "main"}
    artifact = Artifact("models", "models/org/a/f", 1, context.blobs.put(b"x"), origin=sound)
    site = a_site([artifact], context.blobs, tmp_path / "000001")
    with pytest.raises(BundleError, match="models/org/a/f"):
        deploy.deploy([replace(artifact, origin={**sound, **origin})], site)
    assert tree(site.generation.path) == {}
    deploy.deploy([artifact], site)


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
