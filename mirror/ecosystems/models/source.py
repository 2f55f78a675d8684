"""Repositories on the builder: at one commit, chosen, checked against their origin, complete.

Every artifact's origin holds {repo, revision, commit, file}, blob_id for files that git itself
holds (not LFS), and the facts of its snapshot (license, gated, ...).

    origins/    where the files come from: hub, cache, folder, packaged
    policy/     selection: which of them are carried
                pickles: what loading one would run
                completeness: whether what is carried would load
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from mirror.core.artifact import Artifact
from mirror.core.manifest import (
    FolderRepository,
    HubRepository,
    RepositoryItem,
    WheelRepository,
)
from mirror.core.paths import shown
from mirror.core.progress import Progress, Quiet
from mirror.ecosystems.models import bundled, repository
from mirror.ecosystems.models.origins import cache, folder, hub, packaged
from mirror.ecosystems.models.policy import completeness, pickle_files, pickles, selection
from mirror.ecosystems.models.repository import Carried, File, Item, Origin, Snapshot
from mirror.ecosystems.source import Context, locate
from mirror.errors import MirrorError, UsageError, together
from mirror.fetch.http import Request

#: How many repositories a Hub is asked for at once.
_AT_ONCE = 8


@dataclass(frozen=True, slots=True)
class Repositories:
    """The source of one kind: "models", "datasets" or "spaces"."""

    kind: str

    def inputs(self, section: Sequence[RepositoryItem], context: Context) -> Mapping[str, str]:
        """The commit of each folder; what a Hub or an index has is pinned by the lock alone."""
        items = [item for item in _items(section) if isinstance(item, FolderRepository)]
        found = self._snapshots(items, context, Quiet())
        return {f"{self.kind} {item.id}": s.commit for item, s in zip(items, found, strict=True)}

    def resolve(self, section: Sequence[RepositoryItem], context: Context) -> list[Artifact]:
        """Every file of every repository, with its sha256.

        Raises UsageError, ResolutionError or DownloadError that names everything which cannot be
        had, may not be carried, or is missing.
        """
        items = _items(section)
        snapshots = self._snapshots(items, context, context.progress)
        sha256 = self._small_files(items, snapshots, context)
        found = [
            _artifact(self.kind, item, snapshot, file, sha256)
            for item, snapshot in zip(items, snapshots, strict=True)
            for file in snapshot.files
        ]
        return self._checked(found, section, context)

    def requests(
        self, artifacts: Sequence[Artifact], section: Sequence[RepositoryItem], context: Context
    ) -> list[Request | Path]:
        """Where the bytes are: in a folder, in a cache of this machine, in a wheel, on a Hub.

        Raises the errors of all items as one.
        """
        found: dict[str, Request | Path] = {}
        failures: list[MirrorError] = []
        groups = _grouped(artifacts)
        for item in _items(section):
            own = groups[_key(item)]
            try:
                places = _origin(item).requests(self.kind, own, item, context) if own else []
                found |= {a.path: place for a, place in zip(own, places, strict=True)}
            except MirrorError as error:
                failures.append(error)
        if failures:
            raise together(failures)
        return [found[artifact.path] for artifact in artifacts]

    def derived(self, artifacts: Sequence[Artifact], context: Context) -> dict[str, bytes]:
        """Nothing: a repository's files are all there is to it."""
        return {}

    def prove(
        self, artifacts: Sequence[Artifact], section: Sequence[RepositoryItem], context: Context
    ) -> None:
        """Each would load from what is carried, and no pickle runs what nobody has allowed.

        Raises ResolutionError that names all that is missing, and who asks for it.
        """
        # What a person should know was told when this was locked.
        self._checked(artifacts, section, replace(context, progress=Quiet()))

    def _checked(
        self, artifacts: Sequence[Artifact], section: Sequence[RepositoryItem], context: Context
    ) -> list[Artifact]:
        """The artifacts, each pickle with what a scan found; or an error for what is wrong."""
        items = _items(section)
        wanted = [
            a
            for a in artifacts
            if pickle_files.is_pickle(a.text("file")) or completeness.reads(a.text("file"))
        ]
        places = self._have(wanted, section, context)
        groups = _grouped(artifacts)
        carried = [Carried(item, tuple(groups[_key(item)]), places) for item in items]
        failures: list[MirrorError] = []
        judged: list[Artifact] = []
        try:
            judged = pickles.judged(carried, context)
        except MirrorError as error:
            failures.append(error)
        try:
            completeness.check(self.kind, carried, context)
        except MirrorError as error:
            failures.append(error)
        if failures:
            raise together(failures)
        return judged

    def _have(
        self, artifacts: Sequence[Artifact], section: Sequence[RepositoryItem], context: Context
    ) -> dict[str, Path]:
        """Path in the bundle -> where the bytes are on this machine, fetched if they were not."""
        ask = partial(self.requests, section=section, context=context)
        places, downloads = locate(artifacts, context.blobs, ask)
        context.fetcher.fetch(downloads, f"reading {self.kind}:")
        return {a.path: places.get(a.sha256) or context.blobs.path(a.sha256) for a in artifacts}

    def _snapshots(self, items: Sequence[Item], context: Context, tell: Progress) -> list[Snapshot]:
        """What is chosen of each repository, each with a commit; a Hub is asked in parallel.

        tell: of what is left out.
        Raises the errors of all of them as one.
        """
        pool = ThreadPoolExecutor(_AT_ONCE)
        try:
            asks = [
                partial(_origin(item).snapshot, self.kind, item, commit, context)
                for item, commit in zip(items, self._locked(items, context), strict=True)
            ]
            futures = [
                pool.submit(ask) if isinstance(item, HubRepository) else None
                for item, ask in zip(items, asks, strict=True)
            ]
            found: list[Snapshot] = []
            failures: list[MirrorError] = []
            for item, ask, future in zip(items, asks, futures, strict=True):
                try:
                    whole = future.result() if future else ask()
                    chosen = selection.choose(self.kind, item, whole.files)
                    for remark in chosen.remarks:
                        tell.step(f"{repository.label(item)}: {remark}")
                    for doubt in chosen.doubts:
                        tell.warn(f"{repository.label(item)}: {doubt}")
                    files = _hashed(item, chosen.files, context)
                    commit = whole.commit or repository.made_commit(files)
                    found.append(replace(whole, files=files, commit=commit))
                except MirrorError as error:
                    failures.append(error)
        except BaseException:  # such as Ctrl-C: nobody waits for the others
            hub.stop(context)
            raise
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        if failures:
            raise together(failures)
        return found

    def _locked(self, items: Sequence[Item], context: Context) -> list[str]:
        """The commit that the previous lock has for each, empty where there is none."""
        kept = _grouped(a for a in context.kept if a.kind == self.kind)
        return [next((a.text("commit") for a in kept[_key(item)]), "") for item in items]

    def _small_files(
        self, items: Sequence[Item], snapshots: Sequence[Snapshot], context: Context
    ) -> dict[str, str]:
        """git's object id -> sha256 of the files for which no origin gives it; fetches them."""
        wanted: dict[str, Request] = {}
        for item, snapshot in zip(items, snapshots, strict=True):
            unknown = [file for file in snapshot.files if file.sha256 is None]
            if unknown and isinstance(item, HubRepository):
                for file in unknown:
                    wanted[file.digest] = hub.request(
                        self.kind, item, snapshot.commit, file, context
                    )
        fetched = context.fetcher.fetch(list(wanted.values()), f"reading {self.kind}:")
        return {digest: blob.sha256 for digest, blob in zip(wanted, fetched, strict=True)}


def _items(section: Iterable[RepositoryItem]) -> list[Item]:
    """The section's items in one shape, the default of each repository marked.

    Raises UsageError for what is there twice, or has several revisions and no default.
    """
    items = [HubRepository(repo=item) if isinstance(item, str) else item for item in section]
    groups: dict[str, list[Item]] = {}
    for item in items:
        groups.setdefault(item.id.casefold(), []).append(item)
    problems = [line for group in groups.values() if (line := _ambiguous(group))]
    problems += [
        f"{group[0].id} lies in the folder of {groups[above][0].id}: they cannot both be there"
        for name, group in groups.items()
        if "/" in name and (above := name.split("/")[0]) in groups
    ]
    if problems:
        raise UsageError("repositories of the manifest cannot be told apart", problems=problems)
    return [
        item.model_copy(update={"default": True})
        if isinstance(item, HubRepository) and len(groups[item.id.casefold()]) == 1
        else item
        for item in items
    ]


def _ambiguous(group: Sequence[Item]) -> str | None:
    """What is unclear about items with one id, None when nothing is."""
    name, revisions = group[0].id, [item.revision for item in group]
    if len(names := dict.fromkeys(item.id for item in group)) > 1:
        return f"{' and '.join(names)} differ in case alone: keep one of them"
    if len(set(revisions)) < len(revisions):
        return f"{name} is there more than once: keep one of them"
    marked = [item.revision for item in group if item.default]
    if len(group) > 1 and len(marked) != 1:
        return f"{name} is there at {', '.join(revisions)}: write `default: true` at one of them"
    if "main" in revisions and marked not in ([], ["main"]):
        return f"{name}: main is what loads where no revision is named, so let it be the default"
    return None


def _key(item: Item) -> tuple[str, str]:
    return item.id, item.revision


def _grouped(artifacts: Iterable[Artifact]) -> defaultdict[tuple[str, str], list[Artifact]]:
    """The artifacts of each item, in their order, by the item's key."""
    groups: defaultdict[tuple[str, str], list[Artifact]] = defaultdict(list)
    for artifact in artifacts:
        groups[artifact.text("repo"), artifact.text("revision")].append(artifact)
    return groups


def _origin(item: Item) -> Origin:
    """The module that knows where the item's files come from."""
    if isinstance(item, FolderRepository):
        return folder
    if isinstance(item, WheelRepository):
        return packaged
    return cache if item.from_cache else hub


def _hashed(item: Item, files: Sequence[File], context: Context) -> tuple[File, ...]:
    """The files, with sha256 those whose bytes are on this machine.

    Raises UsageError that names all which cannot be read.
    """
    found: list[File] = []
    problems: list[str] = []
    local = [file.place for file in files if file.place and not file.sha256]
    with context.hashes.counting(local, context.progress):
        for file in files:
            if file.place and not file.sha256:
                try:
                    size, sha256 = context.hashes.of(file.place)
                except OSError as error:
                    problems.append(f"{shown(file.path)}: {error.strerror}")
                    continue
                file = replace(file, size=size, sha256=sha256)
            found.append(file)
    if problems:
        raise UsageError(f"{item.id} has files that cannot be read", problems=problems)
    return tuple(found)


def _artifact(
    kind: str, item: Item, snapshot: Snapshot, file: File, sha256: Mapping[str, str]
) -> Artifact:
    origin = {
        "repo": item.id,
        "revision": item.revision,
        "commit": snapshot.commit,
        "file": file.path,
        **({"blob_id": file.blob_id} if file.blob_id else {}),
        **snapshot.facts,
    }
    place = bundled.folder(kind, item.id, item.revision, default=item.default)
    known = file.sha256 or sha256[file.digest]
    return Artifact(kind, f"{place}/{file.path}", file.size, known, origin=origin)
