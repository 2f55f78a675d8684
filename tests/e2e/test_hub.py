"""A model from a real third-party hub server (olah), to a server without a network.

olah needs an environment of its own: MIRROR_OLAH_PYTHON names its Python, else .venv-olah has it.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mirror.core.artifact import Artifact
from mirror.core.index import Entry, Index
from mirror.core.manifest import HubRepository, RepositoryItem
from mirror.core.progress import Quiet
from mirror.core.target import Target
from mirror.ecosystems.deploy import Site
from mirror.ecosystems.models import deploy
from mirror.ecosystems.models.source import Repositories
from mirror.ecosystems.source import Context
from mirror.errors import ResolutionError
from mirror.fetch import exchange
from mirror.fetch.exchange import Answer
from mirror.fetch.http import Fetcher, Request
from mirror.fetch.parts import LARGE
from mirror.store.blobs import Blobs
from mirror.store.generation import Generation
from tests.hub.hub import Hub, Repo, pointer

MODELS, DATASETS = Repositories("models"), Repositories("datasets")
REVISION = "/api/models/org/tiny/revision/main"
CHECKOUT = Path(__file__).parents[2]
TINY = CHECKOUT / "manifests" / "tiny-llama"
OLAH = Path(os.environ.get("MIRROR_OLAH_PYTHON") or CHECKOUT / ".venv-olah" / "bin" / "python")

_SERVE = """
import sys
from olah.server import main
sys.argv = ["olah-cli", *sys.argv[1:]]
main()
"""
_LOAD = """
import json, os, sys
from pathlib import Path

def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        os.write(2, f"{event}{arguments}".encode())
        os._exit(77)

sys.addaudithook(refuse)
from huggingface_hub import hf_hub_download, snapshot_download
from safetensors import safe_open
from tokenizers import Tokenizer

folder = snapshot_download("org/tiny")
assert snapshot_download("org/tiny", revision=sys.argv[1]) == folder
config = json.loads(Path(hf_hub_download("org/tiny", "config.json")).read_bytes())
with safe_open(hf_hub_download("org/tiny", "model.safetensors"), "np") as weights:
    shape = weights.get_slice("model.embed_tokens.weight").get_shape()
assert shape == [config["vocab_size"], config["hidden_size"]]
tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
assert tokenizer.decode(tokenizer.encode("no network").ids) == "no network"
print(folder)
"""


def git(repo: Path, *arguments: str) -> str:
    who = ["-c", "user.name=test", "-c", "user.email=test@example.invalid"]
    command = ["git", "-C", str(repo), *who, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def make_repository(folder: Path) -> str:
    """The tiny model as a git repository with its weights in LFS, by hand; returns the commit."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    for file in TINY.iterdir():
        data = file.read_bytes()
        if file.suffix == ".safetensors":
            name = hashlib.sha256(data).hexdigest()
            place = folder / ".git" / "lfs" / "objects" / name[:2] / name[2:4] / name
            place.parent.mkdir(parents=True)
            place.write_bytes(data)
            data = pointer(data)
        (folder / file.name).write_bytes(data)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "a model")
    return git(folder, "rev-parse", "HEAD")


@contextmanager
def olah(folder: Path, basic: str, accessibility: str, known: str) -> Iterator[str]:
    """olah at work in a folder, its URL.

    basic, accessibility: further lines of its configuration. known: a path that it answers when it
    has begun.
    """
    assert OLAH.is_file(), (
        f"{OLAH} is missing: `make` sets it up, or let MIRROR_OLAH_PYTHON name it"
    )
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    config = folder / "olah.toml"
    config.write_text(
        f"""[basic]
host = "127.0.0.1"
port = {port}
repos-path = "{folder / "repos"}"
{basic}

[accessibility]
{accessibility}
""",
        encoding="utf-8",
    )
    log = folder / "olah.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(OLAH), "-c", _SERVE, "--config", str(config), "--log-path", str(folder / "logs")],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
        )
    try:
        deadline = time.monotonic() + 60
        while not _answers(f"{url}{known}"):
            assert process.poll() is None, log.read_text(errors="replace")
            assert time.monotonic() < deadline, log.read_text(errors="replace")
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(20)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def test_a_model_from_olah(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = make_repository(tmp_path / "olah" / "models" / "org" / "tiny")
    context = context_in(tmp_path)
    blobs = context.blobs
    monkeypatch.delenv("HF_TOKEN", raising=False)
    folders = f'mirrors-path = ["{tmp_path / "olah"}"]'
    with olah(tmp_path / "olah", folders, "offline = true", REVISION) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        artifacts = locked_and_fetched(["org/tiny"], context)
        with pytest.raises(ResolutionError) as caught:
            MODELS.resolve(["org/missing", "org/tiny"], context)
        assert "org/missing" in caught.value.message
    expected = {f.name: f.read_bytes() for f in TINY.iterdir()}
    assert {a.text("file"): blobs.path(a.sha256).read_bytes() for a in artifacts} == expected
    assert {a.text("commit") for a in artifacts} == {commit}
    (weights,) = (a for a in artifacts if "blob_id" not in a.origin)
    assert weights.text("file") == "model.safetensors"

    generation = Generation(tmp_path / "root" / "generations" / "000001")
    generation.path.mkdir(parents=True)
    index = Index("x", "1", "1", "0" * 64, None, tuple(map(Entry, artifacts)))
    deploy.deploy(artifacts, Site(index, blobs, generation, Path("python"), Quiet()))
    shutil.rmtree(tmp_path / "olah")
    assert loaded_offline(generation, commit) == str(
        generation.hub / "models--org--tiny" / "snapshots" / commit
    )
    plain = generation.models / "org" / "tiny"
    assert {f.name: f.read_bytes() for f in plain.iterdir()} == expected


def test_a_dataset_through_olah(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """olah as a proxy before another Hub: large files come in ranges, and are resumed."""
    (tmp_path / "olah").mkdir()
    monkeypatch.delenv("HF_TOKEN", raising=False)
    files = {
        "train/big.parquet": random.Random(0).randbytes(LARGE + 5),
        "train/small.json": b"{}\n",
        "README.md": b"a dataset\n",
    }
    with Hub() as hub:
        commit = hub.add(Repo("org/corpus", kind="datasets"), files).refs["main"]
        there = hub.url.removeprefix("http://")
        upstream = f'hf-scheme = "http"\nhf-netloc = "{there}"\nhf-lfs-netloc = "{there}"'
        known = "/api/datasets/org/corpus/revision/main"
        with olah(tmp_path / "olah", upstream, "offline = false", known) as url:
            monkeypatch.setenv("HF_ENDPOINT", url)
            context = context_in(tmp_path)
            section: list[RepositoryItem] = [HubRepository(repo="org/corpus")]
            artifacts = DATASETS.resolve(section, context)
            requests = DATASETS.requests(artifacts, section, context)
            seen: list[tuple[int, bool]] = []
            ask = exchange.ask

            @contextmanager
            def noted(*arguments: Any, **named: Any) -> Iterator[Answer]:
                with ask(*arguments, **named) as answer:
                    seen.append((answer.start, answer.partial))
                    yield answer

            monkeypatch.setattr(exchange, "ask", noted)
            context.fetcher.fetch([r for r in requests if isinstance(r, Request)])
    places = {a.text("file"): context.blobs.path(a.sha256) for a in artifacts}
    assert {name: place.read_bytes() for name, place in places.items()} == files
    assert {a.text("commit") for a in artifacts} == {commit}
    assert len(seen) > 1
    assert all(partial for _, partial in seen)


def context_in(folder: Path) -> Context:
    blobs = Blobs(folder / "store")
    target = Target(python="3.11", platform="linux-x86_64")
    return Context(folder, target, blobs, Fetcher(blobs, Quiet()), Quiet())


def locked_and_fetched(section: list[RepositoryItem], context: Context) -> list[Artifact]:
    artifacts = MODELS.resolve(section, context)
    requests = MODELS.requests(artifacts, section, context)
    context.fetcher.fetch([r for r in requests if isinstance(r, Request)])
    MODELS.prove(artifacts, section, context)
    return artifacts


def loaded_offline(generation: Generation, commit: str) -> str:
    """Load by id and by commit in a process of its own, sockets refused; the snapshot's path."""
    keep = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    environment = {**keep, "HF_HUB_CACHE": str(generation.hub), "HF_HUB_OFFLINE": "1"}
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", _LOAD, commit],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()
