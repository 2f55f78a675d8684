"""The Hub's endpoints: revisions, trees in pages, files, whoami; private and gated repositories."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, quote, urlsplit

from tests.hub.server import Change, Reply, Seen, Server

_API = re.compile(r"/api/(models|datasets|spaces)/(.+?)(?:/(revision|tree|paths-info)/([^/]+)/?)?")
_FILE = re.compile(r"/(.+?)/resolve/([^/]+)/(.+)")
_SHORT = re.compile(r"[0-9a-f]{7,40}")
#: Files of a gated repository that everybody may read.
_OPEN = ("README.md", ".gitattributes")


@dataclass
class Repo:
    """A repository: commits by their hash, and names for some of them.

    kind: "models", "datasets" or "spaces".
    lfs_from: files of at least this many bytes are in LFS, as the Hub does for large ones.
    token: who may see it at all (private) ...
    gated: ... or who may download from it, though anybody may list it. gate: who opens it.
    card: the front matter of its README. tags: what the Hub makes of it, besides.
    xet: what is in LFS lies in Xet; plain HTTP gives it all the same ("bridge") or not ("only").
    """

    name: str
    kind: str = "models"
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    lfs_from: int = 5000
    token: str | None = None
    gated: str | None = None
    gate: Literal["auto", "manual"] = "manual"
    card: dict[str, object] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    xet: Literal["bridge", "only"] | None = None

    @property
    def label(self) -> str:
        """Where its pages are below the Hub's address."""
        return self.name if self.kind == "models" else f"{self.kind}/{self.name}"

    def commit(self, files: Mapping[str, bytes], *names: str) -> str:
        """A further commit that holds exactly these files; the names (branches, tags) move to it.

        Returns its hash.
        """
        text = "".join(f"{path} {git_id(data)}\n" for path, data in sorted(files.items()))
        sha = hashlib.sha1(f"{self.label} {text}".encode()).hexdigest()
        self.commits[sha] = dict(files)
        self.refs |= dict.fromkeys(names, sha)
        return sha

    def find(self, revision: str) -> str | None:
        """The commit that a branch, a tag, or a short or full hash names."""
        if revision in self.refs:
            return self.refs[revision]
        if not _SHORT.fullmatch(revision):
            return None
        return next((commit for commit in self.commits if commit.startswith(revision)), None)


class Hub(Server):
    """A Hub; see the package's docstring.

    page_size: entries of a tree in one answer.
    repos: by label: org/name, datasets/org/name, spaces/org/name.
    accounts: token -> role ("read", "write", "fineGrained"). Once there is one, any other token is
        refused wherever it is sent.
    """

    def __init__(self, page_size: int = 1000) -> None:
        super().__init__()
        self.repos: dict[str, Repo] = {}
        self.accounts: dict[str, str] = {}
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
        """A model with one commit, on main; files from a folder, or given."""
        return self.add(Repo(name, lfs_from=lfs_from, token=token, gated=gated), files)

    def add(self, repo: Repo, files: Path | Mapping[str, bytes]) -> Repo:
        """A repository of any kind, with one commit, on main; files from a folder, or given."""
        if isinstance(files, Path):
            found = sorted(path for path in files.rglob("*") if path.is_file())
            files = {path.relative_to(files).as_posix(): path.read_bytes() for path in found}
        repo.commit(files, "main")
        self.repos[repo.label] = repo
        return repo

    def reply(self, seen: Seen) -> Reply:
        token = _token(seen)
        if token and self.accounts and token not in self.accounts:
            return _refused(401, "", "Invalid credentials in Authorization header")
        if _raw_path(seen) == "/api/whoami-v2":
            return self._whoami(token)
        if found := _API.fullmatch(_raw_path(seen)):
            kind, name, what, revision = found.groups()
            label = name if kind == "models" else f"{kind}/{name}"
            return self._api(seen, label, what, _unquoted(revision or "main"))
        if found := _FILE.fullmatch(_raw_path(seen)):
            return self._file(seen, found[1], _unquoted(found[2]), _unquoted(found[3]))
        return super().reply(seen)

    def _whoami(self, token: str | None) -> Reply:
        if token not in self.accounts:
            return _refused(401, "", "Invalid username or password.")
        access: dict[str, object] = {"displayName": "a token", "role": self.accounts[token]}
        if self.accounts[token] == "fineGrained":
            access["fineGrained"] = {"canReadGatedRepos": False, "global": [], "scoped": []}
        return _json(
            {
                "type": "user",
                "name": "somebody",
                "auth": {"type": "access_token", "accessToken": access},
            }
        )

    def _api(self, seen: Seen, label: str, what: str | None, revision: str) -> Reply:
        repo = self.repos.get(label)
        if repo is None or repo.token not in (None, _token(seen)):
            return _refused(404 if _token(seen) else 401, "RepoNotFound", "Repository not found")
        commit = repo.find(revision)
        if commit is None:
            return _refused(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        files = repo.commits[commit]
        if what == "tree":
            return self._tree(seen, repo, files)
        if what == "paths-info":
            paths = parse_qs(seen.body.decode()).get("paths", [])
            return _json([_entry(repo, path, files[path]) for path in paths if path in files])
        return _json(
            {
                "_id": commit[:24],
                "id": repo.name,
                "modelId": repo.name,
                "sha": commit,
                "private": repo.token is not None,
                "gated": repo.gate if repo.gated else False,
                "disabled": False,
                "tags": repo.tags,
                "downloads": 0,
                "likes": 0,
                **({"cardData": repo.card} if repo.card else {}),
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

    def _file(self, seen: Seen, label: str, revision: str, path: str) -> Reply:
        repo = self.repos.get(label)
        if repo is None or repo.token not in (None, _token(seen)):
            return _refused(404 if _token(seen) else 401, "RepoNotFound", "Repository not found")
        if repo.gated not in (None, _token(seen)) and path not in _OPEN:
            status = 403 if _token(seen) else 401
            return _refused(
                status, "GatedRepo", f"Access to model {label} is restricted. Ask for it there."
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
            if repo.xet:
                headers["X-Xet-Hash"] = _xet_hash(data)
                where = f"{self.url}/api/{repo.kind}/{repo.name}/xet-read-token/{commit}"
                headers["Link"] = f'<{where}>; rel="xet-auth"'
            if repo.xet == "only" and seen.method == "GET":
                return Reply(403, headers, body=b"ask Xet for it\n")
        return Reply(body=data, headers=headers)


def edited(change: Callable[[Any], object]) -> Change:
    """A fault: the JSON document that is answered, changed in place by `change`."""

    def apply(seen: Seen, reply: Reply) -> None:
        document = json.loads(reply.body)
        change(document)
        reply.body = json.dumps(document).encode()

    return apply


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
        **({"xetHash": _xet_hash(data)} if repo.xet else {}),
        "oid": git_id(pointer(data)),
        "lfs": {**lfs, "pointerSize": len(pointer(data))},
    }


def _parents(path: str) -> list[str]:
    parts = path.split("/")[:-1]
    return ["/".join(parts[: n + 1]) for n in range(len(parts))]


def _token(seen: Seen) -> str | None:
    """A token, or user:password: the Hub itself takes tokens only, but mirrors of it take both."""
    scheme, _, value = seen.headers.get("authorization", "").partition(" ")
    return base64.b64decode(value).decode() if scheme == "Basic" else value or None


def _xet_hash(data: bytes) -> str:
    return hashlib.sha256(b"xet" + data).hexdigest()


def _json(document: object) -> Reply:
    body = json.dumps(document).encode()
    return Reply(body=body, headers={"Content-Type": "application/json"})


def _refused(status: int, code: str, message: str) -> Reply:
    headers = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {})}
    return Reply(status, headers, body=json.dumps({"error": message}).encode())


def _raw_path(seen: Seen) -> str:
    return urlsplit(seen.target).path


def _unquoted(text: str) -> str:
    from urllib.parse import unquote

    return unquote(text)


def resolve_path(name: str, commit: str, path: str) -> str:
    """Where a file of a repository is served."""
    return f"/{name}/resolve/{commit}/{quote(path)}"
