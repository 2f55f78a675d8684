"""Channels: what a manifest may call one, and what is written down of it."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from mirror.core.requirements.values import Line
from mirror.ecosystems.conda.solving.channels import Channel, parse
from tests.conda_packages import write_channel


@pytest.fixture(autouse=True)
def _nobodys_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials of whoever runs the tests."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("NETRC", "RATTLER_AUTH_FILE"):
        monkeypatch.delenv(name, raising=False)


def channels(beside: Path, *texts: str) -> list[Channel]:
    found, mistakes = parse([Line(text, "e.yml:1") for text in texts], beside)
    assert mistakes == []
    return found


def refused(beside: Path, *texts: str) -> list[str]:
    lines = [Line(text, f"e.yml:{number}") for number, text in enumerate(texts)]
    return [str(mistake) for mistake in parse(lines, beside)[1]]


@pytest.mark.parametrize(
    "text", ["local/", "./local", "../{0}/local", "{1}/local", "file://{1}/local"]
)
def test_folder(tmp_path: Path, text: str) -> None:
    folder = write_channel(tmp_path / "local")
    (found,) = channels(tmp_path, text.format(tmp_path.name, tmp_path))
    assert found == Channel("local", str(folder), folder)


@pytest.mark.parametrize("subdir", ["noarch", "linux-64", "win-64"])
def test_a_folder_of_one_subdir_is_a_channel(tmp_path: Path, subdir: str) -> None:
    (tmp_path / "local" / subdir).mkdir(parents=True)
    (tmp_path / "local" / subdir / "repodata.json").touch()
    (found,) = channels(tmp_path, "./local")
    assert found.folder == tmp_path / "local"


@pytest.mark.parametrize(
    ("text", "name", "location"),
    [
        ("conda-forge", "conda-forge", "conda-forge"),
        ("nvidia/label/cuda-12.4.0", "nvidia/label/cuda-12.4.0", "nvidia/label/cuda-12.4.0"),
        ("https://c.invalid/conda-forge", "conda-forge", "https://c.invalid/conda-forge"),
        ("https://c.invalid:8443/a/b/", "b", "https://c.invalid:8443/a/b/"),
        (
            "https://c.invalid/x/nvidia/label/cuda-12/",
            "nvidia/label/cuda-12",
            "https://c.invalid/x/nvidia/label/cuda-12/",
        ),
        ("https://c.invalid/", "channel", "https://c.invalid/"),
        ("https://c.invalid/b?token=s3cret#s3cret", "b", "https://c.invalid/b"),
    ],
)
def test_elsewhere(tmp_path: Path, text: str, name: str, location: str) -> None:
    assert channels(tmp_path, text) == [Channel(name, location)]


def test_a_name_means_the_address_that_is_listed_for_it(tmp_path: Path) -> None:
    write_channel(tmp_path / "c" / "bioconda")
    found = channels(
        tmp_path,
        *("conda-forge", "bioconda", "conda-forge", "https://c.invalid/mirrors/conda-forge"),
        *("c/bioconda/", "conda-forge", "./c/bioconda", "https://c.invalid/mirrors/conda-forge/"),
    )
    assert [(channel.name, channel.location) for channel in found] == [
        ("conda-forge", "https://c.invalid/mirrors/conda-forge"),
        ("bioconda", str(tmp_path / "c" / "bioconda")),
    ]


def test_two_addresses_of_one_name_cannot_be_told_apart(tmp_path: Path) -> None:
    (problem,) = refused(tmp_path, "https://a.invalid/x", "https://b.invalid/x", "x")
    assert problem == "e.yml:1: a second channel is called x: keep one"


def test_the_channels_of_condas_own_configuration_are_to_be_named(tmp_path: Path) -> None:
    (problem,) = refused(tmp_path, "conda-forge", "defaults", "nodefaults")
    assert problem.startswith("e.yml:1: defaults stands for what conda's own configuration says")
    assert "https://HOST/defaults" in problem
    (found,) = channels(tmp_path, "nodefaults", "defaults", "https://c.invalid/mirror/defaults")
    assert found.location == "https://c.invalid/mirror/defaults"


def test_credentials_go_into_headers_and_nowhere_else(tmp_path: Path) -> None:
    (found,) = channels(tmp_path, "https://me:s3%40cret@c.invalid/private")
    assert found.location == "https://c.invalid/private"
    assert found.headers == {"Authorization": "Basic " + base64.b64encode(b"me:s3@cret").decode()}
    assert "s3" not in repr(found)


def test_a_token_in_the_path_is_asked_with_and_never_named(tmp_path: Path) -> None:
    (found,) = channels(tmp_path, "https://c.invalid/get/t/to-k3n/conda-forge")
    assert (found.name, found.location) == ("conda-forge", "https://c.invalid/get/conda-forge")
    assert found.base == "https://c.invalid/get/conda-forge/"
    assert found.url("noarch/a.conda") == (
        "https://c.invalid/get/t/to-k3n/conda-forge/noarch/a.conda"
    )
    assert "to-k3n" not in repr(found)
    assert found.masked("at /t/to-k3n/x") == "at /t/****/x"


def test_variables_of_the_environment_are_filled_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHANNEL_USER", "me")
    monkeypatch.setenv("CHANNEL_TOKEN", "s3cret")
    (found,) = channels(tmp_path, "https://${CHANNEL_USER}:$CHANNEL_TOKEN@c.invalid/private")
    assert found.headers["Authorization"] == "Basic " + base64.b64encode(b"me:s3cret").decode()
    (problem,) = refused(tmp_path, "https://me:${NO_SUCH_THING}@c.invalid/x")
    assert problem == "e.yml:0: the variable NO_SUCH_THING is not set here"


def test_credentials_of_netrc_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine c.invalid login me password s3cret\n", encoding="utf-8")
    monkeypatch.setenv("NETRC", str(netrc))
    kept, open_to_all, own = channels(
        tmp_path, "https://c.invalid/a", "https://d.invalid/b", "https://you:x@c.invalid/c"
    )
    assert kept.headers == {"Authorization": "Basic " + base64.b64encode(b"me:s3cret").decode()}
    assert open_to_all.headers == {}
    assert own.headers == {"Authorization": "Basic " + base64.b64encode(b"you:x").decode()}


def test_credentials_of_rattlers_file_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = {
        "*.corp.invalid": {"BearerToken": "b"},
        "c.invalid": {"BasicHTTP": {"username": "me", "password": "p"}},
        "d.invalid": {"CondaToken": "tok"},
        "e.invalid": {"S3Credentials": {}},
    }
    file = tmp_path / "auth.json"
    file.write_text(json.dumps(table), encoding="utf-8")
    monkeypatch.setenv("RATTLER_AUTH_FILE", str(file))
    urls = ["https://x.corp.invalid/a", "https://c.invalid/b", "https://d.invalid/c"]
    bearer, basic, token, other = channels(tmp_path, *urls, "https://e.invalid/d")
    assert bearer.headers == {"Authorization": "Bearer b"}
    assert basic.headers == {"Authorization": "Basic " + base64.b64encode(b"me:p").decode()}
    assert token.url("x") == "https://d.invalid/t/tok/c/x"
    assert (other.headers, other.address) == ({}, "")
    file.write_text("no JSON", encoding="utf-8")
    assert channels(tmp_path, "https://c.invalid/b")[0].headers == {}


def test_every_problem_is_named_and_no_secret(tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    write_channel(tmp_path / "here")
    wrong = {
        "missing/": f"there is no folder {tmp_path / 'missing'}",
        "./bare": "it has no SUBDIR/repodata.json",
        "here": "write ./here for it",
        "s3://u:s3cret@bucket/x": "channels are folders, http(s) URLs or names",
        "https:///x": "https://: channels are folders",
        "https://ho st/t/s3cret/x": "https://ho st: channels are folders",
        "https://s3cret@c.invalid:99999/x": "Port out of range",
        "https://[s3cret/x": "Invalid IPv6 URL",
        "::": "::: channels are folders (./channel), http(s) URLs or names",
        "..x": "..x: channels are folders",
    }
    problems = sorted(refused(tmp_path, *wrong))
    assert len(problems) == len(wrong)
    for number, expected in enumerate(wrong.values()):
        assert problems[number].startswith(f"e.yml:{number}: ")
        assert expected in problems[number]
    assert "s3cret" not in "".join(problems)
