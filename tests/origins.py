"""What the tests of local origins share: a builder's context that notes what people are told."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from mirror.core.artifact import Artifact
from mirror.core.manifest import RepositoryItem
from mirror.core.progress import Quiet
from mirror.core.target import Target
from mirror.ecosystems.models.source import Repositories
from mirror.ecosystems.source import Context, LocalHashes
from mirror.fetch.http import Fetcher, Patience, Request
from mirror.store.blobs import Blobs

MODELS = Repositories("models")
CARD = b"---\nlicense: mit\n---\n# a model\n"
WEIGHTS = bytes(range(256)) * 40  # in LFS on the test hub: 5,000 bytes or more
FILES = {
    "README.md": CARD,
    "config.json": b"{}\n",
    "deep/er/config.json": b"[]\n",
    "model.safetensors": WEIGHTS,
}


class Heard(Quiet):
    """A Progress that keeps the warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def warn(self, text: str) -> None:
        self.warnings.append(text)


def make_context(folder: Path) -> Context:
    """A builder's; `context.folder` is FOLDER/project, which is there."""
    blobs, progress = Blobs(folder / "store"), Heard()
    project = folder / "project"
    project.mkdir(parents=True)
    return Context(
        folder=project,
        target=Target(python="3.11", platform="linux-x86_64"),
        blobs=blobs,
        fetcher=Fetcher(blobs, progress, patience=Patience(attempts=1)),
        progress=progress,
        hashes=LocalHashes(folder / "store" / "local.json"),
    )


def warnings(context: Context) -> list[str]:
    """What a person was told since this was asked last."""
    assert isinstance(context.progress, Heard)
    heard, context.progress.warnings = context.progress.warnings, []
    return heard


def write(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def build(
    artifacts: Sequence[Artifact], section: Sequence[RepositoryItem], context: Context
) -> dict[str, bytes]:
    """As a build does, have every byte that the lock names; the files by their names."""
    missing = [a for a in artifacts if not context.blobs.has(a.sha256, a.size)]
    places = {a.sha256: context.blobs.path(a.sha256) for a in artifacts}
    wanted = []
    for artifact, place in zip(missing, MODELS.requests(missing, section, context), strict=True):
        if isinstance(place, Request):
            wanted.append(place)
        else:
            places[artifact.sha256] = place
    context.fetcher.fetch(wanted)
    found = {a.text("file"): places[a.sha256].read_bytes() for a in artifacts}
    assert {a.text("file"): a.sha256 for a in artifacts} == {
        name: sha256(data) for name, data in found.items()
    }
    return found
