"""What a bundle carries, without the origins that it comes from: for the rules about it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mirror.core.manifest import FolderRepository, HubRepository
from mirror.ecosystems.models.repository import Carried, Item
from mirror.store.blobs import Blobs
from tests import repositories


def an_item(repo: str = "org/tiny", **keys: Any) -> Item:
    """An item of a manifest, the one that loads without a revision."""
    if "path" in keys:
        return FolderRepository(name=repo, **keys)
    return HubRepository(**{"repo": repo, "default": True, **keys})


def a_carried(blobs: Blobs, item: Item, files: Mapping[str, Any]) -> Carried:
    """All these files of the item; what is no bytes or text is written as JSON."""
    known = {name: as_bytes(data) for name, data in files.items()}
    artifacts = repositories.carried(
        blobs, known, repo=item.id, revision=item.revision, default=item.default
    )
    places: dict[str, Path] = {a.path: blobs.path(a.sha256) for a in artifacts}
    return Carried(item, tuple(artifacts), places)


def as_bytes(data: Any) -> bytes:
    if isinstance(data, bytes):
        return data
    return (data if isinstance(data, str) else json.dumps(data)).encode()
