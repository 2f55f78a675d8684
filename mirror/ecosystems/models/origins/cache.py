"""This machine's own cache of the Hub as an origin: nothing is fetched that is there and right.

    CACHE/models--ORG--NAME/refs/REVISION          the commit that the revision named
                            snapshots/COMMIT/FILE  -> ../../blobs/ID; without links, the file itself
                            blobs/ID               the bytes, or a link to where several
                                                   repositories share them
                            trees/COMMIT.json      the Hub's listing, as newer clients keep it

ID is the sha256 of files in LFS, git's object id of others. The Hub's own client compares sizes
alone, so what lies in a cache is used only where it has the hash that the Hub states. When the Hub
cannot be asked, the listing or the IDs state it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mirror.core.artifact import Artifact
from mirror.core.manifest import HubRepository
from mirror.core.paths import shown
from mirror.ecosystems.models.origins import card, hub
from mirror.ecosystems.models.policy import selection
from mirror.ecosystems.models.repository import File, Snapshot
from mirror.ecosystems.source import Context
from mirror.errors import DownloadError
from mirror.fetch.http import Request
from mirror.store import git

_SHA256, _SHA1 = re.compile(r"[0-9a-f]{64}"), re.compile(r"[0-9a-f]{40}")


def snapshot(kind: str, item: HubRepository, commit: str, context: Context) -> Snapshot:
    """The files of the locked commit, else of the one that the cache knows the revision by.

    Listed by the Hub; where it cannot be asked, by the cache, whose files then have to be right.
    Raises what `hub.snapshot` does, DownloadError also for what the cache lacks.
    """
    cached = _Cached.of(kind, item)
    commit = commit or cached.commit(item.revision)
    try:
        known = hub.snapshot(kind, item, commit, context)
    except DownloadError as error:
        return _without_hub(kind, item, cached, commit, error, context)
    # Large files have their sha256 from the Hub; `requests` hashes those that are chosen.
    files = tuple(
        file if file.sha256 else _placed(file, known.commit, item, cached, context)
        for file in known.files
    )
    return replace(known, files=files)


def requests(
    kind: str, artifacts: Sequence[Artifact], item: HubRepository, context: Context
) -> list[Request | Path]:
    """The cache's file where its bytes are right, else the Hub's."""
    cached = _Cached.of(kind, item)
    places: list[Path | None] = []
    with context.progress.bar(f"checking {item.repo}", sum(a.size for a in artifacts)) as advance:
        for a in artifacts:
            file = File(a.text("file"), a.size, a.sha256, a.text("blob_id") or None)
            places.append(_placed(file, a.text("commit"), item, cached, context).place)
            advance(a.size)
    context.hashes.save()  # of all that is done here, hashing takes long
    wanted = [a for a, place in zip(artifacts, places, strict=True) if place is None]
    from_hub = iter(_from_hub(kind, wanted, item, context) if wanted else ())
    return [place or next(from_hub) for place in places]


def _from_hub(
    kind: str, artifacts: Sequence[Artifact], item: HubRepository, context: Context
) -> list[Request]:
    """As `hub.requests`, with an error that says why the Hub is needed."""
    try:
        return hub.requests(kind, artifacts, item, context)
    except DownloadError as error:
        lacking = (f"{shown(a.text('file'))} is missing or damaged" for a in artifacts)
        raise _not_all(item, error, [*error.problems, *lacking]) from None


def _not_all(item: HubRepository, error: DownloadError, problems: Sequence[str]) -> DownloadError:
    return DownloadError(
        f"{item.repo} is not all in this machine's cache ({_reason(item, error)})",
        problems=problems,
        hint=error.hint,
    )


def _reason(item: HubRepository, error: DownloadError) -> str:
    """The error's, without the name of the repository in front of it."""
    before, _, after = error.message.partition(": ")
    return after if before.endswith(item.repo) else error.message


def _without_hub(
    kind: str,
    item: HubRepository,
    cached: _Cached,
    commit: str,
    error: DownloadError,
    context: Context,
) -> Snapshot:
    """The snapshot as the cache has it: whole as far as it is carried, every byte right."""
    listed = cached.listed(commit) if commit else []
    files = cached.found(commit) if listed is None else listed
    if not files:
        raise DownloadError(
            f"{item.repo}: this machine's cache does not have {item.revision}"
            f" ({_reason(item, error)})",
            hint=error.hint,
        )
    places: dict[str, Path] = {}
    problems: list[str] = []
    for file in selection.choose(kind, item, files).files:
        there = cached.places(commit, file)
        if place := _right(file, there, context):
            places[file.path] = place
        else:
            known = file.sha256 or file.blob_id
            reason = "is missing" if not there else "is damaged" if known else "has no known hash"
            problems.append(f"{shown(file.path)} {reason}")
    if problems:
        raise _not_all(item, error, problems)
    doubt = ", which does not tell whether it has all files" if listed is None else ""
    context.progress.warn(
        f"{item.repo}: commit {commit[:12]} is taken from this machine's cache{doubt}"
        f" ({_reason(item, error)})"
    )
    placed = tuple(replace(file, place=places.get(file.path)) for file in files)
    return Snapshot(placed, commit, card.facts(placed))


@dataclass(frozen=True, slots=True)
class _Cached:
    """What the cache has of one repository. folder: it need not be there."""

    folder: Path

    @classmethod
    def of(cls, kind: str, item: HubRepository) -> _Cached:
        from huggingface_hub import constants

        return cls(Path(constants.HF_HUB_CACHE) / f"{kind}--{item.repo.replace('/', '--')}")

    def commit(self, revision: str) -> str:
        """What the revision named when the client asked last; empty when it never did."""
        if _SHA1.fullmatch(revision):
            return revision
        try:
            text = (self.folder / "refs" / revision).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            return ""
        return text if _SHA1.fullmatch(text) else ""

    def places(self, commit: str, file: File) -> list[Path]:
        """Where its bytes may be: files that are there, each once however many links lead to it."""
        names = [self.folder / "snapshots" / commit / file.path]
        names += [self.folder / "blobs" / id_ for id_ in (file.sha256, file.blob_id) if id_]
        there = (os.path.realpath(name) for name in names if os.path.isfile(name))
        return [Path(place) for place in dict.fromkeys(there)]

    def listed(self, commit: str) -> list[File] | None:
        """All files of a commit, as the client kept what the Hub said of it; None if it did not."""
        try:
            tree = json.loads((self.folder / "trees" / f"{commit}.json").read_bytes())
            if tree["format_version"] != 1:
                return None
            return [_listed(path, entry) for path, entry in sorted(tree["files"].items())]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def found(self, commit: str) -> list[File]:
        """The files that the snapshot has, with the hashes that their links tell."""
        snapshot = self.folder / "snapshots" / commit
        found = (Path(above, name) for above, _, names in os.walk(snapshot) for name in names)
        return [_linked(path.relative_to(snapshot).as_posix(), path) for path in sorted(found)]


def _listed(path: str, entry: Mapping[str, Any]) -> File:
    """A file of a listing in `trees`."""
    if sha256 := entry.get("lfs_sha256"):
        return File(path, entry["size"], sha256=_hash(_SHA256, sha256))
    return File(path, entry["size"], blob_id=_hash(_SHA1, entry["blob_id"]))


def _hash(form: re.Pattern[str], text: str) -> str:
    if not form.fullmatch(text):
        raise ValueError(text)
    return text


def _linked(path: str, place: Path) -> File:
    """A file of a snapshot, with the hash that the blob's name tells.

    The name is the first link's: the blob may be a further one, to a name that is no such hash.
    """
    size = place.stat().st_size if place.is_file() else 0
    target = Path(os.readlink(place)) if place.is_symlink() else Path()
    name = target.name if target.parent.name == "blobs" else ""
    if _SHA256.fullmatch(name):
        return File(path, size, sha256=name)
    return File(path, size, blob_id=name if _SHA1.fullmatch(name) else None)


def _placed(
    file: File, commit: str, item: HubRepository, cached: _Cached, context: Context
) -> File:
    """The file, with the place of its bytes where they are right; where they are not, said so."""
    there = cached.places(commit, file)
    place = _right(file, there, context)
    if there and place is None:
        context.progress.warn(
            f"{item.repo}: {shown(file.path)} is damaged in this machine's cache; it is fetched"
        )
    return replace(file, place=place)


def _right(file: File, places: Sequence[Path], context: Context) -> Path | None:
    """The first of the places whose bytes have the file's hash."""
    return next((place for place in places if _has_hash(place, file, context)), None)


def _has_hash(place: Path, file: File, context: Context) -> bool:
    try:
        if place.stat().st_size != file.size:
            return False
        if file.sha256:
            return context.hashes.of(place)[1] == file.sha256
        return git.object_id(place, file.size) == file.blob_id
    except OSError:
        return False  # what cannot be read is of no use
