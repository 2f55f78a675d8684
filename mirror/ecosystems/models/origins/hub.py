"""A Hub as an origin: the files of a repository at the commit that a revision names now."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from mirror.core.artifact import Artifact
from mirror.core.index import MAX_SIZE
from mirror.core.manifest import HubRepository
from mirror.core.paths import shown
from mirror.ecosystems.models.repository import File, Snapshot
from mirror.ecosystems.source import Context
from mirror.errors import DownloadError
from mirror.fetch.http import Request

if TYPE_CHECKING:
    from mirror.ecosystems.models.origins import api

_ID, _SHA256 = re.compile(r"[0-9a-f]{40}"), re.compile(r"[0-9a-f]{64}")
#: Of a gated repository, what a Hub shows to everybody all the same.
_OPEN = {".gitattributes", "README.md", "LICENSE", "LICENSE.txt"}
#: How many names of files one message holds.
_FEW = 10


def snapshot(kind: str, item: HubRepository, commit: str, context: Context) -> Snapshot:
    """What a branch, a tag or a commit names now, and that it may be downloaded.

    Raises ResolutionError when it does not exist or is closed to this user, DownloadError when the
    Hub cannot be asked or contradicts itself, UsageError when no Hub can have such a name.
    """
    from mirror.ecosystems.models.origins import api

    with api.of(context).repository(kind, item.repo) as repo:
        info = repo.info(commit or item.revision)
        commit = _commit(repo, info, commit or item.revision)
        files = _files(repo, repo.entries(commit))
        _check_whole(repo, info, files)
        facts = _facts(info)
        if info.get("gated") and files:
            # A gated repository can be listed by all; only a file shows who may download.
            guarded = next((file for file in files if file.path not in _OPEN), files[0])
            url = repo.hub.url(kind, item.repo, commit, guarded.path)
            repo.admit(commit, url, facts.get("gated", ""))
    return Snapshot(files, commit, facts)


def requests(
    kind: str, artifacts: Sequence[Artifact], item: HubRepository, context: Context
) -> list[Request]:
    """Each file is asked for at the locked commit, whatever the revision names by now.

    Raises ResolutionError when the repository is gated and closed to this user.
    """
    from mirror.ecosystems.models.origins import api

    found = []
    for artifact in artifacts:
        file = File(artifact.text("file"), artifact.size, artifact.sha256)
        found.append(request(kind, item, artifact.text("commit"), file, context))
    pairs = zip(artifacts, found, strict=True)
    guarded = ((a, r) for a, r in pairs if a.text("gated") and a.text("file") not in _OPEN)
    for artifact, asked in itertools.islice(guarded, 1):
        with api.of(context).repository(kind, item.repo) as repo:
            repo.admit(artifact.text("commit"), asked.url, artifact.text("gated"))
    return found


def request(kind: str, item: HubRepository, commit: str, file: File, context: Context) -> Request:
    """Where the bytes of a file are, with the user's token if there is one."""
    from mirror.ecosystems.models.origins import api

    hub = api.of(context)
    return Request(
        url=hub.url(kind, item.repo, commit, file.path),
        label=shown(f"{api.label(kind, item.repo)}/{file.path}"),
        digest=file.digest,
        size=file.size,
        headers=hub.credentials.headers,
        hint=api.HINT,
    )


def stop(context: Context) -> None:
    """Let every thread of this run that waits to ask the Hub again give up."""
    from mirror.ecosystems.models.origins import api

    api.stop(context)


def _commit(repo: api.Repository, info: dict[str, Any], asked: str) -> str:
    """The commit that the Hub names. Raises DownloadError when it is none, or another."""
    commit = info.get("sha")
    if not isinstance(commit, str) or not _ID.fullmatch(commit):
        raise repo.odd(f"it names no full commit for the revision {asked!r}")
    if _ID.fullmatch(asked.lower()) and commit != asked.lower():
        raise repo.odd(f"it answers with the commit {commit}, where {asked} was asked for")
    return commit


def _files(repo: api.Repository, entries: Iterable[dict[str, Any]]) -> tuple[File, ...]:
    """The listed files. Raises DownloadError that names all which cannot be as they are listed."""
    files: dict[str, File] = {}
    problems: list[str] = []
    for entry in entries:
        if entry.get("type") == "directory":
            continue
        found = _file(entry)
        if isinstance(found, File) and found.path in files:
            found = f"{shown(found.path)} is listed twice"
        if isinstance(found, str):
            problems.append(found)
        else:
            files[found.path] = found
    if problems:
        raise DownloadError(
            f"{repo.label}: {repo.hub.host} lists what no repository can hold",
            problems=problems,
            hint="A mirror of the Hub may be at fault: name another one, or the Hub itself.",
        )
    return tuple(files.values())


def _file(entry: dict[str, Any]) -> File | str:
    """A file as it is listed, or what is wrong with it."""
    path, size, lfs = (entry.get(key) for key in ("path", "size", "lfs"))
    if not isinstance(path, str) or not _is_path(path):
        return f"{shown(repr(path))} is no path of a file"
    if type(size) is not int or not 0 <= size <= MAX_SIZE:
        return f"{shown(path)} has the size {shown(repr(size))[:40]}"
    if lfs is None:
        blob_id = entry.get("oid")
        if not isinstance(blob_id, str) or not _ID.fullmatch(blob_id):
            return f"{shown(path)} has no object id of git"
        return File(path, size, blob_id=blob_id)
    sha256 = lfs.get("oid") if isinstance(lfs, dict) else None
    if not isinstance(sha256, str) or not _SHA256.fullmatch(sha256):
        return f"{shown(path)} is in LFS and has no sha256"
    if lfs.get("size", size) != size:
        return f"{shown(path)} has two sizes"
    return File(path, size, sha256=sha256)


def _is_path(path: str) -> bool:
    """Whether git can hold it; whether a bundle can is judged when it is known what is carried."""
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    parts = path.split("/")
    return "\0" not in path and not any(part in ("", ".", "..") for part in parts)


def _check_whole(repo: api.Repository, info: dict[str, Any], files: Sequence[File]) -> None:
    """Raises DownloadError when the Hub names files that it does not list.

    So a listing of another commit comes out, and one whose further pages a proxy has lost.
    """
    siblings = info.get("siblings")
    named = siblings if isinstance(siblings, list) else []
    listed = {file.path for file in files}
    names = (name.get("rfilename") for name in named if isinstance(name, dict))
    missing = [name for name in names if isinstance(name, str) and name not in listed]
    if missing:
        more = [f"and {len(missing) - _FEW:,} more"] if len(missing) > _FEW else []
        raise DownloadError(
            f"{repo.label}: {repo.hub.host} does not list all files that it says are there",
            problems=[*map(shown, missing[:_FEW]), *more],
            hint="A mirror of the Hub may be at fault: name another one, or the Hub itself.",
        )


def _facts(info: dict[str, Any]) -> dict[str, str]:
    """License and gated, as far as the Hub states them."""
    card, tags, gated = info.get("cardData"), info.get("tags"), info.get("gated")
    stated = card.get("license") if isinstance(card, dict) else None
    if isinstance(card, dict) and stated == "other":
        stated = card.get("license_name") or stated
    if not stated and isinstance(tags, list):
        texts = [tag for tag in tags if isinstance(tag, str)]
        stated = [tag.removeprefix("license:") for tag in texts if tag.startswith("license:")]
    licenses = stated if isinstance(stated, list) else [stated]
    text = ", ".join(" ".join(name.split()) for name in licenses if isinstance(name, str))
    facts = {"license": shown(text)[:100]} if text else {}
    return {**facts, "gated": gated} if gated in ("auto", "manual") else facts
