"""Models, datasets and spaces, on the server: one copy of the bytes, by id, commit and plain path.

hub/                      a cache of the Hub (layout.py), its blobs linked to the store's
models/ORG/NAME           -> the default revision's snapshot
models/ORG/NAME@REVISION  -> the snapshot of a further one
datasets/, spaces/        alike
"""

from __future__ import annotations

import os
from collections.abc import Sequence
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
    for path, artifact in cache.blobs.items():
        blobs.place(site.blobs.path(artifact.sha256), hub / path)
    for path, blob in cache.links.items():
        _link(hub / path, hub / blob)
    for path, text in {**cache.trees, **cache.refs}.items():
        _write(hub / path, text)
    for revision in found:
        _link(site.generation.path / revision.path, hub / snapshot(revision))


def _link(path: Path, target: Path) -> None:
    """A relative link, so that the root can be moved, or mounted elsewhere."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(os.path.relpath(target, path.parent))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
