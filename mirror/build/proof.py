"""That each set of artifacts is complete for the target, shown once for every set."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mirror
from mirror.build.increments import Base
from mirror.build.locking import each
from mirror.core import index as indexes
from mirror.core.artifact import Artifact, Json
from mirror.core.index import Index
from mirror.core.lock import Lock
from mirror.ecosystems.source import Source
from mirror.project import Project

#: Whose proof reads all of its artifacts. Of the others, repositories fetch what theirs reads, and
#: a plain file is judged alone.
_WHOLE = ("tool", "conda", "wheels")


@dataclass(frozen=True, slots=True)
class Proof:
    """What of a bundle is still to be proved.

    notes: kind -> the file that will say it was. subjects: kind -> what is to be judged.
    """

    project: Project
    lock: Lock
    notes: Mapping[str, Path]
    subjects: Mapping[str, list[Artifact]]

    @property
    def needs(self) -> list[Artifact]:
        """The artifacts whose bytes it reads, whether the bundle ships them or not."""
        return [a for kind in _WHOLE for a in self.subjects.get(kind, ())]

    def run(self) -> None:
        """Show it, without a network. Raises as the sources do for what is not complete."""
        context = replace(self.project.context, resolved=self.lock.artifacts)

        def prove(kind: str, source: Source, section: Any) -> None:
            if kind not in self.subjects:
                return
            source.prove(self.subjects[kind], section, context)
            self.notes[kind].parent.mkdir(parents=True, exist_ok=True)
            self.notes[kind].touch()

        each(self.project, prove)
        if self.subjects:
            kinds = ", ".join(self.subjects)
            context.progress.step(f"proved complete for the target, without a network: {kinds}")


def outstanding(project: Project, lock: Lock, index: Index, base: Base | None) -> Proof:
    """What was proved neither here nor when the base was built: it is the same set, so it holds."""
    document = project.manifest.model_dump(mode="json")
    shipped = {artifact.path for artifact in index.shipped}
    notes: dict[str, Path] = {}
    subjects: dict[str, list[Artifact]] = {}

    def look(kind: str, source: Source, section: Any) -> None:
        artifacts = [a for a in lock.artifacts if a.kind == kind]
        if kind == "files":
            artifacts = [a for a in artifacts if a.path in shipped]
        read: Json = [
            mirror.__version__,
            kind,
            # The tool's section is the whole manifest, of which only its inputs matter.
            None if kind == "tool" else document[kind],
            dict(source.inputs(section, project.context)),
            lock.target.to_json(),
            [_to_json(a) for a in lock.artifacts if a.kind in (kind, "conda")],
            [a.path for a in artifacts],
        ]
        digest = hashlib.sha256(indexes.canonical(read)).hexdigest()
        note = project.context.blobs.folder / "proved" / digest
        if not (note.exists() or _was_proved(kind, index, base)):
            notes[kind], subjects[kind] = note, artifacts

    each(project, look)
    return Proof(project, lock, notes, subjects)


def _was_proved(kind: str, index: Index, base: Base | None) -> bool:
    """Whether the base holds the very same set, for the same machine. Wheels depend on conda's."""
    if base is None or base.index is None or base.index.target != index.target:
        return False
    return all(base.index.of_kind(k) == index.of_kind(k) for k in (kind, "conda"))


def _to_json(artifact: Artifact) -> Json:
    return [artifact.kind, artifact.path, artifact.sha256, dict(artifact.origin)]
