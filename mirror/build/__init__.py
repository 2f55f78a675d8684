"""mirror lock and mirror build: manifest -> lock -> blobs -> proof -> bundle.

    locking.py     the lock
    increments.py  what a server has already
    record.py      what it was made from, and its bill of materials
    deltas.py      what is new in a large file that it has in another version
    supply.py      where the bytes are, and the room for them
    proof.py       that the sets are complete
    forecast.py    what a build would do

A build may be killed at any instant and run again: the lock is written whole, downloads go on where
they ended, what was proved is noted, and a bundle gets its name when it is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import mirror
from mirror.build import deltas, increments, record, supply
from mirror.build.increments import Base
from mirror.build.locking import lock, summary
from mirror.build.proof import Proof, outstanding
from mirror.bundle import beside, layout, writer
from mirror.bundle.splitting import Volumes, pack_volumes, require_sensible
from mirror.bundle.volumes import bundle_name, list_path, read_list
from mirror.core import index as indexes
from mirror.core.artifact import Artifact, Json
from mirror.core.index import SBOM_NAME, Entry, Index
from mirror.core.lock import Lock
from mirror.errors import BundleError, MachineError, UsageError
from mirror.project import SOURCES, Project
from mirror.store import atomic

if TYPE_CHECKING:
    from mirror.trust.signing import SigningKey

__all__ = ["Built", "Plan", "build", "is_built", "lock", "make_plan", "summary"]

#: A file; a descriptor (a pipe's) that takes the bundle; None: a file of the usual name.
Output: TypeAlias = "Path | int | None"


@dataclass(frozen=True, slots=True)
class Built:
    """A bundle that is there now; `changed` is False when it was there before.

    path: the file, or the list of its volumes; None when it went to a pipe.
    volumes: how many it is in, 1 when it is in one piece.
    """

    path: Path | None
    index: Index
    size: int
    changed: bool
    volumes: int = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """What a build makes: decided before anything is fetched or written.

    target: the file, or the descriptor. size: of the bundle, in bytes. derived: sha256 -> bytes of
    the members that follow from the lock. split: into volumes, which lie beside the target. keys:
    that sign it; size is without what they add.
    """

    index: Index
    target: Path | int
    size: int
    derived: dict[str, bytes]
    base: Base | None
    split: Volumes | None = None
    keys: tuple[SigningKey, ...] = ()

    @property
    def file(self) -> Path | None:
        """What is there when the bundle is: itself, or the list of its volumes."""
        if not isinstance(self.target, Path):
            return None
        return list_path(self.target) if self.split else self.target

    @property
    def volumes(self) -> int:
        """How many files the bundle is in."""
        return -(-self.size // self.split.size) if self.split else 1

    @property
    def room(self) -> int:
        """Bytes that it takes on the disk, recovery data and all."""
        share = self.split.recovery if self.split else 0
        return self.size + int(self.size * share / 100)

    def needed(self, proof: Proof) -> Collection[Artifact]:
        """Whose bytes are read: what is shipped, and what the proof looks into besides."""
        return {a.path: a for a in [*self.index.shipped, *proof.needs]}.values()


def build(
    project: Project,
    output: Output,
    since: Path | None = None,
    split: Volumes | None = None,
    keys: Sequence[SigningKey] = (),
) -> Built:
    """The project's bundle: locked, fetched, proved, packed and signed; nothing of it done twice.

    since: a bundle, a lock or an inventory that says what the server has; that is not shipped.
    split: into volumes, instead of one file. keys: to sign it with.
    """
    if isinstance(output, Path):
        _refuse_output(project, output, since)
    base = increments.of(since, project.context) if since else None
    progress, blobs = project.context.progress, project.context.blobs
    locked, changed = lock(project)
    if not changed:
        progress.step(f"the lock is fresh: {summary(locked.artifacts)}")
    plan = replace(make_plan(project, locked, output, base, split), keys=tuple(keys))
    if base:
        progress.step(f"since {base.source}: {base.summary(plan.index)}")
        if remark := base.remark(plan.index):
            progress.warn(remark)
    if is_built(project, plan):
        return _built(plan, changed=False)
    for key in keys:
        key.unlock()  # before long work, not after it
    for data in (*plan.derived.values(), plan.index.to_bytes()):  # the index: for increments
        blobs.put(data)
    [bill] = [a for a in plan.index.of_kind("bundle") if a.path == SBOM_NAME]
    record.keep_bill(project, locked, plan.index, plan.derived[bill.sha256])
    proof = outstanding(project, locked, plan.index, base)
    places = _fetch(project, plan, proof)
    proof.run()

    def locate(artifact: Artifact) -> Path:
        return places.get(artifact.sha256) or blobs.path(artifact.sha256)

    if base and deltas.make(plan.index, base, locate, blobs, progress):
        plan = replace(make_plan(project, locked, output, base, split), keys=tuple(keys))
        blobs.put(plan.index.to_bytes())
    _pack(project, plan, locate)
    return _built(plan, changed=True)


def _built(plan: Plan, *, changed: bool) -> Built:
    """What is there now; with signatures it is a little larger than planned."""
    size, volumes = plan.size, plan.volumes
    if plan.keys and plan.file and plan.split:
        known = read_list(plan.file)
        size, volumes = known.size, len(known.volumes)
    elif plan.keys and plan.file:
        size = plan.file.stat().st_size
    return Built(plan.file, plan.index, size, changed, volumes)


def make_plan(
    project: Project,
    locked: Lock,
    output: Output,
    base: Base | None,
    split: Volumes | None = None,
) -> Plan:
    """What a build makes of this lock. Writes nothing. Raises as `require_sensible` does."""
    derived = _derive(project, locked)
    index = _index(project, locked, list(derived))
    if base:
        index = base.increment(index, deltas.noted(index, base, project.context.blobs))
    indexes.parse(index.to_bytes())  # what no reader would accept is never written
    suffix = f"-{base.label}" if base else ""
    usual = Path("bundles") / f"{index.name}-{index.version}{suffix}.tar.gz"
    size = layout.bundle_size(index)
    if split:
        require_sensible(size, split)
    return Plan(
        index=index,
        target=usual if output is None else output,
        size=size,
        derived={artifact.sha256: data for artifact, data in derived.items()},
        base=base,
        split=split,
    )


def _refuse_output(project: Project, output: Path, since: Path | None) -> None:
    """Raises UsageError rather than write over what is no bundle, or over the base."""
    ours = [project.path, project.lock_path]
    if since:  # itself, or what its volumes' names begin with
        ours += [since, since.with_name(bundle_name(since.name) or since.name)]
    if output.exists() and not output.is_file():  # a folder, a device, a pipe with a name
        hint = "To a pipe: mirror build -o - > PIPE" if not output.is_dir() else None
        raise UsageError(f"a bundle cannot be written to {output}: it is no file", hint=hint)
    if any(output.absolute() == path.absolute() for path in ours):
        raise UsageError(f"a bundle cannot be written to {output}")
    if output.is_file() and output.stat().st_size:
        with open(output, "rb") as file:
            if file.read(2) != b"\x1f\x8b":
                raise UsageError(f"{output} is there, and is no bundle; it is not written over")


def _derive(project: Project, locked: Lock) -> dict[Artifact, bytes]:
    """Members that follow from the lock."""
    derived: dict[Artifact, bytes] = {}

    def add(kind: str, path: str, data: bytes) -> None:
        sha256 = hashlib.sha256(data).hexdigest()
        derived[Artifact(kind, path, len(data), sha256, executable=path.endswith(".sh"))] = data

    for kind, source, _ in project.sections():
        own = [artifact for artifact in locked.artifacts if artifact.kind == kind]
        for path, data in source.derived(own, project.context).items():
            add(kind, path, data)
    add("bundle", SBOM_NAME, record.bill(project, locked, list(derived)))
    sums = sorted((a.path, a.sha256) for a in [*locked.artifacts, *derived])
    add("bundle", "SHA256SUMS", "".join(f"{s}  {path}\n" for path, s in sums).encode())
    return derived


def _index(project: Project, locked: Lock, derived: Collection[Artifact]) -> Index:
    """Of the complete bundle."""
    manifest = project.manifest
    order = {kind: number for number, kind in enumerate(("bundle", *SOURCES))}
    artifacts = sorted([*locked.artifacts, *derived], key=lambda a: (order[a.kind], a.path))
    bound = manifest.wheels or manifest.conda
    return Index(
        name=manifest.name,
        version=manifest.version,
        tool=mirror.__version__,
        lock=locked.digest,
        target=locked.target if bound else None,
        verify=manifest.verify.model_dump(mode="json", exclude_none=True),
        entries=tuple(Entry(artifact) for artifact in artifacts),
        provenance=record.provenance(project),
    )


def _fetch(project: Project, plan: Plan, proof: Proof) -> dict[str, Path]:
    """Have all that is read on this machine, where there is room; sha256 -> where it is.

    What it does not name is in the store then.
    """
    blobs, needed = project.context.blobs, plan.needed(proof)
    shipped = {artifact.path for artifact in plan.index.shipped}
    if held := [a for a in needed if a.path not in shipped and not blobs.has(a.sha256, a.size)]:
        text = f"to prove the whole sets, what the server has is read too: {summary(held)}"
        project.context.progress.step(text)
    found = supply.find(project, needed)
    downloads = sum(request.size or 0 for request in found.downloads)
    folder = plan.target.parent if isinstance(plan.target, Path) else None
    supply.require_space(supply.needs(project, downloads, folder, plan.room))
    supply.fetch(project, found)
    return found.places


def _pack(project: Project, plan: Plan, locate: writer.Locate) -> None:
    progress, data = project.context.progress, plan.index.to_bytes()
    signature = _signature(plan, data)
    if isinstance(plan.target, Path):
        plan.target.parent.mkdir(parents=True, exist_ok=True)
        if plan.split:
            made = pack_volumes(plan.index, signature, locate, plan.target, plan.split, progress)
            _sign_list(plan, made.to_bytes())
        else:
            writer.pack_file(plan.index, signature, locate, plan.target, progress)
        if beside.drop_stale(plan.target, data):
            progress.step(f"removed {beside.path(plan.target)}: it signed an earlier build")
        _note_built(project, plan)
        return
    try:
        writer.pack(plan.index, signature, locate, plan.target, progress)
    except BrokenPipeError:
        raise MachineError(
            "what read the bundle from the pipe ended before the bundle did",
            hint="See what it said. To run both again costs no download.",
        ) from None


def _signature(plan: Plan, data: bytes) -> bytes:
    return b"".join(key.sign(data).armoured for key in plan.keys)


def _sign_list(plan: Plan, data: bytes) -> None:
    """Sign the list of volumes, so that each can be checked before the one with the index comes."""
    assert plan.file is not None  # noqa: S101 -- volumes are files
    if plan.keys:
        atomic.write(beside.path(plan.file), _signature(plan, data))
    else:
        beside.drop_stale(plan.file, data)


def is_built(project: Project, plan: Plan) -> bool:
    """Whether the target is the very file that was packed from this index, untouched since."""
    if plan.file is None:
        return False
    try:
        return bool(json.loads(_note(project, plan.file).read_bytes()) == _stamps(plan))
    except (OSError, ValueError, BundleError):
        return False


def _note_built(project: Project, plan: Plan) -> None:
    assert plan.file is not None  # noqa: S101 -- the caller has written it
    note = _note(project, plan.file)
    note.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(note, json.dumps(_stamps(plan)).encode())


def _note(project: Project, file: Path) -> Path:
    name = hashlib.sha256(os.fsencode(file.absolute())).hexdigest()
    return project.context.blobs.folder / "built" / name


def _stamps(plan: Plan) -> list[Json]:
    """What tells whether the files are as they were written. Raises OSError when one is gone."""
    assert plan.file is not None  # noqa: S101 -- the caller has asked
    files = [plan.file]
    if plan.split:
        known = read_list(plan.file)
        files += [plan.file.with_name(p.name) for p in (*known.volumes, *known.recovery)]
        files += [beside.path(plan.file)] if plan.keys else []
    stamps: list[Json] = [plan.index.digest]
    for file in files:
        status = file.stat()
        stamps += [status.st_size, status.st_mtime_ns, status.st_ino]
    split = [plan.split.size, plan.split.recovery] if plan.split else []
    return [*stamps, *split, *(key.public.fingerprint for key in plan.keys)]
