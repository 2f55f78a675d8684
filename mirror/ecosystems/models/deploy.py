"""Models, on the server: one copy of the bytes, loadable by id, by commit and by plain path.

    hub/models--ORG--NAME/blobs/ID            hard link to the store's blob
                          snapshots/COMMIT/F  -> ../../blobs/ID
                          refs/main, refs/REV the commit, without a line feed
                          trees/COMMIT.json   the listing that newer clients check a snapshot by
    models/ORG/NAME                           -> the snapshot

The layout is huggingface_hub's cache, as its versions from 0.36 to 2.4 read it offline.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from mirror.core import paths
from mirror.core.artifact import Artifact
from mirror.ecosystems.deploy import Site
from mirror.errors import BundleError
from mirror.store import blobs

_OBJECT_ID = re.compile(r"[0-9a-f]{40}")


def deploy(artifacts: Sequence[Artifact], site: Site) -> None:
    """Lay out every model. Raises BundleError when an origin is none that mirror writes."""
    snapshots: dict[tuple[str, str], list[Artifact]] = {}
    for artifact in artifacts:
        _check(artifact)
        key = (artifact.text("repo"), artifact.text("commit"))
        snapshots.setdefault(key, []).append(artifact)
    for (repo, commit), files in snapshots.items():
        cache = site.generation.hub / f"models--{repo.replace('/', '--')}"
        snapshot = cache / "snapshots" / commit
        for artifact in files:
            blob = cache / "blobs" / _blob_name(artifact)
            if not blob.exists():  # two files of a repository may be equal
                blobs.place(site.blobs.path(artifact.sha256), blob)
            _link(snapshot / artifact.text("file"), blob)
        for revision in {"main", files[0].text("revision")} - {commit}:
            _write(cache / "refs" / revision, commit)
        listing = {artifact.text("file"): _tree_entry(artifact) for artifact in files}
        tree = {"format_version": 1, "files": dict(sorted(listing.items()))}
        _write(cache / "trees" / f"{commit}.json", json.dumps(tree, indent=1))
        _link(site.generation.models / repo, snapshot)


def _check(artifact: Artifact) -> None:
    """The index's paths were checked when it was read; its origins are checked here."""
    repo, file = artifact.text("repo"), artifact.text("file")
    sound = (
        artifact.path == f"models/{repo}/{file}"
        and repo.count("/") <= 1
        and paths.problem(artifact.text("revision")) is None
        and _OBJECT_ID.fullmatch(artifact.text("commit"))
        and _OBJECT_ID.fullmatch(artifact.text("blob_id", "0" * 40))
    )
    if not sound:
        raise BundleError(f"{paths.shown(artifact.path)}: its origin is no model's")


def _blob_name(artifact: Artifact) -> str:
    """What the Hub calls the bytes: git's object id, for LFS files their sha256."""
    return artifact.text("blob_id", artifact.sha256)


def _tree_entry(artifact: Artifact) -> dict[str, str | int]:
    """A file as the Hub's listing has it."""
    size, sha256 = artifact.size, artifact.sha256
    if blob_id := artifact.text("blob_id"):
        return {"size": size, "blob_id": blob_id}
    text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n"
    pointer = b"blob %d\0" % len(text) + text.encode()
    blob_id = hashlib.sha1(pointer, usedforsecurity=False).hexdigest()
    return {"size": size, "blob_id": blob_id, "lfs_sha256": sha256, "lfs_size": size}


def _link(path: Path, target: Path) -> None:
    """A relative link, so that the root can be moved, or mounted elsewhere."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
