"""Repositories as an index has them, made on the spot."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from mirror.core.artifact import Artifact
from mirror.ecosystems.models.bundled import folder
from mirror.store.blobs import Blobs
from tests.hub.hub import git_id


def carried(
    blobs: Blobs,
    files: Mapping[str, bytes],
    *,
    kind: str = "models",
    repo: str = "org/tiny",
    revision: str = "main",
    default: bool = True,
    commit: str = "",
    lfs_from: int = 5000,
) -> list[Artifact]:
    """A revision with these files, their bytes in the store; those of `lfs_from` bytes in LFS."""
    text = "".join(f"{name} {git_id(data)}\n" for name, data in sorted(files.items()))
    commit = commit or hashlib.sha1(text.encode()).hexdigest()
    place = folder(kind, repo, revision, default=default)
    found = []
    for name, data in files.items():
        origin = {"repo": repo, "revision": revision, "commit": commit, "file": name}
        if len(data) < lfs_from:
            origin["blob_id"] = git_id(data)
        found.append(Artifact(kind, f"{place}/{name}", len(data), blobs.put(data), origin=origin))
    return found


def tree(folder: Path) -> dict[str, bytes | str]:
    """Every file below, links as their targets."""
    paths = (p for p in sorted(folder.rglob("*")) if p.is_symlink() or p.is_file())
    return {
        p.relative_to(folder).as_posix(): os.readlink(p) if p.is_symlink() else p.read_bytes()
        for p in paths
    }
