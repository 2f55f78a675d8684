"""Models, datasets and spaces, on the server: one copy of the bytes, by id, commit and plain path.

hub/                      a cache of the Hub (layout.py), its blobs linked to the store's
models/ORG/NAME           -> the default revision's snapshot
models/ORG/NAME@REVISION  -> the snapshot of a further one
datasets/, spaces/        alike
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from mirror.core.artifact import Artifact
from mirror.ecosystems.deploy import Site
from mirror.ecosystems.models.bundled import revisions
from mirror.ecosystems.models.layout import check_names, layout, snapshot
from mirror.store import blobs


def deploy(artifacts: Sequence[Artifact], site: Site) -> None:
    """Lay out every repository. Raises BundleError when an origin is none that mirror writes."""
    found = revisions(artifacts)
    cache, hub = layout(found), site.generation.hub
    check_names(cache.blobs, site.blobs)
    # Text, no Path objects: there may be a hundred thousand.
    for name, artifact in cache.blobs.items():
        blobs.place(site.blobs.name(artifact.sha256), f"{hub}/{name}")
    for name, blob in cache.links.items():
        _link(f"{hub}/{name}", f"{hub}/{blob}")
    for name, text in {**cache.trees, **cache.refs}.items():
        _write(hub / name, text)
    for revision in found:
        _link(f"{site.generation.path}/{revision.path}", f"{hub}/{snapshot(revision)}")


def _link(path: str, target: str) -> None:
    """A relative link, so that the root can be moved, or mounted elsewhere."""
    folder, name = os.path.split(target)
    text = f"{_way(os.path.dirname(path), folder)}/{name}"
    try:
        os.symlink(text, path)
    except FileNotFoundError:  # the first one in its folder
        os.makedirs(os.path.dirname(path), exist_ok=True)
        os.symlink(text, path)


@lru_cache(maxsize=64)
def _way(start: str, folder: str) -> str:
    return os.path.relpath(folder, start)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
