"""Repositories into a cache of the Hub that is there already, beside what it holds.

    look at all of it -> refuse what is damaged -> blobs -> snapshots -> listings -> refs

Promises: nothing that exists is replaced, changed or removed. What is added is there whole or not
at all, and after what it leads to. So after a kill or a power cut the cache holds what it held and
perhaps some more, and running again adds the rest.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from mirror import machine
from mirror.core.artifact import Artifact, Json
from mirror.core.index import total_size
from mirror.core.paths import shown
from mirror.core.progress import Progress
from mirror.core.text import counted, human_size
from mirror.ecosystems.models.adding import Cache, leftovers
from mirror.ecosystems.models.bundled import Revision, revisions
from mirror.ecosystems.models.layout import Layout, check_names, layout, repository, snapshot
from mirror.errors import MachineError, UsageError
from mirror.store.blobs import Blobs, hash_file
from mirror.store.generations import Root

_Value = TypeVar("_Value")
#: What a cache may hold before it holds a repository.
_OWN = re.compile(r"\.|version|CACHEDIR\.TAG$")
#: So many of other things are named.
_NAMED = 5


@dataclass(frozen=True, slots=True)
class Additions:
    """What a cache lacks of a bundle, as it was when it was looked at.

    missing: the part of the layout that is not there.
    leftovers: what a run that was killed left unfinished.
    remarks: what stays in the cache as it is, and what that means for loading, a line each.
    """

    folder: Path
    missing: Layout
    leftovers: tuple[Path, ...]
    remarks: tuple[str, ...]

    @property
    def size(self) -> int:
        """Of the blobs, in bytes."""
        return total_size(list(self.missing.blobs.values()))

    @property
    def empty(self) -> bool:
        """Whether the cache has all of it."""
        return not any((self.missing.blobs, self.missing.links, self._names, self.leftovers))

    def __str__(self) -> str:
        if self.empty:
            return f"{self.folder} has all of it"
        files = counted(len(self.missing.links), "file")
        return f"{files}, {human_size(self.size)}, into {self.folder}"

    def to_json(self) -> Json:
        """For --json."""
        return {
            "path": str(self.folder),
            "files": len(self.missing.links),
            "bytes": self.size,
            "remarks": self.remarks,
        }

    @property
    def _names(self) -> dict[str, str]:
        """Listings, then refs: each after what it leads to."""
        return {**self.missing.trees, **self.missing.refs}

    def lay(self, store: Blobs, progress: Progress) -> None:
        """Add it.

        Raises BundleError when bytes go by a false name (then nothing was written), MachineError
        when another mirror is at work there or somebody has put something else there meanwhile.
        """
        if self.empty:
            return
        check_names(self.missing.blobs, store)
        cache = Cache(self.folder)
        with cache.locked(), progress.bar(f"filling {self.folder}", self.size) as advance:
            for file in self.leftovers:
                file.unlink(missing_ok=True)
            try:
                for path, artifact in self.missing.blobs.items():
                    cache.add_blob(path, store.path(artifact.sha256))
                    advance(artifact.size)
                for path, blob in self.missing.links.items():
                    cache.add_link(path, blob)
                os.sync()
                for path, text in self._names.items():
                    cache.add_text(path, text)
            except FileExistsError as error:
                raise MachineError(
                    f"{error.filename2 or error.filename} has appeared meanwhile",
                    hint="Another program fills this cache. When it has finished, run this again.",
                ) from None


def consider(
    artifacts: Sequence[Artifact], folder: Path, root: Root, progress: Progress
) -> Additions:
    """What the cache lacks. Writes nothing.

    Raises BundleError when an origin is none that mirror writes, UsageError when the folder can be
    no cache, MachineError that names everything which is damaged there, or why this user or this
    machine cannot add to it.
    """
    found, folder = revisions(artifacts), folder.absolute()
    if not found:
        raise UsageError("the bundle has no models, datasets or spaces to put into a cache")
    _require_cache(folder, root)
    whole = layout(found)
    damaged = [*_damaged(folder, whole, root.blobs, progress), *_denied(folder, whole)]
    if damaged:
        raise MachineError(
            f"{folder} holds files that are not what their names say",
            problems=damaged,
            hint="Nothing was written. Move them away, then run this again.",
        )
    missing = _missing(folder, whole)
    homes = dict.fromkeys(repository(revision) for revision in found)
    unfinished = tuple(file for home in homes for file in leftovers(folder / home))
    remarks = tuple(line for revision in found for line in _remarks(folder, revision, whole))
    additions = Additions(folder, missing, unfinished, remarks)
    _require_access(additions)
    _require_space(additions, root)
    return additions


def _missing(folder: Path, whole: Layout) -> Layout:
    # Where the client has called a blob otherwise, its snapshot has the file all the same.
    wanted = {blob for path, blob in whole.links.items() if not (folder / path).exists()}
    return Layout(
        _absent(folder, {path: a for path, a in whole.blobs.items() if path in wanted}),
        _absent(folder, whole.links),
        _absent(folder, whole.trees),
        _absent(folder, whole.refs),
    )


def _absent(folder: Path, table: Mapping[str, _Value]) -> dict[str, _Value]:
    return {path: value for path, value in table.items() if not os.path.lexists(folder / path)}


def _require_cache(folder: Path, root: Root) -> None:
    """Raises UsageError for what cannot be a cache, or is hardly meant as one."""
    if folder.resolve().is_relative_to(root.path.resolve()):
        raise UsageError(f"{folder} is inside the root, which is mirror's own")
    if not folder.is_dir() or any(folder.glob("*--*")):
        return
    if any((folder / name).exists() for name in ("hub", "token", "stored_tokens")):
        raise UsageError(
            f"{folder} is the home of the Hub's client (HF_HOME), which holds its cache",
            hint=f"Name {folder / 'hub'}.",
        )
    strange = [path.name for path in folder.iterdir() if not _OWN.match(path.name)]
    if strange:
        raise UsageError(
            f"{folder} is no cache of the Hub: there are other things in it",
            problems=[shown(name) for name in sorted(strange)[:_NAMED]],
            hint="Name a cache, an empty folder or a new one.",
        )


def _damaged(folder: Path, whole: Layout, store: Blobs, progress: Progress) -> Iterator[str]:
    """What has the name of something in the bundle, and is something else."""
    there = {path: a for path, a in whole.blobs.items() if os.path.lexists(folder / path)}
    for path, blob in whole.links.items():
        place = folder / path
        # Where no links can be made, the client puts the file itself there.
        if os.path.lexists(place) and os.path.realpath(place) != os.path.realpath(folder / blob):
            there[path] = whole.blobs[blob]
    with progress.bar(f"checking {folder}", total_size(list(there.values()))) as advance:
        for path, artifact in there.items():
            if reason := _difference(folder / path, artifact, store):
                yield f"{folder / path} {reason}"
            advance(artifact.size)


def _difference(place: Path, artifact: Artifact, store: Blobs) -> str:
    """How a file differs from what the bundle has, empty when it does not."""
    try:
        status = place.stat()
        if not stat.S_ISREG(status.st_mode):
            return "is no file"
        if status.st_size != artifact.size:
            return f"has {status.st_size} bytes instead of {artifact.size}"
        blob = store.path(artifact.sha256)
        if blob.exists() and place.samefile(blob):
            return ""  # of an earlier run
        return "" if hash_file(place) == artifact.sha256 else "has other bytes"
    except FileNotFoundError:
        return f"is a link to nothing ({os.readlink(place)})"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _denied(folder: Path, whole: Layout) -> Iterator[str]:
    """The client's notes that a repository has no such file; it believes them before its eyes."""
    for path in whole.links:
        note = folder / path.replace("/snapshots/", "/.no_exist/", 1)
        if note.exists():
            yield f"{note} says that there is no such file"


def _remarks(folder: Path, revision: Revision, whole: Layout) -> Iterator[str]:
    commit, home = revision.commit, folder / repository(revision)
    for name in revision.refs:
        known = _read(home / "refs" / name)
        if known not in (None, commit):
            yield (
                f"{revision.repo}: {name} stays {known!r:.60}, as {folder} has it;"
                f" the bundle's loads with revision={commit!r}"
            )
    here, listed = snapshot(revision), _listed(home / "trees" / f"{commit}.json")
    absent = [
        f for f in listed if not ((folder / here / f).exists() or f"{here}/{f}" in whole.links)
    ]
    if absent:
        yield (
            f"{revision.repo}: {folder} lists {counted(len(absent), 'file')} at {commit} that"
            f" neither it nor the bundle has: newer clients call the snapshot incomplete"
            f" (single files load, and snapshot_download with allow_patterns)"
        )


def _read(path: Path) -> str | None:
    """A ref's text; None where there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return error.strerror or str(error)


def _listed(tree: Path) -> list[str]:
    """The files that a listing in the cache has; none where there is none that can be read."""
    try:
        files = json.loads(tree.read_bytes())["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return list(files) if isinstance(files, dict) else []


def _require_access(additions: Additions) -> None:
    """Raises MachineError when this user cannot add to the cache, or its owner not to what is."""
    missing = additions.missing
    paths: tuple[str | Path, ...] = (
        *missing.blobs,
        *missing.links,
        *missing.trees,
        *missing.refs,
        *additions.leftovers,
    )
    folders = {_existing((additions.folder / path).parent) for path in paths}
    problems = [f"{folder} {reason}" for folder in sorted(folders) if (reason := _closed(folder))]
    if problems:
        raise MachineError(
            f"{additions.folder} cannot be added to",
            problems=problems,
            hint="Run this as the cache's owner, or name a cache of your own.",
        )


def _existing(folder: Path) -> Path:
    while not os.path.lexists(folder):
        folder = folder.parent
    return folder


def _closed(folder: Path) -> str:
    """Why nothing should be made in a folder, empty when it may."""
    if not folder.is_dir():
        return "is no folder"
    if not os.access(folder, os.W_OK | os.X_OK):
        return "cannot be written"
    owner = folder.stat().st_uid
    if os.geteuid() == 0 != owner:
        return f"belongs to {_user(owner)}, who could not change what root puts there"
    return ""


def _user(number: int) -> str:
    import pwd  # the server side is POSIX

    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:
        return f"user {number}"


def _require_space(additions: Additions, root: Root) -> None:
    """Raises MachineError when blobs have to be copied and do not fit. Links need no space."""
    place, store = _existing(additions.folder), _existing(root.path)
    if place.stat().st_dev == store.stat().st_dev:
        return
    free = machine.free_bytes(place)
    if free < additions.size:
        raise MachineError(
            f"{additions.folder} has {human_size(free)} free; this needs"
            f" {human_size(additions.size)}",
            hint="Make room, or name a cache on the file system of the root: it needs none there.",
        )
