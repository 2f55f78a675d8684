"""mirror lock: manifest -> lock."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from packaging.utils import canonicalize_name

from mirror.core import index as indexes
from mirror.core import lock as locks
from mirror.core import paths
from mirror.core.artifact import Artifact, Json
from mirror.core.lock import Lock
from mirror.core.text import counted, human_size
from mirror.ecosystems.source import Source
from mirror.errors import MirrorError, UsageError, together
from mirror.project import Project
from mirror.store import atomic

T = TypeVar("T")


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
    fresh = _resolved(project, inputs, _kept(old, upgrade))
    project.context.hashes.save()
    if old and old.to_bytes() == fresh.to_bytes():
        return old, False
    atomic.sweep(project.lock_path)
    atomic.write(project.lock_path, fresh.to_bytes())
    if old:
        for line in _moved(old, fresh):
            project.context.progress.step(line)
    return fresh, True


def preview(project: Project) -> tuple[Lock, str]:
    """The lock that a build would use, and what the one on disk is: fresh, stale or missing.

    Writes no lock. Where it has to resolve, what resolving reads does go into the cache.
    """
    inputs, old = _inputs(project), _read_lock(project)
    if old and old.inputs == inputs:
        return old, "fresh"
    return _resolved(project, inputs, _kept(old, None)), "stale" if old else "missing"


def _resolved(project: Project, inputs: str, kept: tuple[Artifact, ...]) -> Lock:
    context = replace(project.context, kept=kept)
    found: list[Artifact] = []

    def resolve(kind: str, source: Source, section: Any) -> None:
        artifacts = source.resolve(section, replace(context, resolved=tuple(found)))
        found.extend(artifacts)
        context.progress.step(f"resolved {kind}: {summary(artifacts)}")

    each(project, resolve)
    if wrong := list(paths.problems(artifact.path for artifact in found)):
        raise UsageError("what the manifest asks for cannot stand in one bundle", problems=wrong)
    fresh = Lock(inputs=inputs, target=context.target, artifacts=tuple(found))
    return locks.parse(fresh.to_bytes(), str(project.lock_path))  # as it will be read


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

    read = each(project, inputs)
    everything: Json = {"manifest": document, "target": context.target.to_json(), "read": read}
    return hashlib.sha256(indexes.canonical(everything)).hexdigest()


def each(project: Project, ask: Callable[[str, Source, Any], T]) -> list[T]:
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
