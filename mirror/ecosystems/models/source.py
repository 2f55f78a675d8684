"""Models, on the builder: from a Hub at one commit, or from a folder beside the manifest.

Every artifact is `models/REPO/FILE`, its origin {repo, revision, commit, file} and, for files that
git itself holds (not LFS), blob_id. A folder gets a commit too, made from its files, so that it
loads by id as a model from a Hub does.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from mirror.core.artifact import Artifact
from mirror.core.manifest import HubModel, LocalModel, ModelItem
from mirror.core.text import counted
from mirror.ecosystems.folders import files_in
from mirror.ecosystems.models import hub
from mirror.ecosystems.source import Context
from mirror.errors import MirrorError, ResolutionError, UsageError
from mirror.fetch.http import Request

KIND = "models"
#: One of these says what a repository is: of transformers, of diffusers, an adapter.
DESCRIPTIONS = ("config.json", "model_index.json", "adapter_config.json")
#: Ending of the files that say which shard holds which weight.
SHARD_INDEX = ".index.json"


def inputs(section: Sequence[ModelItem], context: Context) -> dict[str, str]:
    """The commit of each model that is a folder; a Hub's models are pinned by the lock alone."""
    found: dict[str, str] = {}
    problems = _Problems()
    for item in section:
        if isinstance(item, LocalModel):
            with problems.noted():
                found[f"model {item.name}"] = _local(item, context)[0].text("commit")
    problems.raise_all()
    return found


def resolve(section: Sequence[ModelItem], context: Context) -> list[Artifact]:
    """Every file of every model, with its sha256.

    Raises UsageError, ResolutionError or DownloadError that names all models which cannot be had.
    """
    found: list[Artifact] = []
    snapshots: list[tuple[HubModel, hub.Snapshot]] = []
    problems = _Problems()
    for item in _items(section):
        with problems.noted():
            if isinstance(item, LocalModel):
                found += _local(item, context)
            elif kept := _kept(item, context):
                found += kept
            else:
                snapshots.append((item, hub.snapshot(item.repo, item.revision)))
    problems.raise_all()
    sha256 = _read_small_files([snapshot for _, snapshot in snapshots], context)
    for item, snapshot in snapshots:
        found += (_artifact(item, snapshot.commit, file, sha256) for file in snapshot.files)
    _refuse_incomplete(found, section, context)
    return found


def requests(
    artifacts: Sequence[Artifact], section: Sequence[ModelItem], context: Context
) -> list[Request | Path]:
    """A folder's files are where they are; a Hub's are asked for by commit and sha256."""
    folders = _folders(section, context)

    def request(artifact: Artifact) -> Request | Path:
        repo, file = artifact.text("repo"), artifact.text("file")
        if repo in folders:
            return folders[repo] / file
        digest = f"sha256:{artifact.sha256}"
        return hub.request(repo, artifact.text("commit"), file, digest, artifact.size)

    return [request(artifact) for artifact in artifacts]


def derived(artifacts: Sequence[Artifact], context: Context) -> dict[str, bytes]:
    """Nothing: a model's files are all there is to it."""
    return {}


def prove(artifacts: Sequence[Artifact], section: Sequence[ModelItem], context: Context) -> None:
    """Each model says what it is, and every shard that one of its indexes names is there.

    Raises ResolutionError that names all that is missing, and who asks for it.
    """
    _refuse_incomplete(artifacts, section, context)


def _items(section: Sequence[ModelItem]) -> list[HubModel | LocalModel]:
    """The section's models in one shape. Raises UsageError for one that is there twice."""
    items = [HubModel(repo=item) if isinstance(item, str) else item for item in section]
    names = [item.name if isinstance(item, LocalModel) else item.repo for item in items]
    folded = [name.casefold() for name in names]
    if twice := sorted({n for n in names if folded.count(n.casefold()) > 1}):
        raise UsageError(
            "a model is in the manifest more than once", problems=twice, hint="Keep one of them."
        )
    return items


def _folders(section: Sequence[ModelItem], context: Context) -> dict[str, Path]:
    """Repository id -> folder, of the models that are folders."""
    locals_ = (item for item in section if isinstance(item, LocalModel))
    return {item.name: context.folder / item.path for item in locals_}


def _local(item: LocalModel, context: Context) -> list[Artifact]:
    """The files of a folder, never none. Raises UsageError when it cannot be carried."""
    folder = context.folder / item.path
    found: list[tuple[str, int, str]] = []
    for path, file in files_in(folder).items():
        if any(part.startswith(".") for part in path.split("/")[:-1]):
            continue  # what tools keep beside a model, such as .cache/huggingface
        try:
            found.append((path, *context.hashes.of(file)))
        except OSError as error:
            raise UsageError(f"{file} cannot be read: {error.strerror}") from None
    if not found:
        raise UsageError(f"the model {item.name} is empty: {folder} holds no files")
    listing = "".join(f"{path}\0{sha256}\n" for path, _, sha256 in found)
    commit = hashlib.sha1(listing.encode(), usedforsecurity=False).hexdigest()
    origin = {"repo": item.name, "revision": "main", "commit": commit}
    return [
        Artifact(KIND, f"models/{item.name}/{path}", size, sha256, origin={**origin, "file": path})
        for path, size, sha256 in found
    ]


def _kept(item: HubModel, context: Context) -> list[Artifact]:
    """What the previous lock has for the same repository and revision."""
    wanted = (KIND, item.repo, item.revision)
    return [a for a in context.kept if (a.kind, a.text("repo"), a.text("revision")) == wanted]


def _read_small_files(snapshots: Sequence[hub.Snapshot], context: Context) -> dict[str, str]:
    """git object id -> sha256 of the files for which the Hub does not give it.

    Has these files, and every index of shards, in the store.
    """
    wanted: dict[str, Request] = {}
    for snapshot in snapshots:
        for file in snapshot.files:
            if file.sha256 is None or file.path.endswith(SHARD_INDEX):
                known = file.sha256
                digest = f"sha256:{known}" if known else f"git-sha1:{file.blob_id}"
                wanted[file.blob_id] = hub.request(
                    snapshot.repo, snapshot.commit, file.path, digest, file.size
                )
    fetched = context.fetcher.fetch(list(wanted.values()), "reading the small files of models:")
    return {blob_id: blob.sha256 for blob_id, blob in zip(wanted, fetched, strict=True)}


def _artifact(item: HubModel, commit: str, file: hub.File, sha256: Mapping[str, str]) -> Artifact:
    origin = {
        "repo": item.repo,
        "revision": item.revision,
        "commit": commit,
        "file": file.path,
        **({} if file.sha256 else {"blob_id": file.blob_id}),
    }
    return Artifact(
        KIND,
        f"models/{item.repo}/{file.path}",
        file.size,
        file.sha256 or sha256[file.blob_id],
        origin=origin,
    )


def _refuse_incomplete(
    artifacts: Sequence[Artifact], section: Sequence[ModelItem], context: Context
) -> None:
    """Raises ResolutionError that names everything which the models lack."""
    folders = _folders(section, context)
    repos: dict[str, dict[str, Path]] = {}
    for a in artifacts:
        repo, file = a.text("repo"), a.text("file")
        place = folders[repo] / file if repo in folders else context.blobs.path(a.sha256)
        repos.setdefault(repo, {})[file] = place
    problems = [line for repo, files in repos.items() for line in _missing(repo, files)]
    if problems:
        raise ResolutionError(
            "models are incomplete: they would not load on the server",
            problems=problems,
            hint="Add what is missing where the model comes from, or choose another revision.",
        )


def _missing(repo: str, files: Mapping[str, Path]) -> Iterator[str]:
    if not any(name in files for name in DESCRIPTIONS):
        yield f"{repo} has no config.json: nothing could load it by its id"
    for name in files:
        if not name.endswith(SHARD_INDEX) or not files[name].is_file():
            continue  # an index of a model kept from the last lock may still have to be fetched
        try:
            shards = set(json.loads(files[name].read_bytes())["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError):
            yield f"{repo}: {name} is no index of shards: it has no weight_map"
            continue
        for shard in sorted(str(shard) for shard in shards):
            if posixpath.join(posixpath.dirname(name), shard) not in files:
                yield f"{repo} has no {shard}, which {name} asks for"


class _Problems:
    """What is wrong with each model, told in one go."""

    def __init__(self) -> None:
        self._errors: list[MirrorError] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Go on after an error inside."""
        try:
            yield
        except MirrorError as error:
            self._errors.append(error)

    def raise_all(self) -> None:
        """Raises what was noted: one error as it was, several as one of the gravest kind."""
        if not self._errors:
            return
        first = min(self._errors, key=lambda error: error.exit_code)
        if len(self._errors) == 1:
            raise first
        raise type(first)(
            f"{counted(len(self._errors), 'model')} cannot be had",
            problems=[line for e in self._errors for line in (e.message, *e.problems)],
            hint="\n".join(dict.fromkeys(e.hint for e in self._errors if e.hint)),
        )
