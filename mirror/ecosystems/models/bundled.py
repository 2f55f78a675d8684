"""Repositories in a bundle: where each revision's files are, and which revisions there are.

KIND/ORG/NAME/FILE           of the revision that loads without one being named
KIND/ORG/NAME@REVISION/FILE  of each further revision
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mirror.core import paths
from mirror.core.artifact import Artifact
from mirror.errors import BundleError

KINDS = ("models", "datasets", "spaces")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_REPO = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")  # as manifests have it


def folder(kind: str, repo: str, revision: str, *, default: bool) -> str:
    """Where a bundle holds a repository's files."""
    return f"{kind}/{repo}" if default else f"{kind}/{repo}@{revision.replace('/', '--')}"


@dataclass(frozen=True, slots=True)
class Revision:
    """A revision of a repository, as far as a bundle carries it.

    kind: "models", "datasets" or "spaces". repo: what it is loaded by.
    name: the branch, the tag or the commit that the manifest names. commit: 40 hexadecimal digits.
    default: whether it is what loads where no revision is named.
    """

    kind: str
    repo: str
    name: str
    commit: str
    default: bool
    artifacts: tuple[Artifact, ...]

    @property
    def path(self) -> str:
        """Its folder, in a bundle as in a generation."""
        return folder(self.kind, self.repo, self.name, default=self.default)

    @property
    def files(self) -> dict[str, Artifact]:
        """By their paths in the repository."""
        return {artifact.text("file"): artifact for artifact in self.artifacts}

    @property
    def refs(self) -> tuple[str, ...]:
        """What names it on the server besides its commit."""
        names = (self.name, "main") if self.default else (self.name,)
        return tuple(name for name in dict.fromkeys(names) if name != self.commit)


def revisions(artifacts: Sequence[Artifact]) -> list[Revision]:
    """The revisions that these artifacts are of, in their order; other kinds are passed over.

    The index's paths were checked when it was read; its origins are checked here.
    Raises BundleError that names those which are none that mirror writes.
    """
    groups: dict[tuple[str, str, str, str, bool], list[Artifact]] = {}
    problems: list[str] = []
    for artifact in artifacts:
        if artifact.kind not in KINDS:
            continue
        if _is_sound(artifact):
            repo, name, commit = (artifact.text(key) for key in ("repo", "revision", "commit"))
            default = _is_at(artifact, default=True)
            groups.setdefault((artifact.kind, repo, name, commit, default), []).append(artifact)
        else:
            problems.append(f"{paths.shown(artifact.path)}: its origin is no repository's")
    found = [Revision(*key, tuple(files)) for key, files in groups.items()]
    problems = problems or list(paths.problems(revision.path for revision in found))
    if problems:
        raise BundleError("the index describes no repositories", problems=problems[:20])
    return found


def _is_sound(artifact: Artifact) -> bool:
    repo, name, commit, blob_id = (
        artifact.text(key) for key in ("repo", "revision", "commit", "blob_id")
    )
    return bool(
        _REPO.fullmatch(repo)
        and paths.problem(name) is None
        and _COMMIT.fullmatch(commit)
        and (name == commit or not _COMMIT.fullmatch(name))
        and ("blob_id" not in artifact.origin or _COMMIT.fullmatch(blob_id))
        and (_is_at(artifact, default=True) or _is_at(artifact, default=False))
    )


def _is_at(artifact: Artifact, *, default: bool) -> bool:
    """Whether the artifact's path is the one that its origin calls for."""
    repo, name, file = (artifact.text(key) for key in ("repo", "revision", "file"))
    return artifact.path == f"{folder(artifact.kind, repo, name, default=default)}/{file}"
