"""The server's side: what is linked into the prefix, what is refused, what is said."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from mirror.core.artifact import Artifact, Json
from mirror.core.index import Entry
from mirror.ecosystems.conda import deploy
from mirror.ecosystems.conda.records import document, is_package, repodata
from mirror.ecosystems.deploy import Site
from mirror.errors import BundleError, MachineError
from mirror.store.generations import Root
from tests.conda_packages import (
    DEMO_CHANNEL,
    PREFIX,
    TARGET,
    Package,
    Recorder,
    carry,
    context,
    install,
    section,
    site,
    write_channel,
)

SCRIPT = f"#!{PREFIX}/bin/sh\necho {PREFIX}\n".encode()


def carried(folder: Path, *packages: Package) -> Site:
    channel = write_channel(folder / "local", *packages)
    names = [package.name for package in packages]
    return carry(section(channel, *names), context(folder), folder / "root")


def put(folder: Path, *packages: Package) -> Site:
    """The packages in a root's store without having been proved: what a hostile bundle brings."""
    store = Root(folder / "root")
    store.prepare()
    artifacts: list[Artifact] = []
    for package in packages:
        data = package.to_bytes()
        sha256 = store.blobs.put(data)
        path = f"conda/{package.subdir}/{package.file}"
        found = {**package.index(), "size": len(data), "sha256": sha256}
        origin: dict[str, Json] = {"subdir": package.subdir, "file": package.file, "record": found}
        artifacts.append(Artifact("conda", path, len(data), sha256, origin=origin))
    for path, data in repodata(artifacts, TARGET.subdir).items():
        artifacts.append(Artifact("conda", path, len(data), store.blobs.put(data)))
    return site(store, artifacts, TARGET)


def run(there: Site) -> list[str]:
    deploy.deploy(there.index.of_kind("conda"), there)
    assert isinstance(there.progress, Recorder)
    return there.progress.warnings


def other(there: Site, changed: list[Artifact]) -> Site:
    return replace(
        there, index=replace(there.index, entries=tuple(Entry(artifact) for artifact in changed))
    )


def test_the_demo_package_runs_from_where_it_is_installed(tmp_path: Path) -> None:
    generation, warnings = install(
        section(DEMO_CHANNEL, "demo-notes"), context(tmp_path), tmp_path / "root"
    )
    done = subprocess.run(
        [str(generation.env / "bin" / "demo-notes")],
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"]},
        check=True,
    )
    assert done.stdout.splitlines()[0] == f"demo-notes 1.0, installed in {generation.env}"
    assert "This file came to you as a conda package." in done.stdout
    script = generation.env / "etc" / "conda" / "activate.d" / "demo-notes.sh"
    sourced = subprocess.run(
        ["sh", "-c", f". '{script}'; cat \"$DEMO_NOTES\""],
        capture_output=True,
        text=True,
        check=True,
    )
    assert sourced.stdout.startswith("This file came")
    assert warnings == []


def test_prefixes_are_replaced_in_text_and_binary_files(tmp_path: Path) -> None:
    binary = b"\x7fELF" + PREFIX.encode() + b"/lib\0tail"
    package = Package(
        "p",
        files={"bin/p": SCRIPT, "lib/p.so": binary, ".dot/file": b"dot"},
        links={"lib/p.so.1": "p.so"},
        noarch=None,
        subdir="linux-64",
    )
    there = carried(tmp_path, package)
    run(there)
    env = there.generation.env
    prefix = str(env).encode()
    assert (env / "bin/p").read_bytes() == b"#!" + prefix + b"/bin/sh\necho " + prefix + b"\n"
    assert (env / "bin/p").stat().st_mode & 0o111 == 0o111
    replaced = (env / "lib/p.so").read_bytes()
    assert replaced.startswith(b"\x7fELF" + prefix + b"/lib\0")
    assert replaced.endswith(b"tail")
    assert len(replaced) == len(binary)
    assert os.readlink(env / "lib/p.so.1") == "p.so"
    assert (env / ".dot/file").read_bytes() == b"dot"


def test_only_the_channel_and_the_prefix_are_left(tmp_path: Path) -> None:
    there = carried(tmp_path, Package("p", files={"p": b"1"}), Package("q", files={"q": b"2"}))
    run(there)
    assert {path.name for path in there.generation.path.iterdir()} == {"conda", "env"}
    records = sorted((there.generation.env / "conda-meta").glob("*.json"))
    assert [path.name for path in records] == ["p-1.0-0.json", "q-1.0-0.json"]
    assert {path.stat().st_mode & 0o777 for path in records} == {0o644}, "others may read them"
    assert json.loads(records[0].read_bytes())["name"] == "p"
    assert isinstance(there.progress, Recorder)
    assert there.progress.advanced == 2


def test_a_changed_blob_is_named_and_nothing_linked(tmp_path: Path) -> None:
    there = carried(tmp_path, Package("p", files={"p": b"1"}), Package("q", files={"q": b"2"}))
    blob = there.blobs.path(next(a for a in there.index.artifacts if "/p-" in a.path).sha256)
    blob.chmod(0o644)
    blob.write_bytes(Package("p", files={"evil": b"1"}).to_bytes())
    with pytest.raises(BundleError) as caught:
        run(there)
    assert caught.value.problems == (f"conda/noarch/p-1.0-0.tar.bz2: {blob}",)
    assert not there.generation.env.exists()


def test_repodata_and_packages_must_be_the_same_set(tmp_path: Path) -> None:
    there = carried(tmp_path, Package("p"), Package("q"))
    fewer = [a for a in there.index.artifacts if "/q-" not in a.path]
    with pytest.raises(BundleError, match=r"conda/noarch/q-1\.0-0\.tar\.bz2"):
        run(other(there, fewer))


def with_repodata(there: Site, data: bytes) -> Site:
    """The same bundle with other bytes as noarch/repodata.json."""
    path = "conda/noarch/repodata.json"
    kept = [a for a in there.index.artifacts if a.path != path]
    return other(there, [*kept, Artifact("conda", path, len(data), there.blobs.put(data))])


def test_repodata_that_points_elsewhere_is_refused(tmp_path: Path) -> None:
    there = carried(tmp_path, Package("p"))
    packages = filter(is_package, there.index.artifacts)
    records = {package.text("file"): package.origin["record"] for package in packages}
    table = json.loads(document("noarch", records))
    table["info"]["base_url"] = "https://elsewhere.invalid/"
    with pytest.raises(BundleError, match=r"p-1\.0-0\.tar\.bz2 is to come from elsewhere"):
        run(with_repodata(there, json.dumps(table).encode()))


@pytest.mark.parametrize("data", [b"", b"[]", b'{"packages": {"p-1.0-0.tar.bz2": 3}}'])
def test_malformed_repodata_is_named(tmp_path: Path, data: bytes) -> None:
    there = carried(tmp_path, Package("p"))
    with pytest.raises(BundleError, match=r"the bundle's repodata\.json is malformed"):
        run(with_repodata(there, data))


def test_two_packages_of_one_name_are_refused(tmp_path: Path) -> None:
    there = put(tmp_path, Package("p", "1.0"), Package("p", "2.0"))
    with pytest.raises(BundleError, match="p is there 2 times"):
        run(there)


@pytest.mark.parametrize("path", ["/tmp/x", "../../x"])
def test_paths_outside_the_prefix_never_reach_rattler(tmp_path: Path, path: str) -> None:
    """An absolute path makes rattler abort the whole process."""
    there = put(
        tmp_path,
        Package("fine"),
        Package("far", files={"x": b""}, paths=[{"_path": path, "path_type": "hardlink"}]),
    )
    with pytest.raises(BundleError) as caught:
        run(there)
    (problem,) = caught.value.problems
    assert problem == f"far-1.0-0.tar.bz2: it would write outside the environment: {path}"
    assert not there.generation.env.exists()


def test_a_package_that_cannot_be_unpacked_is_named(tmp_path: Path) -> None:
    there = put(tmp_path, Package("p", links={"lib/p.so": ""}))
    with pytest.raises(BundleError) as caught:
        run(there)
    assert "p-1.0-0.tar.bz2" in caught.value.problems[0]
    assert not any("\0" in line or len(line) > 300 for line in caught.value.problems)
    assert not list(there.generation.path.glob(".conda-*")), "the cache is removed all the same"


def test_a_file_that_is_listed_and_not_there_is_named(tmp_path: Path) -> None:
    there = put(tmp_path, Package("p", paths=[{"_path": "ghost", "path_type": "hardlink"}]))
    with pytest.raises(BundleError) as caught:
        run(there)
    assert "p-1.0-0.tar.bz2" in str(caught.value)
    assert "ghost" in str(caught.value)


def test_a_root_that_is_too_long_names_every_package(tmp_path: Path) -> None:
    binary = {"lib/x.so": PREFIX.encode() + b"\0"}
    packages = [Package("a", files=binary), Package("b", files=binary), Package("c")]
    channel = write_channel(tmp_path / "local", *packages)
    there = carry(section(channel, "a", "b", "c"), context(tmp_path), tmp_path / ("r" * 100))
    with pytest.raises(MachineError, match="too many") as caught:
        run(there)
    assert caught.value.problems == (f"a: at most {len(PREFIX)}", f"b: at most {len(PREFIX)}")
    assert not there.generation.env.exists()


def test_clobbered_files_are_reported_with_who_won(tmp_path: Path) -> None:
    there = carried(
        tmp_path,
        Package("first", files={"share/same": b"first", "share/own": b""}),
        Package("second", files={"share/same": b"second"}, depends=["first"]),
    )
    warnings = run(there)
    content = (there.generation.env / "share/same").read_text(encoding="utf-8")
    loser = {"first": "second", "second": "first"}[content]
    assert warnings == [
        f"share/same is in several conda packages: that of {content} is used, not that of {loser}"
    ]


def test_link_scripts_are_named_and_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = f"#!/bin/sh\ntouch {mark}\n".encode()
    files = {f"bin/.p-{kind}.sh": script for kind in ("post-link", "pre-link", "pre-unlink")}
    warnings = run(carried(tmp_path, Package("p", files=files)))
    assert warnings == [
        f"p: bin/.p-{kind}.sh was not run; mirror runs no script of a conda package"
        for kind in ("post-link", "pre-link")
    ]
    assert not mark.exists()
