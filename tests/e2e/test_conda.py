"""Conda packages all the way: solved, carried, linked where there is no conda, no network."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mirror.core.manifest import CondaSection
from mirror.core.target import Target
from mirror.ecosystems.conda import source
from mirror.ecosystems.conda.records import brings_python, record
from mirror.errors import DownloadError, ResolutionError
from tests.conda_packages import (
    DATA,
    DEMO_CHANNEL,
    TARGET,
    Package,
    context,
    index_channel,
    install,
    needs_data,
    section,
    write_channel,
)

CHECKOUT = Path(__file__).parents[2]
PIXI = DATA / "pixi"


def test_the_committed_channel_is_what_its_script_makes(tmp_path: Path) -> None:
    script = CHECKOUT / "manifests" / "make_channel.py"
    subprocess.run([sys.executable, script, tmp_path], cwd=CHECKOUT, check=True)

    def read(folder: Path) -> dict[str, bytes]:
        files = [path for path in folder.rglob("*") if path.is_file()]
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}

    made = read(tmp_path)
    assert made == read(DEMO_CHANNEL)
    assert sum(map(len, made.values())) < 10_000


def test_rattlers_own_index_of_the_demo_channel_agrees(tmp_path: Path) -> None:
    indexed = index_channel(tmp_path / "channel", *DEMO_CHANNEL.glob("noarch/*.tar.bz2"))
    ours, theirs = (
        json.loads((folder / "noarch" / "repodata.json").read_bytes())["packages"]
        for folder in (DEMO_CHANNEL, indexed)
    )
    for found in theirs.values():
        del found["indexed_timestamp"]
    assert ours == theirs


_WAY = """
import subprocess, sys
from pathlib import Path
from tests.conda_packages import DEMO_CHANNEL, context, install, section
here = Path(sys.argv[1])
generation, _ = install(section(DEMO_CHANNEL, "demo-notes"), context(here), here / "root")
subprocess.run([generation.env / "bin" / "demo-notes"], check=True)
"""


def _isolated() -> list[str]:
    command = ["unshare", "--map-root-user", "--net"]
    if not shutil.which("unshare") or subprocess.run([*command, "true"], check=False).returncode:
        pytest.skip("this machine lets nobody unshare the network")
    return command


def test_the_whole_way_needs_no_network_and_nothing_of_the_home(tmp_path: Path) -> None:
    command = [*_isolated(), sys.executable, "-c", _WAY, str(tmp_path)]
    environment = {"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home")}
    done = subprocess.run(
        command, cwd=CHECKOUT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"installed in {tmp_path}/root/generations/000001/env" in done.stdout
    assert not (tmp_path / "home").exists()


def test_the_whole_way_asks_for_no_connection(tmp_path: Path) -> None:
    if not shutil.which("strace"):
        pytest.skip("no strace on this machine")
    trace = tmp_path / "trace"
    command = ["strace", "-f", "-qq", "-e", "trace=connect,sendto,bind", "-o", str(trace)]
    done = subprocess.run(
        [*command, sys.executable, "-c", _WAY, str(tmp_path)],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    if "ptrace" in done.stderr:
        pytest.skip("this machine lets nobody trace")
    assert done.returncode == 0, done.stderr
    assert "AF_INET" not in trace.read_text(encoding="utf-8", errors="replace")


def test_python_packages_are_linked_for_the_python_that_conda_brings(tmp_path: Path) -> None:
    wrapper = (
        '#!/bin/sh\nhere="$(dirname "$0")/.."\n'
        'PYTHONPATH="$here/lib/python3.11/site-packages" exec '
        f'"{sys.executable}" "$@"\n'
    ).encode()
    python = Package(
        "python",
        "3.11.4",
        files={"bin/python3.11": wrapper},
        links={"bin/python": "python3.11"},
        noarch=None,
        subdir="linux-64",
    )
    link = {
        "noarch": {"type": "python", "entry_points": ["greet = greeting:main"]},
        "package_metadata_version": 1,
    }
    greeting = Package(
        "greeting",
        depends=["python"],
        noarch="python",
        files={"site-packages/greeting.py": b"def main(): print('hello')\n"},
        info={"info/link.json": json.dumps(link).encode()},
    )
    channel = write_channel(tmp_path / "local", python, greeting)
    wanted, here = section(channel, "greeting"), context(tmp_path)
    assert brings_python(source.resolve(wanted, here))
    generation, _ = install(wanted, here, tmp_path / "root")
    assert generation.python.exists()
    for command in (["bin/greet"], ["bin/python", "-c", "import greeting; greeting.main()"]):
        program, *arguments = command
        done = subprocess.run(
            [generation.env / program, *arguments], capture_output=True, text=True, check=True
        )
        assert done.stdout == "hello\n"


@needs_data
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("stem", "numbers", "file", "told"),
    [
        ("clobber-", "123", "clobber.txt", "are used, not those of clobber-2 and clobber-3"),
        (
            "clobber-nested-",
            "213",
            "clobber/bobber/clobber.txt",
            "not that of clobber-nested-1 and",
        ),
        ("clobber-with-symlink-", "ba", "lib/clobber.so", "not that of clobber-with-symlink-a"),
    ],
)
def test_clobbering_packages_of_others(
    tmp_path: Path, stem: str, numbers: str, file: str, told: str, turned: bool
) -> None:
    """Whose file it is does not depend on the order in which they come."""
    names = [f"{stem}{number}" for number in (numbers[::-1] if turned else numbers)]
    wanted = section(clobbering(tmp_path / "channel", names), *names)
    generation, (warning,) = install(wanted, context(tmp_path), tmp_path / "root")
    assert f"{file} " in warning
    assert re.search(f"packages: (that|those) of {stem}{numbers[0]} (is|are) used, ", warning)
    assert told in warning
    path = generation.env / file
    content = os.readlink(path) if path.is_symlink() else path.read_text(encoding="utf-8").strip()
    assert content in (f"clobber-{numbers[0]}", "clobber-1.txt")


@needs_data
@pytest.mark.parametrize(
    ("names", "told"),
    [
        (
            ["clobber-with-dir", "clobber-without-dir"],
            "dir is a file of clobber-without-dir, and a folder of clobber-with-dir",
        ),
        (
            ["clobber-fd-1", "clobber-fd-2", "clobber-fd-3"],
            "clobber is a file of clobber-fd-1, and a folder of clobber-fd-2 and clobber-fd-3",
        ),
    ],
)
def test_a_file_of_one_that_is_a_folder_of_others(
    tmp_path: Path, names: list[str], told: str
) -> None:
    channel = clobbering(tmp_path / "channel", names)
    with pytest.raises(ResolutionError) as caught:
        install(section(channel, *names), context(tmp_path), tmp_path / "root")
    assert caught.value.problems == (told,)


def clobbering(folder: Path, names: list[str]) -> Path:
    packages = DATA / "rattler" / "clobber"
    return index_channel(folder, *(next(packages.glob(f"{name}-0.1.0-*")) for name in names))


@needs_data
def test_link_scripts_of_others_are_named(tmp_path: Path) -> None:
    wanted = CondaSection(
        channels=[str(PIXI / "post_link_script_channel"), str(DATA / "conda" / "test-recipes")],
        packages=["post-link-script-package", "post_link-c", "failing_post_link"],
    )
    _, warnings = install(wanted, context(tmp_path), tmp_path / "root")
    assert {warning.partition(":")[0] for warning in warnings} == set(wanted.packages)


@needs_data
@pytest.mark.parametrize(
    ("cuda", "found"), [("12.8", True), ("12", True), ("11.8", False), ("", False)]
)
def test_cuda_of_the_target_decides(tmp_path: Path, cuda: str, found: bool) -> None:
    target = Target("3.11", "linux-x86_64", "2.28", cuda=cuda)
    wanted, here = section(PIXI / "virtual_packages", "cuda"), context(tmp_path, target)
    if found:
        install(wanted, here, tmp_path / "root")
        return
    with pytest.raises(ResolutionError, match="__cuda >=12, for which no candidates") as caught:
        source.resolve(wanted, here)
    assert "cuda 0.1.0 would require" in str(caught.value)
    assert ("__cuda 11.8" in str(caught.value)) == bool(cuda)


@needs_data
@pytest.mark.parametrize(
    ("gpus", "build"),
    [(("sm_90",), "sm90_0"), (("sm_120",), "sm120_2"), (("sm_120", "sm_100"), "sm100_1")],
)
def test_the_oldest_gpu_of_the_target_decides(
    tmp_path: Path, gpus: tuple[str, ...], build: str
) -> None:
    target = Target("3.11", "linux-x86_64", "2.28", cuda="12.8", gpus=gpus)
    wanted = section(PIXI / "virtual_packages", "cuda-arch")
    (package,) = source.resolve(wanted, context(tmp_path, target))
    assert record(package)["build"] == build


@needs_data
@pytest.mark.parametrize(("glibc", "version"), [("2.17", "1.0"), ("2.28", "2.0"), ("2.39", "2.0")])
def test_glibc_of_the_target_decides(tmp_path: Path, glibc: str, version: str) -> None:
    channel = tmp_path / "channel"
    recipes = DATA / "conda" / "test-recipes"
    for subdir, origin in (("linux-64", "linux-fake"), ("noarch", "noarch")):
        (channel / subdir).mkdir(parents=True)
        for file in (recipes / origin).iterdir():
            data = file.read_bytes()
            if file.name == "repodata.json":
                data = data.replace(b"linux-fake", b"linux-64")
            (channel / subdir / file.name).write_bytes(data)
    target = Target("3.11", "linux-x86_64", glibc)
    (package,) = source.resolve(section(channel, "virtualdep-package"), context(tmp_path, target))
    assert record(package)["version"] == version


@needs_data
def test_channels_and_versions_of_others(tmp_path: Path) -> None:
    names = ["dummy_channel_1", "dummy_channel_2", "multiple_versions_channel_1"]
    wanted = CondaSection(
        channels=[str(PIXI / name) for name in names],
        packages=["dummy-a", "dummy-d", "dummy-g", "package4<0.2", "package2"],
    )
    here = context(tmp_path)
    found = source.resolve(wanted, here)
    assert {(a.text("file").rpartition("-")[0], a.text("channel")) for a in found} == {
        ("dummy-a-0.1.0", "dummy_channel_1"),
        ("dummy-b-0.1.0", "dummy_channel_1"),
        ("dummy-c-0.1.0", "dummy_channel_1"),
        ("dummy-d-0.1.0", "dummy_channel_1"),
        ("dummy-g-0.1.0", "dummy_channel_1"),
        ("dummy-x-0.1.0", "dummy_channel_2"),
        ("package2-0.2.0", "multiple_versions_channel_1"),
        ("package3-0.1.0", "multiple_versions_channel_1"),
        ("package4-0.1.0", "multiple_versions_channel_1"),
    }
    generation, warnings = install(wanted, here, tmp_path / "root")
    assert len(list((generation.env / "conda-meta").glob("*.json"))) == len(found)
    assert warnings == []


@needs_data
def test_noarch_python_of_others_follows_the_pythons_own_folder(tmp_path: Path) -> None:
    target = Target("3.99", "linux-x86_64", "2.28")
    wanted = section(DATA / "conda" / "test-recipes", "sample_noarch_python", "small-executable")
    generation, _ = install(wanted, context(tmp_path, target), tmp_path / "root")
    assert (generation.env / "lib/python3.99t/site-packages/sample.py").is_file()
    done = subprocess.run(
        [generation.env / "bin/small"], capture_output=True, text=True, check=True
    )
    assert "Hello" in done.stdout


@needs_data
def test_a_dependency_that_is_missing_is_named_with_who_wants_it(tmp_path: Path) -> None:
    broken = DATA / "pixi-pack" / "webserver" / "my-webserver-broken-0.1.0-pyh4616a5c_0.conda"
    injected = index_channel(tmp_path / "injected", broken)
    rest = write_channel(
        tmp_path / "rest", Package("python", "3.12.1"), Package("fastapi", "0.111.1")
    )
    wanted = CondaSection(
        channels=[str(injected), str(rest)], packages=["python", "my-webserver-broken"]
    )
    target = Target("3.12", "linux-x86_64", "2.28")
    with pytest.raises(ResolutionError) as caught:
        source.resolve(wanted, context(tmp_path, target))
    text = str(caught.value)
    assert "my-webserver-broken 0.1.0 would require" in text
    assert "fastapi >=0.112, for which no candidates were found" in text


@needs_data
@pytest.mark.parametrize("form", ["packages", "packages.conda"])
def test_links_to_nowhere_are_named_before_they_travel(tmp_path: Path, form: str) -> None:
    """zlib of conda's own tests, whose symbolic links have empty targets."""
    original = DATA / "conda" / "conda_format_repo" / "linux-64"
    channel = write_channel(tmp_path / "channel", Package("libgcc-ng", "8.2.0"))
    repodata = json.loads((original / "repodata.json").read_bytes())
    zlib = {file: found for file, found in repodata[form].items() if found["name"] == "zlib"}
    (channel / "linux-64" / "repodata.json").write_text(json.dumps({form: zlib}), encoding="utf-8")
    for file in zlib:
        shutil.copy(original / file, channel / "linux-64")
    wanted, here = section(channel, "zlib"), context(tmp_path)
    found = source.resolve(wanted, here)
    with pytest.raises(DownloadError) as caught:
        source.prove(found, wanted, here)
    (problem,) = caught.value.problems
    assert problem.startswith("zlib-1.2.11-h7b6447c_3.")
    assert "lib/libz.so" in problem


@needs_data
def test_corrupt_archives_are_all_named_before_they_travel(tmp_path: Path) -> None:
    corrupt = DATA / "conda-index" / "corrupt" / "noarch"
    fine = write_channel(tmp_path / "channel", Package("fine"))
    repodata = json.loads((fine / "noarch" / "repodata.json").read_bytes())
    for name, file, table in (
        ("empty", "another_bad_package.conda", "packages.conda"),
        ("short", "bad_package.tar.bz2", "packages"),
    ):
        copy = file.replace(file.partition(".")[0], f"{name}-1.0-0")
        shutil.copy(corrupt / file, fine / "noarch" / copy)
        repodata[table][copy] = Package(name).index()
    (fine / "noarch" / "repodata.json").write_text(json.dumps(repodata), encoding="utf-8")
    wanted, here = section(fine, "fine", "empty", "short"), context(tmp_path)
    found = source.resolve(wanted, here)
    with pytest.raises(DownloadError) as caught:
        source.prove(found, wanted, here)
    assert [problem.partition(":")[0] for problem in caught.value.problems] == [
        "empty-1.0-0.conda",
        "short-1.0-0.tar.bz2",
    ]


@needs_data
def test_a_real_repodata_whose_packages_are_not_there(tmp_path: Path) -> None:
    channel = write_channel(tmp_path / "pytorch", Package("unused"))
    repodata = DATA / "rattler" / "channels" / "pytorch" / "linux-64" / "repodata.json"
    shutil.copy(repodata, channel / "linux-64")
    with pytest.raises(DownloadError) as caught:
        source.resolve(section(channel, "magma-cuda121"), context(tmp_path, TARGET))
    (problem,) = caught.value.problems
    assert problem.startswith(str(channel / "linux-64" / "magma-cuda121-"))
