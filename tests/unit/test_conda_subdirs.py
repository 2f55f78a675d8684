"""Channels by URL: what is read of them, what they answer instead, and what is kept of it all."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from pathlib import Path

import pytest

from mirror.core.artifact import Artifact, Json
from mirror.core.lock import Lock
from mirror.core.manifest import CondaSection
from mirror.ecosystems.conda import source
from mirror.ecosystems.conda.records import document, record
from mirror.errors import DownloadError
from mirror.fetch.http import Request
from tests.channel_server import served, written
from tests.conda_packages import (
    DATA,
    Package,
    context,
    needs_data,
    section,
    write_channel,
    zstd,
)

TOOL = Package("tool", depends=["lib >=2"], files={"bin/tool": b"#!/bin/sh\n"})
LIBS = [Package("lib", "1.0"), Package("lib", "2.0"), Package("lib", "3.0", subdir="linux-64")]
SECRET = "s3cr3t-c4n4ry"
BASIC = "Basic " + base64.b64encode(f"me:{SECRET}".encode()).decode()


@pytest.fixture(autouse=True)
def _nobodys_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No credentials of whoever runs the tests."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("NETRC", "RATTLER_AUTH_FILE"):
        monkeypatch.delenv(name, raising=False)


def paths(artifacts: list[Artifact]) -> list[str]:
    return [artifact.path for artifact in artifacts]


def refusal(tmp_path: Path, host: str, name: str = "c") -> str:
    with pytest.raises(DownloadError) as caught:
        source.resolve(section(f"http://{host}/{name}", "tool"), context(tmp_path))
    return str(caught.value)


def test_a_channel_by_url_is_recorded_by_its_name(tmp_path: Path) -> None:
    write_channel(tmp_path / "www" / "mirrors" / "main", TOOL, *LIBS)
    here = context(tmp_path)
    with served(tmp_path / "www", login=BASIC) as www:
        wanted = section(f"http://me:{SECRET}@{www.host}/mirrors/main", "tool")
        found = source.resolve(wanted, here)
        _, tool = source.requests(found, wanted, here)
    assert tool == Request(
        url=f"http://{www.host}/mirrors/main/noarch/{TOOL.file}",
        label=TOOL.file,
        digest=f"sha256:{found[1].sha256}",
        size=found[1].size,
        headers={"Authorization": BASIC},
    )
    assert "127.0.0.1" not in repr([a.origin for a in found])
    folder = section(tmp_path / "www" / "mirrors" / "main", "tool")
    assert source.resolve(folder, here) == found, "one lock for every mirror of a channel"


@pytest.mark.parametrize("way", ["url", "token", "netrc", "file", "variable"])
def test_no_credential_is_ever_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A canary: looked for, also encoded, in every byte below the builder's store and the lock."""
    needy = Package(
        "needy", depends=["python"], files={"site-packages/n.dist-info/METADATA": b"Name: n\n"}
    )
    write_channel(tmp_path / "www" / "c", TOOL, *LIBS, needy, Package("python", "3.11.1"))
    token = f"/t/{SECRET}" if way == "token" else ""
    with served(tmp_path / "www", token=token, login=None if token else BASIC) as www:
        url = {
            "url": f"http://me:{SECRET}@{www.host}/c",
            "token": f"http://{www.host}{token}/c",
            "variable": f"http://me:${{CHANNEL_SECRET}}@{www.host}/c",
        }.get(way, f"http://{www.host}/c")
        netrc, auth = tmp_path / "netrc", tmp_path / "auth.json"
        login = {"username": "me", "password": SECRET}
        auth.write_text(json.dumps({"127.0.0.1": {"BasicHTTP": login}}), encoding="utf-8")
        netrc.write_text(f"machine 127.0.0.1 login me password {SECRET}\n", encoding="utf-8")
        monkeypatch.setenv("CHANNEL_SECRET", SECRET)
        monkeypatch.setenv("NETRC", str(netrc if way == "netrc" else tmp_path / "none"))
        monkeypatch.setenv("RATTLER_AUTH_FILE", str(auth if way == "file" else tmp_path / "none"))
        here, wanted = context(tmp_path), section(url, "tool", "needy")
        found = source.resolve(wanted, here)
        source.inputs(wanted, here)
        requests = [r for r in source.requests(found, wanted, here) if isinstance(r, Request)]
        here.fetcher.fetch(requests)
        source.prove(found, wanted, here)
        said = []
        again = context(tmp_path / "again")
        (tmp_path / "www" / "c" / "noarch" / TOOL.file).unlink()
        with pytest.raises(DownloadError, match="404") as caught:
            again.fetcher.fetch(requests)
        said.append(str(caught.value))
        (tmp_path / "www" / "c" / "noarch" / "repodata.json").write_bytes(b"<html>")
        with pytest.raises(DownloadError, match="it is no repodata") as caught:
            source.resolve(wanted, again)
        said.append(str(caught.value))
        www.login = www.token = "another"
        with pytest.raises(DownloadError, match="HTTP 40") as caught:
            source.resolve(wanted, context(tmp_path / "again" / "more"))
        said.append(str(caught.value))
    lock = Lock(inputs="0", target=here.target, artifacts=tuple(found)).to_bytes()
    derived = source.derived(found, here)
    canaries = [SECRET.encode(), base64.b64encode(f"me:{SECRET}".encode())]
    everything = {**written(here.blobs.folder), **written(tmp_path / "again" / "builder")}
    assert len(everything) > len(found)
    for place, data in [*everything.items(), ("lock", lock), *derived.items()]:
        for canary in canaries:
            assert canary not in data, place
            assert canary not in str(place).encode()
    assert SECRET not in "".join(said)


def test_who_is_sent_elsewhere_takes_no_credentials_along(tmp_path: Path) -> None:
    write_channel(tmp_path / "www" / "c", TOOL, *LIBS)
    with served(tmp_path / "www") as other, served(tmp_path / "www", login=BASIC) as www:
        www.elsewhere = f"http://{other.host}"
        here, wanted = context(tmp_path), section(f"http://me:{SECRET}@{www.host}/c", "tool")
        found = source.resolve(wanted, here)
        requests = [r for r in source.requests(found, wanted, here) if isinstance(r, Request)]
        here.fetcher.fetch(requests)
    assert {login for _, login in www.asked} == {BASIC}
    assert [path for path, _ in other.asked], "the packages came from there"
    assert {login for _, login in other.asked} == {None}


def test_wrong_credentials_are_named_with_the_ways_to_give_them(tmp_path: Path) -> None:
    write_channel(tmp_path / "www" / "c", TOOL)
    with served(tmp_path / "www", login="Basic other") as www:
        said = refusal(tmp_path, www.host)
    assert f"http://{www.host}/c/linux-64/repodata.json: HTTP 401" in said
    assert f"http://{www.host}/c/noarch/repodata.json: HTTP 401" in said
    assert "netrc" in said


@pytest.mark.parametrize("only", ["noarch", "linux-64"])
def test_a_channel_may_have_one_subdir_alone(tmp_path: Path, only: str) -> None:
    write_channel(tmp_path / "www" / "c", Package("tool", subdir=only))
    other = {"noarch": "linux-64", "linux-64": "noarch"}[only]
    shutil.rmtree(tmp_path / "www" / "c" / other)
    with served(tmp_path / "www") as www:
        found = source.resolve(section(f"http://{www.host}/c", "tool"), context(tmp_path))
    assert paths(found) == [f"conda/{only}/tool-1.0-0.tar.bz2"]
    local = section(tmp_path / "www" / "c", "tool")
    assert source.resolve(local, context(tmp_path)) == found
    source.prove(found, local, context(tmp_path))


def test_a_server_out_of_reach_is_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mirror.ecosystems.conda.solving.subdirs._RETRIES", 0)
    (tmp_path / "www").mkdir()
    with served(tmp_path / "www") as www:
        gone = www.host
    with pytest.raises(DownloadError) as caught:
        source.resolve(section(f"http://{gone}/t/{SECRET}/c", "tool"), context(tmp_path))
    (problem,) = caught.value.problems
    assert problem.startswith(f"http://{gone}/c/linux-64/repodata.json: the server cannot be")
    assert SECRET not in str(caught.value)


def test_a_channel_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "www").mkdir()
    with served(tmp_path / "www") as www:
        said = refusal(tmp_path, www.host, "ghost")
    assert f"http://{www.host}/ghost has neither linux-64 nor noarch" in said


def test_a_channel_that_answers_html_is_named(tmp_path: Path) -> None:
    for subdir in ("noarch", "linux-64"):
        (tmp_path / "www" / "c" / subdir).mkdir(parents=True)
        page = tmp_path / "www" / "c" / subdir / "repodata.json"
        page.write_text("<html>Please log in</html>", encoding="utf-8")
    with served(tmp_path / "www") as www:
        said = refusal(tmp_path, www.host)
    for subdir in ("noarch", "linux-64"):
        assert f"http://{www.host}/c/{subdir}/repodata.json: it is no repodata" in said


def test_a_channel_that_answers_with_another_document_is_named(tmp_path: Path) -> None:
    write_channel(tmp_path / "www" / "c", TOOL)
    error = b'{"error": "no subscription", "token": "?"}'
    (tmp_path / "www" / "c" / "noarch" / "repodata.json").write_bytes(error)
    with served(tmp_path / "www") as www:
        said = refusal(tmp_path, www.host)
    assert "noarch/repodata.json: it is no repodata: it has no `packages`" in said
    with pytest.raises(DownloadError, match="it has no `packages`"):
        source.resolve(section(tmp_path / "www" / "c", "tool"), context(tmp_path))


def test_compressed_repodata_is_taken_where_there_is_any(tmp_path: Path) -> None:
    channel = write_channel(tmp_path / "www" / "c", TOOL, *LIBS)
    for subdir in ("noarch", "linux-64"):
        plain = channel / subdir / "repodata.json"
        (channel / subdir / "repodata.json.zst").write_bytes(zstd(plain.read_bytes()))
        plain.unlink()
    with served(tmp_path / "www") as www:
        found = source.resolve(section(f"http://{www.host}/c", "tool"), context(tmp_path))
    assert len(found) == 2
    assert "/c/noarch/repodata.json" not in {path for path, _ in www.asked}


def test_neither_unpatched_nor_current_repodata_is_ever_asked_for(tmp_path: Path) -> None:
    """A channel's owner mends records after the fact: what a package says of itself is older."""
    patched = Package("tool", depends=["lib =2"])
    channel = write_channel(tmp_path / "www" / "c", TOOL, *LIBS)
    known: dict[str, Json] = {
        **patched.index(),
        "sha256": hashlib.sha256(TOOL.to_bytes()).hexdigest(),
        "size": len(TOOL.to_bytes()),
    }
    repodata = channel / "noarch" / "repodata.json"
    shutil.copy(repodata, channel / "noarch" / "repodata_from_packages.json")
    shutil.copy(repodata, channel / "noarch" / "current_repodata.json")
    table = json.loads(repodata.read_bytes())
    table["packages"][TOOL.file] = known
    repodata.write_bytes(json.dumps(table).encode())
    with served(tmp_path / "www") as www:
        wanted, here = section(f"http://{www.host}/c", "tool"), context(tmp_path)
        lib, tool = source.resolve(wanted, here)
    assert record(lib)["version"] == "2.0"
    assert record(tool)["depends"] == ["lib =2"]
    assert not [p for p, _ in www.asked if "current" in p or "from_packages" in p]
    shipped = json.loads(source.derived([lib, tool], here)["conda/noarch/repodata.json"])
    assert shipped["packages"][TOOL.file] == known


def test_packages_without_sha256_are_measured_and_held_to_their_md5(tmp_path: Path) -> None:
    channel = write_channel(tmp_path / "www" / "c", TOOL, *LIBS, hashed=False)
    right = hashlib.md5(TOOL.to_bytes()).hexdigest()
    document = json.loads((channel / "noarch" / "repodata.json").read_bytes())
    document["packages"][TOOL.file]["md5"] = right
    (channel / "noarch" / "repodata.json").write_text(json.dumps(document), encoding="utf-8")
    with served(tmp_path / "www") as www:
        wanted = section(f"http://{www.host}/c", "tool")
        found = source.resolve(wanted, context(tmp_path))
        tool = found[1]
        assert tool.sha256 == hashlib.sha256(TOOL.to_bytes()).hexdigest()
        assert (tool.size, record(tool)["md5"]) == (len(TOOL.to_bytes()), right)
        again = source.resolve(wanted, context(tmp_path, kept=found))
        assert again == found, "what is locked is kept although its record has no sha256"
        document["packages"][TOOL.file]["md5"] = "0" * 32
        (channel / "noarch" / "repodata.json").write_text(json.dumps(document), encoding="utf-8")
        for place in (f"http://{www.host}/c", channel):
            with pytest.raises(DownloadError, match=r"md5|is not the file"):
                source.resolve(section(place, "tool"), context(tmp_path / "other"))


def test_packages_that_are_kept_at_another_place_are_named(tmp_path: Path) -> None:
    channel = write_channel(tmp_path / "www" / "c", TOOL, *LIBS)
    table = json.loads((channel / "noarch" / "repodata.json").read_bytes())
    table["info"]["base_url"] = "https://elsewhere.invalid/pool/"
    (channel / "noarch" / "repodata.json").write_text(json.dumps(table), encoding="utf-8")
    for place in (channel, ""):
        with served(tmp_path / "www") as www, pytest.raises(DownloadError) as caught:
            source.resolve(section(place or f"http://{www.host}/c", "tool"), context(tmp_path))
        assert caught.value.problems == (
            f"{TOOL.file}: c keeps it at another place than its repodata",
        )


def test_a_record_of_another_subdir_than_its_folder_is_named(tmp_path: Path) -> None:
    channel = write_channel(tmp_path / "c", Package("tool", subdir="linux-64"))
    shutil.copy(channel / "linux-64" / "repodata.json", channel / "noarch")
    (channel / "linux-64" / "repodata.json").write_bytes(document("linux-64", {}))
    with pytest.raises(DownloadError, match="at another place than its repodata"):
        source.resolve(section(channel, "tool"), context(tmp_path))


def test_repodata_is_kept_and_asked_for_again_only_when_it_changed(tmp_path: Path) -> None:
    write_channel(tmp_path / "www" / "c", TOOL, *LIBS)
    here = context(tmp_path)
    with served(tmp_path / "www") as www:
        wanted = section(f"http://{www.host}/c", "tool")
        found = source.resolve(wanted, here)
        www.asked.clear()
        assert source.resolve(wanted, here) == found
    assert len(www.asked) <= 2 * 3
    cached = written(here.blobs.folder / "repodata")
    assert cached
    assert not any("127.0.0.1" in str(path.relative_to(tmp_path)) for path in cached)


@needs_data
@pytest.mark.parametrize("keep", [True, False], ids=["both", "shards alone"])
def test_a_sharded_channel_of_others(tmp_path: Path, keep: bool) -> None:
    www = tmp_path / "www" / "c"
    shutil.copytree(DATA / "conda" / "conda_format_repo", www)
    for file in www.rglob("repodata.json"):
        file.chmod(0o644)
        if not keep and file.parent.name == "linux-64":
            file.unlink()
    write_channel(tmp_path / "www" / "gcc", Package("libgcc-ng", "8.2.0"))
    with served(tmp_path / "www") as server:
        wanted = CondaSection(
            channels=[f"http://{server.host}/c", f"http://{server.host}/gcc"],
            packages=["zlib", "gcc::libgcc-ng"],
        )
        zlib = source.resolve(wanted, context(tmp_path))[0]
    assert zlib.path == "conda/linux-64/zlib-1.2.11-h7b6447c_3.conda"
    assert zlib.sha256 == "f33afff2144e1d6c4cf2e3e184937db8bf825b4537df74662aea5ee207b6a31b"
