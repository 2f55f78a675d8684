"""Repositories from a Hub: what a revision names, what is listed, what the lock says of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirror.core.lock import Lock
from mirror.core.manifest import FolderRepository, HubRepository, RepositoryItem
from mirror.ecosystems.models.origins import api
from mirror.ecosystems.models.origins import hub as hubs
from mirror.ecosystems.models.source import Repositories
from mirror.ecosystems.source import Context
from mirror.errors import DownloadError, ResolutionError, UsageError
from mirror.fetch.http import Patience
from tests.asking import (
    FILES,
    MODELS,
    WEIGHTS,
    error,
    fetch,
    heard,
    make_context,
    nobody,
    resolve,
    sha256,
)
from tests.hub import Hub, Reply, Repo, Seen, Server, faults
from tests.hub.hub import edited, git_id


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    nobody(monkeypatch, tmp_path)
    with Hub(page_size=2) as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return make_context(tmp_path)


@pytest.mark.parametrize("kind", ["models", "datasets", "spaces"])
def test_each_kind(hub: Hub, context: Context, kind: str) -> None:
    repo = hub.add(Repo("org/tiny", kind), FILES)
    source, commit = Repositories(kind), repo.refs["main"]
    artifacts = resolve(["org/tiny"], context, source)
    assert [a.path for a in artifacts] == [f"{kind}/org/tiny/{name}" for name in FILES]
    assert [(a.kind, a.size, a.sha256) for a in artifacts] == [
        (kind, len(data), sha256(data)) for data in FILES.values()
    ]
    origin = {"repo": "org/tiny", "revision": "main", "commit": commit}
    assert artifacts[2].origin == {
        **origin,
        "file": "config.json",
        "blob_id": git_id(FILES["config.json"]),
    }
    assert artifacts[3].origin == {**origin, "file": "model.safetensors"}
    asked = [s.path for s in hub.seen]
    api, files = f"/api/{kind}/org/tiny", f"/{repo.label}/resolve/{commit}/"
    revision = f"{api}/revision/main"
    assert asked.count(revision) == 1  # resolved once; everything after that is by commit
    assert {p for p in asked if not p.startswith(files)} == {revision, f"{api}/tree/{commit}"}
    assert {p.removeprefix(files) for p in asked if p.startswith(files)} == set(FILES)
    assert source.inputs(["org/tiny"], context) == {}


def test_small_files_are_read_when_locking_and_large_ones_are_not(
    hub: Hub, context: Context
) -> None:
    hub.add_model("org/tiny", FILES)
    MODELS.resolve(["org/tiny"], context)
    read = {s.path.rpartition("/")[2] for s in hub.gets("*/resolve/*")}
    assert read == {".gitattributes", "README.md", "config.json"}


@pytest.mark.parametrize("revision", ["v1", "refs/pr/1", "branch", "short", "commit"])
def test_revisions(hub: Hub, context: Context, revision: str) -> None:
    repo = hub.add_model("org/tiny", FILES)
    old = repo.commit({**FILES, "config.json": b'{"old": 1}'}, "v1", "refs/pr/1", "branch")
    revision = {"commit": old, "short": old[:8]}.get(revision, revision)
    artifacts = resolve([HubRepository(repo="org/tiny", revision=revision)], context)
    assert {a.text("commit") for a in artifacts} == {old}
    assert {a.text("revision") for a in artifacts} == {revision}
    assert artifacts[2].sha256 == sha256(b'{"old": 1}')


def test_what_moves_after_locking_stays_locked(hub: Hub, context: Context) -> None:
    repo = hub.add_model("org/tiny", FILES)
    locked = MODELS.resolve(["org/tiny"], context)
    repo.commit({**FILES, "model.safetensors": WEIGHTS * 2}, "main")
    fetch(locked, ["org/tiny"], context)
    assert MODELS.resolve(["org/tiny"], replace(context, kept=tuple(locked))) == locked
    moved = MODELS.resolve(["org/tiny"], context)
    assert moved != locked
    other: list[RepositoryItem] = [HubRepository(repo="org/tiny", revision=repo.refs["main"])]
    assert MODELS.resolve(other, replace(context, kept=tuple(locked)))[3] != locked[3]


def test_a_tag_that_moves_while_it_is_locked(hub: Hub, context: Context) -> None:
    repo = hub.add_model("org/tiny", FILES)
    old = repo.refs["v1"] = repo.refs["main"]

    def move(seen: Seen, reply: Reply) -> None:
        repo.commit({name: data + b" " for name, data in FILES.items()}, "v1")

    hub.inject(move, path="*/revision/v1")
    artifacts = resolve([HubRepository(repo="org/tiny", revision="v1")], context)
    assert repo.refs["v1"] != old
    assert {a.text("commit") for a in artifacts} == {old}
    assert [a.sha256 for a in artifacts] == [sha256(data) for data in FILES.values()]


def test_names_that_need_quoting(hub: Hub, context: Context) -> None:
    files = {"config.json": b"{}", "a b/ü%20#?.txt": b"odd", "x+y.safetensors": WEIGHTS}
    hub.add_model("org/odd.name", files)
    assert {a.text("file") for a in resolve(["org/odd.name"], context)} == set(files)


def test_a_model_without_an_organization(hub: Hub, context: Context) -> None:
    hub.add_model("gpt2", FILES)
    assert resolve(["gpt2"], context)[0].path == "models/gpt2/.gitattributes"


def test_a_model_twice(context: Context) -> None:
    section: list[RepositoryItem] = ["a/b", FolderRepository(path="x", name="a/b"), "c/d", "C/d"]
    assert error(section, context).problems == (
        "a/b is there more than once: keep one of them",
        "c/d and C/d differ in case alone: keep one of them",
    )


# A Hub that contradicts itself


@pytest.mark.parametrize(
    "body", [b"<html>Please log in</html>", b"[]", b"null", b"[" * 100_000, b'{"sha": 5}', b""]
)
def test_what_is_no_hub(hub: Hub, context: Context, body: bytes) -> None:
    hub.inject(faults.replace(body))
    found = error(["org/tiny"], context)
    assert isinstance(found, DownloadError)
    assert "org/tiny: 127.0.0.1" in found.message
    assert "does not answer as a Hub does" in found.message


@pytest.mark.parametrize("sha", ["main", "abcdef1", "A" * 40, "0" * 41, None])
def test_a_commit_that_is_none(hub: Hub, context: Context, sha: str | None) -> None:
    hub.add_model("org/tiny", FILES)
    hub.inject(edited(lambda info: info.update(sha=sha)), path="*/revision/*")
    found = error(["org/tiny"], context)
    assert isinstance(found, DownloadError)
    assert "names no full commit for the revision 'main'" in found.message


def test_another_commit_than_was_asked_for(hub: Hub, context: Context) -> None:
    repo = hub.add_model("org/tiny", FILES)
    old = repo.refs["main"]
    new = repo.commit({**FILES, "config.json": b"{ }"}, "main")
    hub.inject(edited(lambda info: info.update(sha=new)), path="*/revision/*")
    words = f"answers with the commit {new}, where {old} was asked for"
    assert words in error([HubRepository(repo="org/tiny", revision=old)], context).message
    hub.heal()
    locked = MODELS.resolve([HubRepository(repo="org/tiny", revision=old)], context)
    kept = [replace(a, origin={**a.origin, "revision": "main"}) for a in locked]
    hub.inject(edited(lambda info: info.update(sha=new)), path="*/revision/*")
    assert words in error(["org/tiny"], replace(context, kept=tuple(kept))).message


def test_a_listing_of_another_commit(hub: Hub, context: Context) -> None:
    repo = hub.add_model("org/tiny", FILES)
    commit, fewer = repo.refs["main"], {"model.safetensors": WEIGHTS}
    hub.inject(lambda seen, reply: repo.commits.update({commit: fewer}), path="*/revision/*")
    found = error(["org/tiny"], context)
    assert isinstance(found, DownloadError)
    assert "does not list all files that it says are there" in found.message
    assert found.problems == tuple(sorted(FILES.keys() - fewer.keys()))
    repo.commits[commit] = FILES
    hub.heal()
    hub.inject(lambda seen, reply: reply.headers.update({"X-Repo-Commit": "0" * 40}), "*/tree/*")
    assert f"lists another commit than {commit}" in error(["org/tiny"], context).message


def test_pages_that_a_proxy_loses(hub: Hub, context: Context) -> None:
    hub.add_model("org/tiny", {f"{n:02}.txt": b"x" for n in range(30)})
    hub.inject(lambda seen, reply: reply.headers.pop("Link", None), path="*/tree/*")
    found = error(["org/tiny"], context)
    assert found.problems[0] == "02.txt"
    assert found.problems[-1] == "and 18 more"


def test_pages_without_an_end(hub: Hub, context: Context) -> None:
    hub.add_model("org/tiny", FILES)
    same = f'<{hub.url}/api/models/org/tiny/tree/x?recursive=true>; rel="next"'
    hub.inject(lambda seen, reply: reply.headers.update(Link=same), path="*/tree/*")
    assert "its listing repeats itself" in error(["org/tiny"], context).message
    assert len(hub.gets("*/tree/*")) == 1


def test_pages_that_are_made_up(
    hub: Hub, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "_MOST_PAGES", 20)
    hub.add_model("org/tiny", FILES)

    def go_on(seen: Seen, reply: Reply) -> None:
        reply.body, number = b"[]", len(hub.seen)
        reply.headers["Link"] = f'<{hub.url}/x?cursor={number}>; rel="next"'

    hub.inject(go_on, path="*/tree/*")
    assert "its listing never ends" in error(["org/tiny"], context).message
    assert len(hub.gets("*/tree/*")) == 20


@pytest.mark.parametrize(
    "link", ["", "<", ">", ";", '<http://[x?a=b>; rel="next"', "x; rel=prev", ","]
)
def test_links_that_lead_nowhere(hub: Hub, context: Context, link: str) -> None:
    hub.page_size = 100
    hub.add_model("org/tiny", FILES)
    hub.inject(lambda seen, reply: reply.headers.update(Link=link), path="*/tree/*")
    assert len(MODELS.resolve(["org/tiny"], context)) == len(FILES)


def test_answers_of_the_wrong_size_or_form(
    hub: Hub, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add_model("org/tiny", FILES)
    fault = hub.inject(faults.compress(), path="*/tree/*")
    assert "it compresses (gzip) what was asked for" in error(["org/tiny"], context).message
    fault.times = 0
    hub.inject(faults.chunked(), path="/api/*")
    assert len(MODELS.resolve(["org/tiny"], context)) == len(FILES)
    monkeypatch.setattr(api, "_LARGEST", 100)
    assert "its answer is longer than 100 bytes" in error(["org/tiny"], context).message


def _first(**changes: object) -> Callable[[Any], object]:
    """The listing with its first file changed; a field that becomes None is taken away."""

    def change(entries: Any) -> None:
        files = [entry for entry in entries if entry["type"] == "file" and "lfs" in entry]
        for file in files[:1]:
            file.update(changes)
            for name, value in changes.items():
                if value is None:
                    del file[name]

    return change


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_first(lfs={}), "model.safetensors is in LFS and has no sha256"),
        (_first(lfs={"oid": "f" * 63, "size": 10240}), "is in LFS and has no sha256"),
        (_first(lfs=[]), "is in LFS and has no sha256"),
        (_first(lfs={"oid": "f" * 64, "size": 1}), "model.safetensors has two sizes"),
        (_first(lfs=None, oid="x"), "model.safetensors has no object id of git"),
        (_first(lfs=None, oid=None), "model.safetensors has no object id of git"),
        (_first(size=-1), "model.safetensors has the size -1"),
        (_first(size=2**60), f"model.safetensors has the size {2**60}"),
        (_first(size=1.5), "model.safetensors has the size 1.5"),
        (_first(size=True), "model.safetensors has the size True"),
        (_first(size=None), "model.safetensors has the size None"),
        (_first(path=None), "None is no path of a file"),
        (_first(path="../../x"), "'../../x' is no path of a file"),
        (_first(path="/etc/passwd"), "'/etc/passwd' is no path of a file"),
        (_first(path="a//b"), "'a//b' is no path of a file"),
        (_first(path="a\0b"), "'a\\x00b' is no path of a file"),
        (_first(path="\ud800"), "'\\ud800' is no path of a file"),
        (_first(path="\x1b[2J", size=-1), "\\x1b[2J has the size -1"),
        (lambda entries: entries.append(entries[-1]), "is listed twice"),
    ],
)
def test_files_that_cannot_be_as_they_are_listed(
    hub: Hub, context: Context, change: Callable[[Any], object], problem: str
) -> None:
    hub.page_size = 100
    hub.add_model("org/tiny", FILES)
    hub.add_model("org/fine", FILES)
    hub.inject(edited(change), path="*/org/tiny/tree/*")
    found = error(["org/tiny", "org/fine"], context)
    assert isinstance(found, DownloadError)
    assert "org/tiny: 127.0.0.1" in found.message
    assert len(found.problems) == 1
    assert problem in found.problems[0]


@pytest.mark.parametrize("body", [b"{}", b"[1]", b'[["a"]]', b"null"])
def test_what_is_no_listing(hub: Hub, context: Context, body: bytes) -> None:
    hub.add_model("org/tiny", FILES)
    hub.inject(faults.replace(body), path="*/tree/*")
    assert "its answer is no listing" in error(["org/tiny"], context).message


def test_names_that_no_bundle_can_hold_are_left_to_the_lock(hub: Hub, context: Context) -> None:
    hub.add_model("org/tiny", {**FILES, "con.json": b"1", "a\nb.json": b"2", "CON.json": b"3"})
    artifacts = MODELS.resolve(["org/tiny"], context)
    assert {"con.json", "a\nb.json", "CON.json"} < {a.text("file") for a in artifacts}


def test_bytes_that_the_hub_spoils(hub: Hub, context: Context) -> None:
    hub.add_model("org/tiny", FILES)
    hub.inject(faults.corrupt(at=0), path="*/config.json")
    assert "git-sha1:" in str(error(["org/tiny"], context))
    hub.heal()
    artifacts = MODELS.resolve(["org/tiny"], context)
    hub.inject(faults.corrupt(at=0), path="*.safetensors")
    with pytest.raises(DownloadError, match=r"org/tiny/model\.safetensors: the bytes that came"):
        fetch(artifacts, ["org/tiny"], context)


# What is recorded besides


@pytest.mark.parametrize(
    ("card", "tags", "license"),
    [
        ({"license": "apache-2.0"}, ["license:mit"], "apache-2.0"),
        ({"license": "other", "license_name": "llama3"}, ["license:other"], "llama3"),
        ({"license": "other"}, [], "other"),
        ({"license": ["mit", "cc-by-4.0"]}, [], "mit, cc-by-4.0"),
        ({}, ["pytorch", "license:mit"], "mit"),
        ({"language": "en"}, ["license:mit"], "mit"),
        ({"license": "\x1b[2Jx\n y"}, [], "\\x1b[2Jx y"),
        ({"license": "x" * 500}, [], "x" * 100),
        ({"license": 5}, [], ""),
        ({"license": {"a": 1}}, [], ""),
        ({}, [], ""),
    ],
)
def test_the_license(
    hub: Hub, context: Context, card: dict[str, object], tags: list[str], license: str
) -> None:
    hub.add(Repo("org/tiny", card=card, tags=tags), FILES)
    artifacts = MODELS.resolve(["org/tiny"], context)
    assert {a.text("license") for a in artifacts} == {license}
    assert {a.text("gated") for a in artifacts} == {""}


@pytest.mark.parametrize("gated", [False, None, True, "<b>", ["auto"], 5])
def test_what_gated_can_be(hub: Hub, context: Context, gated: object) -> None:
    hub.add_model("org/tiny", FILES)
    hub.inject(
        edited(lambda info: info.update(gated=gated, tags=None, cardData=[])), "*/revision/*"
    )
    artifacts = MODELS.resolve(["org/tiny"], context)
    assert {a.text("gated") for a in artifacts} == {""}
    assert len([s for s in hub.seen if s.method == "HEAD"]) == bool(gated)


# Where the bytes are


def test_xet_is_not_used(hub: Hub, context: Context) -> None:
    hub.add(Repo("org/tiny", xet="bridge"), FILES)
    resolve(["org/tiny"], context)
    assert not [s.path for s in hub.seen if "xet" in s.path]


def test_a_hub_that_gives_by_xet_only(hub: Hub, context: Context) -> None:
    hub.add(Repo("org/tiny", xet="only"), FILES)
    artifacts = MODELS.resolve(["org/tiny"], context)
    with pytest.raises(DownloadError) as caught:
        fetch(artifacts, ["org/tiny"], context)
    assert len(caught.value.problems) == 2
    assert "org/tiny/model.safetensors: HTTP 403" in caught.value.problems[0]


def test_large_files_come_from_another_origin_without_the_token(
    hub: Hub, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    commit = hub.add_model("org/tiny", FILES).refs["main"]
    with Server() as storage:
        storage.files[f"/org/tiny/resolve/{commit}/model.safetensors"] = WEIGHTS
        hub.inject(faults.redirect(storage.url), path="*.safetensors")
        resolve(["org/tiny"], context)
        assert all("authorization" not in s.headers for s in storage.seen)
        assert len(storage.seen) == 1


def test_labels_say_what_it_is(hub: Hub, context: Context) -> None:
    hub.add(Repo("org/tiny", "datasets"), {"a\x1bb": b"x", "config.json": b"{}"})
    artifacts = Repositories("datasets").resolve(["org/tiny"], context)
    item = HubRepository(repo="org/tiny")
    request, _ = hubs.requests("datasets", artifacts, item, context)
    assert request.label == "datasets/org/tiny/a\\x1bb"
    assert request.digest == f"sha256:{sha256(b'x')}"
    assert heard(context) == []


def test_a_stale_lock_asks_at_its_commit_only(hub: Hub, tmp_path: Path) -> None:
    context = make_context(tmp_path, Patience(attempts=1))
    hub.add_model("org/tiny", FILES)
    locked = MODELS.resolve(["org/tiny"], context)
    hub.seen.clear()
    MODELS.resolve(["org/tiny"], replace(context, kept=tuple(locked)))
    assert "/api/models/org/tiny/revision/main" not in [s.path for s in hub.seen]
    lock = Lock(inputs="0" * 64, target=context.target, artifacts=tuple(locked)).to_bytes()
    assert b"127.0.0.1" not in lock


def test_all_that_cannot_be_had_are_named(hub: Hub, context: Context) -> None:
    for name in ("org/fine", "org/fine2"):
        hub.add_model(name, FILES)
    section: list[RepositoryItem] = [
        "org/missing",
        "org/fine",
        HubRepository(repo="org/fine2", revision="v9"),
        "org/missing2",
    ]
    found = error(section, context)
    assert isinstance(found, ResolutionError)
    host = hub.url.removeprefix("http://")
    assert found.message == f"org/missing: {host} has no such model, or shows it to others only"
    assert found.problems[0] == "org/fine2 has no revision 'v9'"
    assert f"org/missing2: {host} has no such model, or shows it to others only" in found.problems
    for words in ("HF_TOKEN", "HF_ENDPOINT", "endpoint:"):
        assert words in str(found.hint)
    assert not hub.gets("*/resolve/*")  # nothing is downloaded before all can be had


def test_names_that_no_hub_has(hub: Hub, context: Context) -> None:
    found = error(["org/missing", "org/name.git", "org/name-"], context)
    assert isinstance(found, UsageError)
    assert "'org/name.git' cannot be the name of a repository on a Hub" in found.message
    for name in ("org/missing", "'org/name-'"):
        assert name in str(found.problems)
