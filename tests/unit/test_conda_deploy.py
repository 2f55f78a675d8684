"""The server's side: what is linked into the prefix, what is refused, what is said."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from mirror.core.artifact import Artifact
from mirror.core.index import Entry
from mirror.ecosystems.conda.records import document, is_package, record
from mirror.ecosystems.deploy import Site
from mirror.errors import BundleError, MachineError
from tests.conda_packages import PREFIX, Package, installed_files, put, run

SCRIPT = f"#!{PREFIX}/bin/sh\necho {PREFIX}\n".encode()
BOTH = pytest.mark.parametrize("modern", [True, False], ids=["conda", "tar.bz2"])
PYTHON = Package("python", "3.11.4", files={"bin/python3.11": b""}, noarch=None, subdir="linux-64")


def other(there: Site, changed: list[Artifact]) -> Site:
    return replace(
        there, index=replace(there.index, entries=tuple(Entry(artifact) for artifact in changed))
    )


def entry_points(*commands: str) -> bytes:
    link = {"noarch": {"type": "python", "entry_points": commands}, "package_metadata_version": 1}
    return json.dumps(link).encode()


@BOTH
def test_prefixes_are_replaced_in_text_and_binary_files(tmp_path: Path, modern: bool) -> None:
    binary = b"\x7fELF" + PREFIX.encode() + b"/lib\0tail"
    package = Package(
        "p",
        files={"bin/p": SCRIPT, "lib/p.so": binary, ".dot/file": b"dot"},
        links={"lib/p.so.1": "p.so", "lib/up": "../.dot"},
        noarch=None,
        subdir="linux-64",
        modern=modern,
    )
    there = put(tmp_path, package)
    run(there)
    env = there.generation.env
    prefix = str(env).encode()
    assert (env / "bin/p").read_bytes() == b"#!" + prefix + b"/bin/sh\necho " + prefix + b"\n"
    assert (env / "bin/p").stat().st_mode & 0o777 == 0o755
    replaced = (env / "lib/p.so").read_bytes()
    assert replaced.startswith(b"\x7fELF" + prefix + b"/lib\0")
    assert replaced.endswith(b"tail")
    assert len(replaced) == len(binary)
    assert os.readlink(env / "lib/p.so.1") == "p.so"
    assert os.readlink(env / "lib/up") == "../.dot"
    assert (env / ".dot/file").read_bytes() == b"dot"
    assert (env / ".dot/file").stat().st_nlink == 1, "it is nobody else's file too"


def test_python_packages_go_where_python_looks(tmp_path: Path) -> None:
    free = replace(PYTHON, site_packages="lib/python3.11t/site-packages")
    package = Package(
        "greet",
        depends=["python"],
        noarch="python",
        files={
            "site-packages/greet.py": b"x = 1",
            "site-packages/__pycache__/greet.cpython-311.pyc": b"compiled",
            "python-scripts/old": b"#!/bin/sh\n",
            "share/doc": b"",
        },
        info={"info/link.json": entry_points("hi = greet:main")},
    )
    for number, (python, folder) in enumerate(((PYTHON, "python3.11"), (free, "python3.11t"))):
        there = put(tmp_path / str(number), package, python)
        run(there)
        env = there.generation.env
        assert installed_files(env) == [
            "bin/hi",
            "bin/old",
            "bin/python3.11",
            f"lib/{folder}/site-packages/__pycache__/greet.cpython-311.pyc",
            f"lib/{folder}/site-packages/greet.py",
            "share/doc",
        ]
        started = (env / "bin/hi").read_text(encoding="utf-8").splitlines()[:2]
        assert f"{env}/bin/python3.11" in " ".join(started)
        assert os.access(env / "bin/hi", os.X_OK)


def test_only_the_channel_and_the_prefix_are_left(tmp_path: Path) -> None:
    packages = Package("p", files={"p": b"1"}), Package("q", files={"q": b"2"}, modern=True)
    there = put(tmp_path, *packages)
    told = run(there)
    generation = there.generation
    assert {path.name for path in generation.path.iterdir()} == {"conda", "env"}
    for artifact in there.index.artifacts:
        blob = there.blobs.path(artifact.sha256)
        assert (generation.path / artifact.path).samefile(blob)
    records = sorted((generation.env / "conda-meta").glob("*.json"))
    assert [path.name for path in records] == ["p-1.0-0.json", "q-1.0-0.json"]
    assert {path.stat().st_mode & 0o777 for path in records} == {0o644}, "others may read them"
    assert installed_files(generation.env) == ["p", "q"], "no mark that says it is a cache"
    assert sorted(told.advanced.values()) == [2, sum(len(p.to_bytes()) for p in packages)]
    assert not told.warnings


def test_empty_folders_are_made(tmp_path: Path) -> None:
    there = put(tmp_path, Package("p", files={"f": b""}, folders=["var/empty"]))
    run(there)
    assert (there.generation.env / "var/empty").is_dir()


def test_an_environment_that_is_there_is_not_touched(tmp_path: Path) -> None:
    there = put(tmp_path, Package("p", files={"p": b"1"}))
    there.generation.env.symlink_to(tmp_path / "mine")
    with pytest.raises(MachineError, match="env is there already"):
        run(there)
    assert not (tmp_path / "mine").exists()


def test_a_changed_blob_is_named_and_nothing_linked(tmp_path: Path) -> None:
    there = put(tmp_path, Package("p", files={"p": b"1"}), Package("q", files={"q": b"2"}))
    blob = there.blobs.path(next(a for a in there.index.artifacts if "/p-" in a.path).sha256)
    blob.chmod(0o644)
    blob.write_bytes(Package("p", files={"evil": b"1"}).to_bytes())
    with pytest.raises(BundleError) as caught:
        run(there)
    assert caught.value.problems == (f"conda/noarch/p-1.0-0.tar.bz2: {blob}",)
    assert not there.generation.env.exists()


def test_repodata_and_packages_must_be_the_same_set(tmp_path: Path) -> None:
    there = put(tmp_path, Package("p"), Package("q"))
    fewer = [a for a in there.index.artifacts if "/q-" not in a.path]
    with pytest.raises(BundleError, match=r"conda/noarch/q-1\.0-0\.tar\.bz2"):
        run(other(there, fewer))


def with_repodata(there: Site, data: bytes) -> Site:
    """The same bundle with other bytes as noarch/repodata.json."""
    path = "conda/noarch/repodata.json"
    kept = [a for a in there.index.artifacts if a.path != path]
    return other(there, [*kept, Artifact("conda", path, len(data), there.blobs.put(data))])


def test_repodata_that_points_elsewhere_is_refused(tmp_path: Path) -> None:
    there = put(tmp_path, Package("p"))
    packages = filter(is_package, there.index.artifacts)
    records = {package.text("file"): package.origin["record"] for package in packages}
    table = json.loads(document("noarch", records))
    table["info"]["base_url"] = "https://elsewhere.invalid/"
    with pytest.raises(BundleError, match=r"p-1\.0-0\.tar\.bz2 is to come from elsewhere"):
        run(with_repodata(there, json.dumps(table).encode()))


@pytest.mark.parametrize("data", [b"", b"[]", b'{"packages": {"p-1.0-0.tar.bz2": 3}}'])
def test_malformed_repodata_is_named(tmp_path: Path, data: bytes) -> None:
    there = put(tmp_path, Package("p"))
    with pytest.raises(BundleError, match=r"the bundle's repodata\.json is malformed"):
        run(with_repodata(there, data))


def test_two_packages_of_one_name_are_refused(tmp_path: Path) -> None:
    there = put(tmp_path, Package("p", "1.0"), Package("p", "2.0"))
    with pytest.raises(BundleError, match="p is there 2 times"):
        run(there)


@pytest.mark.parametrize("folder", ["../../outside", "/tmp/outside", "lib/../site-packages"])
def test_a_python_that_keeps_its_packages_elsewhere_is_refused(tmp_path: Path, folder: str) -> None:
    """rattler follows what the record says, out of the prefix."""
    there = put(tmp_path, replace(PYTHON, site_packages=folder))
    with pytest.raises(BundleError, match="puts Python's packages into"):
        run(there)
    assert not there.generation.env.exists()


def test_a_record_whose_name_would_be_a_path_is_refused(tmp_path: Path) -> None:
    there = put(tmp_path, Package("p"))
    packages = filter(is_package, there.index.artifacts)
    records = {p.text("file"): {**record(p), "build": "x/.."} for p in packages}
    with pytest.raises(BundleError, match="has a name that would be a path"):
        run(with_repodata(there, document("noarch", records)))
    assert not there.generation.env.exists()


def test_every_package_that_cannot_be_installed_is_named(tmp_path: Path) -> None:
    far = {"_path": "/tmp/x", "path_type": "hardlink"}
    ghost = {"_path": "ghost", "path_type": "hardlink"}
    there = put(
        tmp_path,
        Package("fine", files={"fine": b""}),
        Package("far", files={"x": b""}, paths=[far]),
        Package("odd", paths=[ghost]),
        Package("broken", links={"lib/p.so": ""}, modern=True),
    )
    with pytest.raises(BundleError) as caught:
        run(there)
    text = str(caught.value)
    assert "far-1.0-0.tar.bz2: it would write outside the environment: /tmp/x" in text
    assert "odd-1.0-0.tar.bz2: it lists ghost, which it does not hold" in text
    assert "broken-1.0-0.conda: " in text
    assert "fine" not in text
    assert not any("\0" in line or len(line) > 350 for line in caught.value.problems)
    assert not there.generation.env.exists()
    assert not list(there.generation.path.glob(".conda-*")), "what was unpacked is gone"


def test_links_that_lead_out_together_are_named(tmp_path: Path) -> None:
    """Each is harmless alone: rattler would make outside/evil beside the environment."""
    there = put(
        tmp_path,
        Package("a", links={"deep": "."}),
        Package("b", links={"deep/er": "../outside"}),
    )
    with pytest.raises(BundleError) as caught:
        run(there)
    assert caught.value.problems == (
        "b: the symbolic link deep/er leads out: ../outside",
        "deep is a file of a, and a folder of b",
    )
    assert not there.generation.env.exists()


def test_a_root_that_is_too_long_names_every_package(tmp_path: Path) -> None:
    binary = {"lib/x.so": PREFIX.encode() + b"\0"}
    packages = [Package("a", files=binary), Package("b", files=binary), Package("c")]
    there = put(tmp_path / ("r" * 100), *packages)
    with pytest.raises(MachineError, match="too many") as caught:
        run(there)
    env = there.generation.env
    assert caught.value.message.startswith(f"the path {env} has {len(str(env))} bytes")
    assert caught.value.problems == (f"a: at most {len(PREFIX)}", f"b: at most {len(PREFIX)}")
    assert not env.exists()


def test_scripts_start_from_a_long_path_with_spaces(tmp_path: Path) -> None:
    """What a first line cannot hold is started in another way."""
    package = Package("p", files={"bin/p": f"#!{PREFIX}/bin/shell\n".encode(), "bin/shell": SHELL})
    there = put(tmp_path / ("a b " * 30), package)
    run(there)
    env = there.generation.env
    path = {"PATH": f"{env}/bin:{os.environ['PATH']}"}
    done = subprocess.run([env / "bin/p"], env=path, capture_output=True, text=True, check=True)
    assert done.stdout == f"started {env}/bin/p\n"


SHELL = b'#!/bin/sh\necho "started $1"\n'


def test_clobbered_files_are_reported_with_who_won(tmp_path: Path) -> None:
    """As in conda, a package's file replaces that of a package which it depends on."""
    there = put(
        tmp_path,
        Package("zlib", files={"share/same": b"zlib", "share/own": b"", "share/equal": b"="}),
        Package("app", files={"share/same": b"app", "share/equal": b"="}, depends=["zlib"]),
    )
    told = run(there)
    assert (there.generation.env / "share/same").read_bytes() == b"app"
    assert told.warnings == [
        "share/same is in several conda packages: that of app is used, not that of zlib"
    ], "of files that are equal it does not matter which is used"


def test_a_file_that_is_a_folder_elsewhere_is_refused(tmp_path: Path) -> None:
    """rattler 0.28 would lose one of the two, or both."""
    there = put(tmp_path, Package("a", files={"d": b""}), Package("b", files={"d/x": b""}))
    with pytest.raises(BundleError, match="d is a file of a, and a folder of b"):
        run(there)
    assert not there.generation.env.exists()


def test_many_clobbered_files_are_one_remark(tmp_path: Path) -> None:
    def noarch(name: str, *depends: str) -> Package:
        files = {f"site-packages/m{n}.py": name.encode() for n in range(7)}
        return Package(name, files=files, noarch="python", depends=depends)

    there = put(tmp_path, PYTHON, noarch("one"), noarch("two", "one"))
    (warning,) = run(there).warnings
    folder = "lib/python3.11/site-packages"
    named = ", ".join(f"{folder}/m{n}.py" for n in range(5))
    assert warning == (
        f"{named} and 2 others are in several conda packages: those of two are used, not those"
        " of one"
    )


def test_names_that_differ_in_case_are_two_files(tmp_path: Path) -> None:
    """Real packages have them (ncurses); where the file system has one of the two, it has one."""
    there = put(tmp_path, Package("p", files={"E": b"1", "e": b"2"}))
    run(there)
    assert [(there.generation.env / name).read_bytes() for name in "Ee"] == [b"1", b"2"]


def test_menu_items_are_told_to_those_who_ask(tmp_path: Path) -> None:
    there = put(tmp_path, Package("p", files={"Menu/p.json": b"{}"}))
    told = run(there)
    assert told.details == ["p: Menu/p.json is not added to any menu"]
    assert not told.warnings
