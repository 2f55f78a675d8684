"""mirror lock and mirror build: manifest -> lock -> blobs -> proof -> bundle."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from packaging.utils import canonicalize_name

import mirror
from mirror.bundle import layout, writer
from mirror.core import index as indexes
from mirror.core import lock as locks
from mirror.core import paths
from mirror.core.artifact import Artifact, Json
from mirror.core.index import Entry, Index
from mirror.core.lock import Lock
from mirror.core.text import counted, human_size
from mirror.ecosystems.source import Source
from mirror.errors import MirrorError, UsageError, together
from mirror.fetch.http import Request
from mirror.project import SOURCES, Project
from mirror.store import atomic

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Built:
    """A bundle that is there now; `changed` is False when it was there before."""

    path: Path
    index: Index
    size: int
    changed: bool


def lock(
    project: Project, *, check: bool = False, upgrade: Collection[str] | None = None
) -> tuple[Lock, bool]:
    """The project's lock, resolved again if missing or stale; and whether it was written.

    check: raise UsageError instead of resolving. upgrade: packages that may move although the lock
    is fresh, empty for all of them; everything else is kept where it still fits.
    """
    inputs, old = _inputs(project), _read_lock(project)
    project.context.hashes.save()
    if old and old.inputs == inputs and upgrade is None:
        return old, False
    if check:
        state = "older than what it was made from" if old else "missing"
        raise UsageError(
            f"the lock {project.lock_path} is {state}", hint=f"Run: mirror lock {project.path}"
        )
    context = replace(project.context, kept=_kept(old, upgrade))
    found: list[Artifact] = []

    def resolve(kind: str, source: Source, section: Any) -> None:
        artifacts = source.resolve(section, replace(context, resolved=tuple(found)))
        found.extend(artifacts)
        context.progress.step(f"resolved {kind}: {summary(artifacts)}")

    _each(project, resolve)
    if wrong := list(paths.problems(artifact.path for artifact in found)):
        raise UsageError("what the manifest asks for cannot stand in one bundle", problems=wrong)
    fresh = Lock(inputs=inputs, target=context.target, artifacts=tuple(found))
    context.hashes.save()
    if old and old.to_bytes() == fresh.to_bytes():
        return old, False
    atomic.write(project.lock_path, fresh.to_bytes())
    if old:
        for line in _moved(old, fresh):
            context.progress.step(line)
    written = _read_lock(project)
    assert written is not None  # noqa: S101 -- it was written just now
    return written, True


def build(project: Project, output: Path | None) -> Built:
    """The project's bundle: locked, fetched, proved and packed; nothing of it done twice."""
    if output is not None:
        _refuse_output(project, output)
    locked, changed = lock(project)
    if not changed:
        project.context.progress.step(f"the lock is fresh: {summary(locked.artifacts)}")
    derived = _derive(project, locked)
    index = _index(project, locked, derived)
    target = output or Path("bundles") / f"{index.name}-{index.version}.tar.gz"
    size = layout.bundle_size(index)
    if _is_built(project, index, target):
        return Built(target, index, size, changed=False)
    places = _fetch(project, locked, derived)
    _prove(project, locked, index)
    target.parent.mkdir(parents=True, exist_ok=True)
    writer.pack_file(
        index, b"", lambda artifact: places[artifact.sha256], target, project.context.progress
    )
    _note_built(project, index, target)
    return Built(target, index, size, changed=True)


def _refuse_output(project: Project, output: Path) -> None:
    """Raises UsageError rather than write over what is no bundle."""
    ours = (project.path, project.lock_path)
    if output.is_dir() or any(output.absolute() == path.absolute() for path in ours):
        raise UsageError(f"a bundle cannot be written to {output}")
    if output.is_file() and output.stat().st_size:
        with open(output, "rb") as file:
            if file.read(2) != b"\x1f\x8b":
                raise UsageError(f"{output} is there, and is no bundle; it is not written over")


def summary(artifacts: Sequence[Artifact]) -> str:
    """ "21 files, 12.3 MB" """
    size = human_size(indexes.total_size(artifacts))
    return f"{counted(len(artifacts), 'file')}, {size}"


def _kept(old: Lock | None, upgrade: Collection[str] | None) -> tuple[Artifact, ...]:
    """What of the previous lock is preferred. Raises UsageError for a name that is not in it."""
    if old is None or (upgrade is not None and not upgrade):
        return ()
    names = {canonicalize_name(name) for name in upgrade or ()}
    known = {_name(a) for a in old.artifacts}
    if unknown := sorted(names - known):
        raise UsageError("the lock has no such packages or models to upgrade", problems=unknown)
    return tuple(a for a in old.artifacts if _name(a) not in names)


def _name(artifact: Artifact) -> str:
    """What a person calls the package or the repository that it is of; empty for plain files."""
    return canonicalize_name(artifact.text("name") or artifact.text("repo"))


def _moved(old: Lock, fresh: Lock) -> Iterator[str]:
    """What became of each package, a line each: "torch 2.8.0 -> 2.9.0"."""
    before, after = (
        {(a.kind, _name(a), a.text("revision")): a for a in lock.artifacts if _name(a)}
        for lock in (old, fresh)
    )
    for key in sorted(before.keys() | after.keys()):
        states = [
            a and (a.text("version") or a.text("commit")[:12])
            for a in (before.get(key), after.get(key))
        ]
        if states[0] != states[1]:
            shown = key[1] if key[2] in ("", "main") else f"{key[1]} at {key[2]}"
            yield f"{shown} {states[0] or 'new'} -> {states[1] or 'gone'}"


def _inputs(project: Project) -> str:
    """Digest of everything that a resolution reads: it tells whether a lock is stale."""
    manifest, context = project.manifest, project.context
    # Without defaults: a key that a later version adds leaves every lock as fresh as it was. An
    # endpoint is a way to the Hub, as an address is: one lock serves through all of them.
    unread = {"name", "version", "verify", "target", "endpoint"}
    document = manifest.model_dump(mode="json", exclude=unread, exclude_defaults=True)

    def inputs(kind: str, source: Source, section: Any) -> Json:
        return [kind, dict(source.inputs(section, context))]

    read = _each(project, inputs)
    everything: Json = {"manifest": document, "target": context.target.to_json(), "read": read}
    return hashlib.sha256(indexes.canonical(everything)).hexdigest()


def _each(project: Project, ask: Callable[[str, Source, Any], T]) -> list[T]:
    """What each ecosystem answers. Raises the errors of all of them as one."""
    answers: list[T] = []
    failures: list[MirrorError] = []
    for kind, source, section in project.sections():
        try:
            answers.append(ask(kind, source, section))
        except MirrorError as error:
            failures.append(error)
    if failures:
        raise together(failures)
    return answers


def _read_lock(project: Project) -> Lock | None:
    try:
        data = project.lock_path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{project.lock_path} cannot be read: {error.strerror}") from None
    return locks.parse(data, str(project.lock_path))


def _of(locked: Lock, kind: str) -> list[Artifact]:
    return [artifact for artifact in locked.artifacts if artifact.kind == kind]


def _derive(project: Project, locked: Lock) -> list[Artifact]:
    """Members that follow from the lock, their bytes put into the store."""
    blobs = project.context.blobs
    derived = []

    def add(kind: str, path: str, data: bytes) -> None:
        derived.append(
            Artifact(kind, path, len(data), blobs.put(data), executable=path.endswith(".sh"))
        )

    for kind, source, _ in project.sections():
        for path, data in source.derived(_of(locked, kind), project.context).items():
            add(kind, path, data)
    sums = sorted((a.path, a.sha256) for a in [*locked.artifacts, *derived])
    add("bundle", "SHA256SUMS", "".join(f"{s}  {path}\n" for path, s in sums).encode())
    return derived


def _index(project: Project, locked: Lock, derived: Sequence[Artifact]) -> Index:
    manifest = project.manifest
    order = {kind: number for number, kind in enumerate(("bundle", *SOURCES))}
    artifacts = sorted([*locked.artifacts, *derived], key=lambda a: (order[a.kind], a.path))
    verify = manifest.verify.model_dump(mode="json", exclude_none=True)
    bound = manifest.wheels or manifest.conda
    index = Index(
        name=manifest.name,
        version=manifest.version,
        tool=mirror.__version__,
        lock=locked.digest,
        target=locked.target if bound else None,
        verify=verify,
        entries=tuple(Entry(artifact) for artifact in artifacts),
    )
    indexes.parse(index.to_bytes())  # what no reader would accept is never written
    return index


def _fetch(project: Project, locked: Lock, derived: Sequence[Artifact]) -> dict[str, Path]:
    """Have every artifact on this machine; returns where each is, by its sha256."""
    context = project.context
    places = {a.sha256: context.blobs.path(a.sha256) for a in [*locked.artifacts, *derived]}
    wanted: list[Request] = []
    for kind, source, section in project.sections():
        missing = [a for a in _of(locked, kind) if not context.blobs.has(a.sha256, a.size)]
        if not missing:
            continue
        for artifact, request in zip(
            missing, source.requests(missing, section, context), strict=True
        ):
            if isinstance(request, Path):
                places[artifact.sha256] = request
            else:
                wanted.append(request)
    if wanted:
        context.fetcher.fetch(wanted)
        context.progress.step(f"downloaded {counted(len(wanted), 'file')}")
    return places


def _prove(project: Project, locked: Lock, index: Index) -> None:
    """Show that each set is complete for the target; a set proved once is not proved again."""
    context = replace(project.context, resolved=locked.artifacts)
    note = context.blobs.folder / "proved" / index.digest
    if note.exists():
        return
    _each(project, lambda kind, source, section: source.prove(_of(locked, kind), section, context))
    context.progress.step("proved complete for the target, without a network")
    note.parent.mkdir(parents=True, exist_ok=True)
    note.touch()


def _is_built(project: Project, index: Index, target: Path) -> bool:
    """Whether `target` is the very file that was packed from this index, untouched since."""
    try:
        noted = json.loads(_note(project, target).read_bytes())
        return bool(noted == [index.digest, *_stamp(target)])
    except (OSError, ValueError):
        return False


def _note_built(project: Project, index: Index, target: Path) -> None:
    note = _note(project, target)
    note.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(note, json.dumps([index.digest, *_stamp(target)]).encode())


def _note(project: Project, target: Path) -> Path:
    name = hashlib.sha256(os.fsencode(target.absolute())).hexdigest()
    return project.context.blobs.folder / "built" / name


def _stamp(target: Path) -> list[int]:
    status = target.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ino]
