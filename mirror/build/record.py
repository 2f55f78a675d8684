"""What a bundle was made from, for its index, and its bill of materials."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

from mirror.build import sbom
from mirror.core import index as indexes
from mirror.core.artifact import Artifact
from mirror.core.index import Index, Provenance
from mirror.core.lock import Lock
from mirror.core.manifest import HubRepository
from mirror.errors import UsageError
from mirror.project import Project
from mirror.store import atomic


def provenance(project: Project) -> Provenance:
    """The manifest's digest, and the time that SOURCE_DATE_EPOCH gives. Raises UsageError."""
    digest = hashlib.sha256(project.path.read_bytes()).hexdigest()
    return Provenance(digest, source_date())


def bill(project: Project, locked: Lock, derived: Iterable[Artifact]) -> bytes:
    """The bill of materials; as it was kept, where it was. Writes nothing.

    derived: members that follow from the lock, mirror's wheel among them.
    Raises UsageError for a wrong SOURCE_DATE_EPOCH.
    """
    subject = _subject(project, locked, derived)
    try:
        return _note(project, subject).read_bytes()
    except OSError:
        return sbom.write(subject)


def keep_bill(project: Project, locked: Lock, index: Index, data: bytes) -> None:
    """Keep the bill of a bundle of this index: to write it anew takes longer than all the rest."""
    note = _note(project, _subject(project, locked, index.of_kind("tool")))
    note.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(note, data)


def _note(project: Project, subject: sbom.Subject) -> Path:
    return project.context.blobs.folder / "sboms" / subject.digest


def _subject(project: Project, locked: Lock, derived: Iterable[Artifact]) -> sbom.Subject:
    manifest = project.manifest
    hub = {
        (kind, item if isinstance(item, str) else item.id)
        for kind in ("models", "datasets", "spaces")
        for item in getattr(manifest, kind)
        if isinstance(item, str | HubRepository)
    }
    own = [a for a in derived if a.kind == "tool" and not a.origin]
    return sbom.Subject(
        name=manifest.name,
        version=manifest.version,
        lock=locked.digest,
        target=str(locked.target) if manifest.wheels or manifest.conda else "",
        artifacts=[*locked.artifacts, *own],
        hub=frozenset(hub),
        time=source_date(),
    )


def source_date() -> int | None:
    """Seconds since 1970 that SOURCE_DATE_EPOCH gives; None when it is not set.

    Raises UsageError when it holds anything else. The builder's clock has no say: two builds of
    one lock are the same bytes (reproducible-builds.org specifies the variable).
    """
    text = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not text:
        return None
    sound = text.isascii() and text.isdecimal() and len(text) <= 20
    if not sound or int(text) > indexes.MAX_TIME:
        raise UsageError(
            "SOURCE_DATE_EPOCH is no number of seconds since 1970",
            hint="For instance: SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)",
        )
    return int(text)
