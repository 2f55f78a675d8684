"""The Hub's endpoints: revisions, trees in pages, files; private and gated repositories."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

from tests.hub.server import Reply, Seen, Server

_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass
class Repo:
    """A model repository: commits by their hash, and names for some of them.

    lfs_from: files of at least this many bytes are in LFS, as the Hub does for large ones.
    token: who may see it at all (private) ...
    gated: ... or who may download from it, though anybody may list it.
    """

    name: str
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    lfs_from: int = 5000
    token: str | None = None
    gated: str | None = None

    def commit(self, files: Mapping[str, bytes], *names: str) -> str:
        """A further commit that holds exactly these files; the names (branches, tags) move to it.

        Returns its hash.
        """
        text = "".join(f"{path} {git_id(data)}\n" for path, data in sorted(files.items()))
        sha = hashlib.sha1(f"{self.name} {text}".encode()).hexdigest()
        self.commits[sha] = dict(files)
        self.refs |= dict.fromkeys(names, sha)
        return sha

    def find(self, revision: str) -> str | None:
        """The commit that a branch, a tag or a hash names."""
        return self.refs.get(revision, revision if revision in self.commits else None)


class Hub(Server):
    """A Hub; see the package's docstring. page_size: entries of a tree in one answer."""

    def __init__(self, page_size: int = 1000) -> None:
        super().__init__()
        self.repos: dict[str, Repo] = {}
        self.page_size = page_size

    def add_model(
        self,
        name: str,
        files: Path | Mapping[str, bytes],
        *,
        lfs_from: int = 5000,
        token: str | None = None,
        gated: str | None = None,
    ) -> Repo:
        """A repository with one commit, on main; files from a folder, or given."""
        if isinstance(files, Path):
            found = sorted(path for path in files.rglob("*") if path.is_file())
            files = {path.relative_to(files).as_posix(): path.read_bytes() for path in found}
        repo = Repo(name, lfs_from=lfs_from, token=token, gated=gated)
        repo.commit(files, "main")
        self.repos[name] = repo
        return repo

    def reply(self, seen: Seen) -> Reply:
        if found := re.fullmatch(r"/api/models/(.+?)/(revision|tree)/([^/]+)", _raw_path(seen)):
            name, what, revision = found[1], found[2], _unquoted(found[3])
            return self._api(seen, name, what, revision)
        if found := re.fullmatch(r"/(.+?)/resolve/([^/]+)/(.+)", _raw_path(seen)):
            return self._file(seen, found[1], _unquoted(found[2]), _unquoted(found[3]))
        return super().reply(seen)

    def _api(self, seen: Seen, name: str, what: str, revision: str) -> Reply:
        repo = self.repos.get(name)
        if repo is None or repo.token not in (None, _token(seen)):
            return _refused(404 if _token(seen) else 401, "RepoNotFound", "Repository not found")
        commit = repo.find(revision)
        if commit is None:
            return _refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        files = repo.commits[commit]
        if what == "tree":
            return self._tree(seen, repo, files)
        return _json(
            {
                "_id": commit[:24],
                "id": name,
                "modelId": name,
                "sha": commit,
                "private": repo.token is not None,
                "gated": "manual" if repo.gated else False,
                "disabled": False,
                "tags": [],
                "downloads": 0,
                "likes": 0,
                "siblings": [{"rfilename": path} for path in sorted(files)],
            }
        )

    def _tree(self, seen: Seen, repo: Repo, files: dict[str, bytes]) -> Reply:
        parts = urlsplit(seen.target)
        start = int(parse_qs(parts.query).get("cursor", ["0"])[0])
        folders = {parent for path in files for parent in _parents(path)}
        entries: list[dict[str, object]] = [
            {"type": "directory", "oid": git_id(path.encode()), "size": 0, "path": path}
            for path in sorted(folders)
        ]
        entries += [_entry(repo, path, data) for path, data in sorted(files.items())]
        reply = _json(entries[start : start + self.page_size])
        if start + self.page_size < len(entries):
            following = f"{parts.path}?recursive=true&cursor={start + self.page_size}"
            reply.headers["Link"] = f'<{self.url}{following}>; rel="next"'
        return reply

    def _file(self, seen: Seen, name: str, revision: str, path: str) -> Reply:
        repo = self.repos.get(name)
        if repo is None or repo.token not in (None, _token(seen)):
            return _refused(404 if _token(seen) else 401, "RepoNotFound", "Repository not found")
        if repo.gated not in (None, _token(seen)):
            status = 403 if _token(seen) else 401
            return _refused(
                status, "GatedRepo", f"Access to model {name} is restricted. Ask for it there."
            )
        commit = repo.find(revision)
        if commit is None:
            return _refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        data = repo.commits[commit].get(path)
        if data is None:
            return _refused(404, "EntryNotFound", "Entry not found")
        headers = {"X-Repo-Commit": commit, "ETag": f'"{git_id(data)}"'}
        if len(data) >= repo.lfs_from:
            sha256 = hashlib.sha256(data).hexdigest()
            headers |= {"ETag": f'"{sha256}"', "X-Linked-Etag": f'"{sha256}"'}
            headers["X-Linked-Size"] = str(len(data))
        return Reply(body=data, headers=headers)


def git_id(data: bytes) -> str:
    """The object id that git gives to a blob of these bytes."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def pointer(data: bytes) -> bytes:
    """The text that git holds in the place of a file that is in LFS."""
    return b"version https://git-lfs.github.com/spec/v1\noid sha256:%b\nsize %d\n" % (
        hashlib.sha256(data).hexdigest().encode(),
        len(data),
    )


def _entry(repo: Repo, path: str, data: bytes) -> dict[str, object]:
    entry: dict[str, object] = {"type": "file", "size": len(data), "path": path}
    if len(data) < repo.lfs_from:
        return {**entry, "oid": git_id(data)}
    lfs = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data)}
    return {
        **entry,
        "oid": git_id(pointer(data)),
        "lfs": {**lfs, "pointerSize": len(pointer(data))},
    }


def _parents(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[: n + 1]) for n in range(len(parts))]


def _token(seen: Seen) -> str | None:
    scheme, _, token = seen.headers.get("authorization", "").partition(" ")
    return token if scheme == "Bearer" and token else None


def _json(document: object) -> Reply:
    body = json.dumps(document).encode()
    return Reply(body=body, headers={"Content-Type": "application/json"})


def _refused(status: int, code: str, message: str) -> Reply:
    headers = {"X-Error-Code": code, "X-Error-Message": message}
    return Reply(status, headers, body=json.dumps({"error": message}).encode())


def _raw_path(seen: Seen) -> str:
    return urlsplit(seen.target).path


def _unquoted(text: str) -> str:
    from urllib.parse import unquote

    return unquote(text)


def resolve_path(name: str, commit: str, path: str) -> str:
    """Where a file of a repository is served."""
    return f"/{name}/resolve/{commit}/{quote(path)}"
