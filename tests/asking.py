"""What the tests of a Hub share: a builder's context that keeps what people are told."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from huggingface_hub import constants

from mirror.core.artifact import Artifact
from mirror.core.manifest import RepositoryItem
from mirror.core.progress import Quiet
from mirror.core.target import Target
from mirror.ecosystems.models.source import Repositories
from mirror.ecosystems.source import Context
from mirror.errors import MirrorError
from mirror.fetch.http import Fetcher, Patience, Request
from mirror.store.blobs import Blobs

MODELS = Repositories("models")
WEIGHTS = bytes(range(256)) * 40  # in LFS on the test hub: 5,000 bytes or more
FILES = {
    ".gitattributes": b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n",
    "README.md": b"# a model\n",
    "config.json": b"{}\n",
    "model.safetensors": WEIGHTS,
    "onnx/deep/model.onnx": WEIGHTS[::-1],
}


class Heard(Quiet):
    """A Progress that keeps every line."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def step(self, text: str) -> None:
        self.lines.append(text)

    detail = warn = step


def nobody(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Without the token and netrc of whoever runs the tests: FOLDER's count, if there are some."""
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(folder / "netrc"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "token"))


def make_context(folder: Path, patience: Patience | None = None, endpoint: str = "") -> Context:
    """A builder's, which gives up at once unless it is given patience."""
    blobs, progress = Blobs(folder / "store"), Heard()
    project = folder / "project"
    project.mkdir(parents=True, exist_ok=True)
    return Context(
        folder=project,
        target=Target(python="3.11", platform="linux-x86_64"),
        blobs=blobs,
        fetcher=Fetcher(blobs, progress, patience=patience or Patience(attempts=1)),
        progress=progress,
        endpoint=endpoint,
    )


def heard(context: Context) -> list[str]:
    """What a person was told."""
    assert isinstance(context.progress, Heard)
    return context.progress.lines


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def fetch(
    artifacts: Sequence[Artifact],
    section: Sequence[RepositoryItem],
    context: Context,
    source: Repositories = MODELS,
) -> None:
    """As a build does: have every byte in the store."""
    requests = source.requests(artifacts, section, context)
    context.fetcher.fetch([r for r in requests if isinstance(r, Request)])
    for artifact in artifacts:
        assert context.blobs.has(artifact.sha256, artifact.size)
        context.blobs.check(artifact.sha256)


def resolve(
    section: Sequence[RepositoryItem], context: Context, source: Repositories = MODELS
) -> list[Artifact]:
    """Lock, fetch and prove."""
    artifacts = source.resolve(section, context)
    fetch(artifacts, section, context, source)
    source.prove(artifacts, section, context)
    assert source.derived(artifacts, context) == {}
    return artifacts


def error(
    section: Sequence[RepositoryItem], context: Context, source: Repositories = MODELS
) -> MirrorError:
    """What locking ends with."""
    with pytest.raises(MirrorError) as caught:
        source.resolve(section, context)
    return caught.value
