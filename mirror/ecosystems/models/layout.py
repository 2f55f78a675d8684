"""A cache of the Hub as values: what stands where, before anything is written.

    models--ORG--NAME/blobs/ID            the bytes; ID: git's object id, or the sha256 (LFS)
                      snapshots/COMMIT/F  -> ../../blobs/ID
                      trees/COMMIT.json   the listing that newer clients check a snapshot by
                      refs/REVISION       the commit, without a line feed; refs/main: the default
    datasets--ORG--NAME/, spaces--ORG--NAME/ alike

As huggingface_hub reads it offline, in its versions from 0.36 to 2.4. Several revisions of one
repository share its blobs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mirror.core import paths
from mirror.core.artifact import Artifact
from mirror.ecosystems.models.bundled import Revision
from mirror.errors import BundleError
from mirror.store import git
from mirror.store.blobs import Blobs


@dataclass(frozen=True, slots=True)
class Layout:
    """What a cache holds; every path is relative to its folder.

    blobs: an artifact with the bytes of each.
    links: of each file in a snapshot, the blob.
    trees: the text of each listing.
    refs: the commit of each.
    """

    blobs: Mapping[str, Artifact]
    links: Mapping[str, str]
    trees: Mapping[str, str]
    refs: Mapping[str, str]


def repository(revision: Revision) -> str:
    """Where a cache has all that it has of a repository."""
    return f"{revision.kind}--{revision.repo.replace('/', '--')}"


def snapshot(revision: Revision) -> str:
    """Where a cache has the files of a revision."""
    return f"{repository(revision)}/snapshots/{revision.commit}"


def layout(revisions: Sequence[Revision]) -> Layout:
    """The cache of these revisions.

    Raises BundleError where one name would have to stand for two things.
    """
    blobs: dict[str, Artifact] = {}
    links: dict[str, str] = {}
    refs: dict[str, str] = {}
    listings: dict[str, dict[str, Artifact]] = {}
    problems: list[str] = []
    for revision in revisions:
        home = repository(revision)
        for file, artifact in revision.files.items():
            blob = f"{home}/blobs/{_blob_name(artifact)}"
            first = blobs.setdefault(blob, artifact)  # two files of a repository may be equal
            if (first.sha256, first.size) != (artifact.sha256, artifact.size):
                problems.append(f"{artifact.path} and {first.path} differ under one name")
            link = f"{snapshot(revision)}/{file}"
            if links.setdefault(link, blob) != blob:
                problems.append(f"{artifact.path} is two files at one commit")
        for name in revision.refs:
            if refs.setdefault(f"{home}/refs/{name}", revision.commit) != revision.commit:
                problems.append(f"{revision.repo} has two commits that are {name}")
        listing = listings.setdefault(f"{home}/trees/{revision.commit}.json", {})
        listing.update(revision.files)
    problems += paths.problems([*links, *refs])
    if problems:
        raise BundleError("the index describes no repositories", problems=problems[:20])
    trees = {path: _tree(files) for path, files in listings.items()}
    return Layout(blobs, links, trees, refs)


def check_names(blobs: Mapping[str, Artifact], store: Blobs) -> None:
    """Raises BundleError when bytes are not those of git's object id that they go by.

    A cache keeps what goes by the right name for good; the sha256 of the index says nothing of it.
    """
    problems = [
        f"{artifact.path}: git's object id is not {artifact.text('blob_id')}"
        for artifact in blobs.values()
        if "blob_id" in artifact.origin
        and git.object_id(store.path(artifact.sha256), artifact.size) != artifact.text("blob_id")
    ]
    if problems:
        raise BundleError("the index describes no repositories", problems=problems[:20])


def _blob_name(artifact: Artifact) -> str:
    return artifact.text("blob_id", artifact.sha256)


def _tree(files: Mapping[str, Artifact]) -> str:
    """Exactly the files that are carried: a client takes one that is listed and absent for lost."""
    listing = {file: _tree_entry(files[file]) for file in sorted(files)}
    return json.dumps({"format_version": 1, "files": listing}, indent=1)


def _tree_entry(artifact: Artifact) -> dict[str, str | int]:
    """A file as the Hub's listing has it."""
    size, sha256 = artifact.size, artifact.sha256
    if blob_id := artifact.text("blob_id"):
        return {"size": size, "blob_id": blob_id}
    text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n"
    pointer = b"blob %d\0" % len(text) + text.encode()
    blob_id = hashlib.sha1(pointer, usedforsecurity=False).hexdigest()
    return {"size": size, "blob_id": blob_id, "lfs_sha256": sha256, "lfs_size": size}
