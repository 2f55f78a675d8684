"""What a bundle holds, by what has a name and a licence: packages, repositories, files.

A part is one wheel, one conda package, one revision of a repository, or one plain file. Members
that follow from the lock (SHA256SUMS, a channel's repodata) are of no part, but for mirror's own
wheel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mirror.core import licences
from mirror.core.artifact import Artifact

PACKAGES = ("tool", "wheels", "conda")
REPOSITORIES = ("models", "datasets", "spaces")
#: mirror itself, as the bundle carries it.
_OWN_WHEEL, _OWN_LICENCE = "tool/airgap_mirror-", "Apache-2.0"


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that a bundle holds.

    path: of its file, or of its folder, in the bundle; no two parts have the same.
    version: of a package; of a repository its commit; empty for a plain file.
    licence: an SPDX expression, or a name where it is none; empty when it is not known.
    """

    kind: str
    path: str
    name: str
    version: str
    licence: str
    artifacts: tuple[Artifact, ...]

    @property
    def size(self) -> int:
        """Its files together, in bytes."""
        return sum(artifact.size for artifact in self.artifacts)


def of(artifacts: Iterable[Artifact]) -> list[Part]:
    """The parts that these artifacts are of, in the order of their first files."""
    groups: dict[str, list[Artifact]] = {}
    for artifact in artifacts:
        if path := _path(artifact):
            groups.setdefault(path, []).append(artifact)
    return [_part(path, found) for path, found in groups.items()]


def _path(artifact: Artifact) -> str:
    """Of the part that the artifact is of; empty when it is of none."""
    if artifact.kind in REPOSITORIES:
        file = artifact.text("file")
        return artifact.path.removesuffix(f"/{file}") if file else artifact.path
    if artifact.kind in PACKAGES and not artifact.text("file"):
        return artifact.path if artifact.path.startswith(_OWN_WHEEL) else ""
    return artifact.path if artifact.kind in (*PACKAGES, "files") else ""


def _part(path: str, artifacts: list[Artifact]) -> Part:
    first = artifacts[0]
    licence = next(filter(None, map(_licence, artifacts)), "")
    if first.kind in REPOSITORIES:
        name, version = first.text("repo") or path, first.text("commit")
    elif path.startswith(_OWN_WHEEL):
        name, version, *_ = path.rpartition("/")[2].split("-")
        name, licence = name.replace("_", "-"), _OWN_LICENCE
    elif first.kind == "files":
        name, version = path.removeprefix("files/"), ""
    else:
        name, version = first.text("name") or path, first.text("version")
    return Part(first.kind, path, name, version, licence, tuple(artifacts))


def _licence(artifact: Artifact) -> str:
    """As its own metadata state it, in SPDX's spelling where that is one."""
    stated = artifact.text("license")
    record = artifact.origin.get("record")
    if not stated and isinstance(record, Mapping):
        stated = str(record.get("license") or "")
    return licences.known(stated)
