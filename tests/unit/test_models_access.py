"""How a Hub is asked: where, by whom, with what patience, and what is said when it refuses."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from huggingface_hub import constants

from mirror.core.lock import Lock
from mirror.core.manifest import HubRepository, RepositoryItem
from mirror.ecosystems.models.origins import api
from mirror.ecosystems.models.source import Repositories
from mirror.ecosystems.source import Context
from mirror.errors import DownloadError, ResolutionError, UsageError
from mirror.fetch.http import Fetcher, Patience, Request
from tests.asking import FILES, MODELS, error, fetch, heard, make_context, nobody, resolve
from tests.hub import Hub, Reply, Repo, Seen, faults
from tests.hub.hub import edited

CANARY = "hf_C4n4ryT0k3nThatNobodyMaySee"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    nobody(monkeypatch, tmp_path)
    with Hub() as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        yield running


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return make_context(tmp_path)


def anew(context: Context, patience: Patience | None = None) -> Context:
    """The same builder in a further run."""
    fetcher = Fetcher(context.blobs, context.progress, patience=patience or Patience(attempts=1))
    return replace(context, fetcher=fetcher)


def tokens(hub: Hub) -> set[str | None]:
    return {s.headers.get("authorization") for s in hub.seen}


# Where


def test_the_manifest_s_endpoint_wins(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", CANARY)
    with Hub() as other:
        other.add_model("org/tiny", FILES)
        context = make_context(tmp_path, endpoint=f"{other.url}/")
        resolve(["org/tiny"], context)
        resolve(["org/tiny"], context)
        assert hub.seen == []
        assert tokens(other) == {f"Bearer {CANARY}"}
        host = other.url.removeprefix("http://")
        said = [line for line in heard(context) if "token" in line]
        assert said == [f"the token of HF_TOKEN is sent to {host}, the manifest's endpoint"]


def test_the_endpoint_that_is_meant_anyhow_is_not_told(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add_model("org/tiny", FILES)
    monkeypatch.setenv("HF_TOKEN", CANARY)
    context = make_context(tmp_path, endpoint=hub.url)
    resolve(["org/tiny"], context)
    assert heard(context) == []
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    context = anew(context)
    resolve(["org/tiny"], context)  # nothing is sent there
    assert heard(context) == []


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:1", "hub.example.invalid", "ftp://a", "http://", "http://a:b", "https://a?x=1"],
)
def test_an_endpoint_that_is_no_address(
    context: Context, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", address)
    found = error(["org/tiny", "org/other"], context)
    assert isinstance(found, UsageError)
    assert found.message == "HF_ENDPOINT is not the address of a Hub: it is no http or https URL"
    assert found.problems == ()  # once for all
    found = error(["org/tiny"], replace(context, endpoint="http://[x"))
    assert found.message.startswith("`endpoint:` is not the address of a Hub")


def test_an_endpoint_with_credentials(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://user:s3cret@127.0.0.1:1")
    found = error(["org/tiny", "org/other"], context)
    assert isinstance(found, UsageError)
    assert "HF_ENDPOINT holds a user or a password" in found.message
    assert "netrc" in str(found.hint)
    assert "s3cret" not in str(found)


def test_an_empty_endpoint_is_the_client_s_own(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", " ")
    monkeypatch.setattr(constants, "ENDPOINT", "")
    own = constants.HUGGINGFACE_CO_URL_HOME.rstrip("/")
    assert api.of(context).endpoint == own


@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline(hub: Hub, context: Context, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add_model("org/tiny", FILES)
    artifacts = MODELS.resolve(["org/tiny"], context)
    hub.seen.clear()
    monkeypatch.setenv(name, "yes")
    found = error(["org/tiny", "org/other"], context)
    assert isinstance(found, DownloadError)
    assert found.message == f"{name} is set: {hub.url.removeprefix('http://')} may not be asked"
    assert found.hint == f"Unset {name}."
    with pytest.raises(DownloadError, match=name):
        MODELS.requests(artifacts, ["org/tiny"], context)
    assert hub.seen == []
    monkeypatch.setenv(name, "0")
    MODELS.resolve(["org/tiny"], context)


# By whom


def test_tokens_where_the_client_looks_for_them(
    hub: Hub, context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add_model("org/gated", FILES, gated="hf_file")
    hub.add_model("org/private", FILES, token="hf_file")
    section: list[RepositoryItem] = ["org/gated", "org/private"]
    (tmp_path / "token").write_text("\nhf_file \n", encoding="utf-8")
    resolve(section, context)
    assert tokens(hub) == {"Bearer hf_file"}
    for number, name in enumerate(("HUGGING_FACE_HUB_TOKEN", "HF_TOKEN")):
        token = f"hf_{number}"
        monkeypatch.setenv(name, token)
        for repo in hub.repos.values():
            repo.gated, repo.token = repo.gated and token, repo.token and token
        hub.seen.clear()
        run = make_context(tmp_path / name)
        resolve(section, run)
        assert tokens(hub) == {f"Bearer {token}"}


@pytest.mark.parametrize("variable", ["HF_TOKEN_PATH", "HF_HOME", "HF_HUB_DISABLE_IMPLICIT_TOKEN"])
def test_the_client_s_variables(tmp_path: Path, variable: str) -> None:
    (tmp_path / "token").write_text(CANARY, encoding="utf-8")
    place = {"HF_HOME": tmp_path, "HF_TOKEN_PATH": tmp_path / "token"}.get(variable, "1")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
    environment |= {"HOME": str(tmp_path), "HF_HOME": str(tmp_path / "none"), variable: str(place)}
    if variable == "HF_HUB_DISABLE_IMPLICIT_TOKEN":
        environment["HF_TOKEN"] = CANARY
    code = "from mirror.ecosystems.models.origins import credentials as c; f = c.find('http://a');"
    code += "print(f.header, f.source); print(f)"
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    told, shown = run.stdout.splitlines()
    if variable == "HF_HUB_DISABLE_IMPLICIT_TOKEN":
        assert told.strip() == ""
    else:
        assert told == f"Bearer {CANARY} the file {tmp_path / 'token'}"
    assert CANARY not in shown


@pytest.mark.parametrize(
    ("entry", "sent"),
    [
        ("machine 127.0.0.1 login me password hf_netrc", "Bearer hf_netrc"),
        ("machine 127.0.0.1 login me password word", "Basic bWU6d29yZA=="),
        ("default login me password hf_netrc", "Bearer hf_netrc"),
        ("machine hub.example.invalid login me password hf_netrc", None),
        ("machine 127.0.0.1 nonsense", None),
    ],
)
def test_netrc(hub: Hub, context: Context, tmp_path: Path, entry: str, sent: str | None) -> None:
    (tmp_path / "netrc").write_text(f"{entry}\n", encoding="utf-8")
    (tmp_path / "netrc").chmod(0o600)
    token = {"Bearer hf_netrc": "hf_netrc", "Basic bWU6d29yZA==": "me:word"}.get(sent or "")
    hub.add_model("org/tiny", FILES, token=token)
    resolve(["org/tiny"], context)
    assert tokens(hub) == {sent}
    assert {s.method for s in hub.seen} == {"GET"}


def test_a_token_goes_before_netrc(
    hub: Hub, context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "netrc").write_text("default login me password hf_netrc\n", encoding="utf-8")
    monkeypatch.setenv("HF_TOKEN", "hf_token")
    hub.add_model("org/tiny", FILES)
    resolve(["org/tiny"], context)
    assert tokens(hub) == {"Bearer hf_token"}


@pytest.mark.parametrize("token", ["two words", "hf_ü", "a\x00b", "hf_\u200b"])
def test_what_is_no_token(hub: Hub, context: Context, tmp_path: Path, token: str) -> None:
    (tmp_path / "token").write_text(token, encoding="utf-8")
    found = error(["org/tiny", "org/other"], context)
    assert isinstance(found, UsageError)
    assert f"what the file {tmp_path / 'token'} holds is no token" in found.message
    assert found.problems == ()
    assert token not in str(found)
    assert hub.seen == []


def test_a_token_file_that_cannot_be_read(hub: Hub, context: Context, tmp_path: Path) -> None:
    (tmp_path / "token").mkdir()
    found = error(["org/tiny"], context)
    assert isinstance(found, UsageError)
    assert f"no token can be read from the file {tmp_path / 'token'}" in found.message


def test_a_listing_elsewhere_does_not_get_the_token(
    hub: Hub, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", CANARY)
    hub.page_size = 2
    with Hub(page_size=2) as other:
        for one in (hub, other):
            one.add_model("org/tiny", FILES)
        hub.inject(faults.redirect(other.url), path="/api/*")
        resolve(["org/tiny"], context)
        assert len([s for s in other.seen if "/api/" in s.path]) > 2
        assert tokens(other) == {None}
        # A mirror may pass on its origin's address of the next page.
        hub.heal()
        other.seen.clear()

        def pass_on(seen: Seen, reply: Reply) -> None:
            if link := reply.headers.get("Link"):
                reply.headers["Link"] = link.replace(hub.url, other.url)

        hub.inject(pass_on, path="*/tree/*")
        assert len(MODELS.resolve(["org/tiny"], anew(context))) == len(FILES)
        assert other.seen == []


def test_nobody_is_told_the_token(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("HF_TOKEN", CANARY)
    hub.add(Repo("org/fine", gated=CANARY, card={"license": "mit"}), FILES)
    context = make_context(tmp_path, endpoint=hub.url.replace("127.0.0.1", "localhost"))
    artifacts = resolve(["org/fine"], context)
    texts = [repr(artifacts), repr(MODELS.requests(artifacts, ["org/fine"], context))]
    texts += [Lock("0" * 64, context.target, tuple(artifacts)).to_bytes().decode()]
    hub.add_model("org/gated", FILES, gated="hf_other")
    hub.add_model("org/private", FILES, token="hf_other")
    section: list[RepositoryItem] = ["org/gated", "org/private", "org/missing"]
    texts += [repr(error(section, context)), str(error(section, context))]
    for code in (500, 401, 403, 404, 302):
        hub.inject(faults.status(code, X_Error_Message="no"), path="*/org/fine/*")
        texts.append(str(error(["org/fine"], anew(context))))
        with pytest.raises((DownloadError, ResolutionError)) as caught:
            resolve(["org/fine"], make_context(tmp_path / str(code)))
        texts.append(str(caught.value))
        hub.heal()
    assert f"Bearer {CANARY}" in tokens(hub)
    told = "\n".join([*texts, *heard(context), caplog.text])
    assert "the token of HF_TOKEN" in told
    assert CANARY not in told
    assert CANARY[3:12] not in told


# What is said when it refuses


@pytest.mark.parametrize(
    ("kind", "gate"), [("models", "auto"), ("datasets", "manual"), ("spaces", "auto")]
)
def test_a_gated_repository_is_asked_for_one_file_first(
    hub: Hub, context: Context, kind: str, gate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo = hub.add(Repo("org/gated", kind, gated="right"), FILES)
    repo.gate = "auto" if gate == "auto" else "manual"
    source = Repositories(kind)
    found = error(["org/gated"], context, source)
    assert isinstance(found, ResolutionError)
    assert found.message == f"{repo.label} is gated, and this user may not download it"
    hint = str(found.hint)
    assert f"Accept its terms on {hub.url}/{repo.label}" in hint
    assert ("wait for its owner" in hint) == (gate == "manual")
    assert "No token is set: let HF_TOKEN hold one" in hint
    assert [s.method for s in hub.seen if "/resolve/" in s.path] == ["HEAD"]

    monkeypatch.setenv("HF_TOKEN", "right")
    hub.seen.clear()
    artifacts = resolve(["org/gated"], anew(context), source)
    assert len([s for s in hub.seen if s.method == "HEAD"]) == 1
    assert {a.text("gated") for a in artifacts} == {gate}


def test_a_locked_one_is_asked_for_before_anything_is_fetched(
    hub: Hub, context: Context, tmp_path: Path
) -> None:
    gated = [hub.add(Repo(f"org/gated{n}"), FILES) for n in range(2)]
    hub.add_model("org/open", FILES)
    section: list[RepositoryItem] = ["org/open", "org/gated0", "org/gated1"]
    locked = [
        replace(a, origin={**a.origin, "gated": "auto"}) if "gated" in a.text("repo") else a
        for a in MODELS.resolve(section, context)
    ]
    for repo in gated:
        repo.gated = "right"
    hub.seen.clear()
    with pytest.raises(ResolutionError) as caught:
        MODELS.requests(locked, section, make_context(tmp_path / "other"))
    assert "org/gated0 is gated" in caught.value.message
    assert "org/gated1 is gated" in caught.value.problems[0]
    assert [s.method for s in hub.seen] == ["HEAD", "HEAD"]
    # Nothing of it is wanted that is not open to all.
    few = [a for a in locked if a.text("file") == "README.md"]
    assert len(MODELS.requests(few, section, make_context(tmp_path / "third"))) == 3


def test_a_gate_that_closes_after_the_check(hub: Hub, context: Context) -> None:
    repo = hub.add_model("org/gated", FILES)
    artifacts = MODELS.resolve(["org/gated"], context)
    repo.gated = "right"
    with pytest.raises(DownloadError) as caught:
        fetch(artifacts, ["org/gated"], context)
    assert "org/gated/model.safetensors: HTTP 401: Access to model org/gated" in str(caught.value)
    assert "HF_TOKEN" in str(caught.value.hint)


def test_a_gate_is_asked_at_the_hub_not_at_its_storage(
    hub: Hub, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "right")
    hub.add(
        Repo("org/gated", gated="right", lfs_from=0), {"config.json": b"{}", "w.safetensors": b"w"}
    )
    hub.inject(faults.redirect("http://127.0.0.1:1"), path="*/resolve/*", methods=("HEAD",))
    assert len(MODELS.resolve(["org/gated"], context)) == 2


@pytest.mark.parametrize(
    ("role", "words"),
    [
        (None, "does not know the token of HF_TOKEN. It may be mistyped, expired or revoked."),
        ("read", "was sent the token of HF_TOKEN (read): its account has no access."),
        ("write", "was sent the token of HF_TOKEN (write): its account has no access."),
        ("odd\x1b", "was sent the token of HF_TOKEN: its account has no access."),
        (
            "fineGrained",
            "HF_TOKEN (fine-grained): it needs the permission to read public gated repositories",
        ),
    ],
)
def test_the_token_s_kind(
    hub: Hub, context: Context, role: str | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", CANARY)
    for name in ("org/a", "org/b"):
        hub.add_model(name, FILES, gated="right")
    hub.add_model("org/c", FILES, token="right")
    if role:
        hub.accounts[CANARY] = role
    found = error(["org/a", "org/b", "org/c", "org/missing"], context)
    assert isinstance(found, ResolutionError)
    assert words in str(found.hint)
    for name in ("org/b", "org/c", "org/missing"):
        assert name in str(found)
    assert str(found).count(words) == 1
    assert [s.path for s in hub.seen].count("/api/whoami-v2") == 1


def test_a_fine_grained_token_that_has_the_permission(
    hub: Hub, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", CANARY)
    hub.accounts[CANARY] = "fineGrained"
    hub.add_model("org/a", FILES, gated="right")
    grant = edited(lambda d: d["auth"]["accessToken"]["fineGrained"].update(canReadGatedRepos=True))
    hub.inject(grant, path="/api/whoami-v2")
    words = "was sent the token of HF_TOKEN (fine-grained): its account has no access."
    assert words in str(error(["org/a"], context).hint)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"auth": null}', b'{"auth": {}}'])
def test_whoami_need_not_answer(
    hub: Hub, context: Context, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", CANARY)
    hub.add_model("org/a", FILES, gated="right")
    change = faults.replace(body) if body else faults.status(503, "3600")
    hub.inject(change, path="/api/whoami-v2")
    assert "was sent the token of HF_TOKEN: its account" in str(error(["org/a"], context).hint)


def test_a_login_of_netrc_is_called_so(hub: Hub, context: Context, tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text("default login me password word\n", encoding="utf-8")
    hub.add_model("org/a", FILES, gated="right")
    hub.inject(faults.status(404), path="/api/whoami-v2")
    assert "was sent the login of netrc: its account" in str(error(["org/a"], context).hint)


def test_a_token_that_the_hub_refuses_for_what_is_open(
    hub: Hub, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_old")
    hub.add_model("org/open", FILES)
    hub.accounts["hf_new"] = "read"
    found = error(["org/open"], context)
    assert found.message.endswith("does not know the token of HF_TOKEN")
    assert "mistyped" in str(found.hint)


def test_requests_of_a_lock_need_no_hub(hub: Hub, context: Context) -> None:
    hub.add_model("org/tiny", FILES)
    artifacts = MODELS.resolve(["org/tiny"], context)
    hub.seen.clear()
    places = MODELS.requests(artifacts, [HubRepository(repo="org/tiny")], context)
    assert all(isinstance(place, Request) for place in places)
    assert hub.seen == []
