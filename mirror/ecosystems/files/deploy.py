"""Plain files, on the server: GENERATION/files/..., as the manifest placed them."""

from __future__ import annotations

from collections.abc import Sequence

from mirror.core import paths
from mirror.core.artifact import Artifact
from mirror.ecosystems.deploy import Site
from mirror.errors import BundleError
from mirror.store import blobs


def deploy(artifacts: Sequence[Artifact], site: Site) -> None:
    """Put every file in its place, executable where it was.

    Raises BundleError for one whose place is another ecosystem's.
    """
    for artifact in artifacts:
        if not artifact.path.startswith("files/"):
            raise BundleError(f"{paths.shown(artifact.path)} is no place for a plain file")
        # Text, no Path objects: there may be a hundred thousand.
        target = f"{site.generation.path}/{artifact.path}"
        blobs.place(site.blobs.name(artifact.sha256), target, executable=artifact.executable)
