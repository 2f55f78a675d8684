"""The builder's side: what is solved, what is written down, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mirror.core.artifact import Artifact
from mirror.core.lock import Lock, parse
from mirror.core.manifest import CondaSection
from mirror.core.target import Target
from mirror.ecosystems.conda import source
from mirror.ecosystems.conda.records import brings_python, record
from mirror.ecosystems.conda.solving.machine import There, virtual_packages
from mirror.errors import DownloadError, ResolutionError
from tests.conda_packages import Package, context, section, write_channel

TOOL = Package("tool", depends=["lib >=2"], files={"bin/tool": b"#!/bin/sh\n"})
LIBS = [Package("lib", "1.0"), Package("lib", "2.0"), Package("lib", "3.0", subdir="linux-64")]


def files(artifacts: list[Artifact]) -> list[str]:
    return [artifact.path for artifact in artifacts]


def test_resolves_into_artifacts_of_the_targets_subdir_and_noarch(tmp_path: Path) -> None:
    channel = write_channel(tmp_path / "local", TOOL, *LIBS)
    found = source.resolve(section(channel, "tool"), context(tmp_path))
    assert files(found) == ["conda/linux-64/lib-3.0-0.tar.bz2", "conda/noarch/tool-1.0-0.tar.bz2"]
    tool = found[1]
    assert (tool.kind, tool.size, tool.executable) == ("conda", len(TOOL.to_bytes()), False)
    assert tool.origin == {
        "channel": "local",
        "name": "tool",
        "version": "1.0",
        "subdir": "noarch",
        "file": "tool-1.0-0.tar.bz2",
        "record": {**TOOL.index(), "size": tool.size, "sha256": tool.sha256},
    }
    arm = Target(python="3.11", platform="linux-aarch64", glibc="2.28")
    other = source.resolve(section(channel, "tool"), context(tmp_path, arm))
    assert files(other) == ["conda/noarch/lib-2.0-0.tar.bz2", "conda/noarch/tool-1.0-0.tar.bz2"]


def test_records_without_hashes_get_those_of_the_bytes(tmp_path: Path) -> None:
    hashed = write_channel(tmp_path / "a" / "local", TOOL, *LIBS)
    bare = write_channel(tmp_path / "b" / "local", TOOL, *LIBS, hashed=False)
    here = context(tmp_path)
    assert source.resolve(section(bare, "tool"), here) == source.resolve(
        section(hashed, "tool"), here
    )


def test_channels_have_strict_priority(tmp_path: Path) -> None:
    first = write_channel(tmp_path / "first", LIBS[0])
    second = write_channel(tmp_path / "second", *LIBS)
    wanted = CondaSection(channels=[str(first), str(second)], packages=["lib"])
    (found,) = source.resolve(wanted, context(tmp_path))
    assert (found.text("channel"), record(found)["version"]) == ("first", "1.0")


def test_kept_packages_stay_while_they_fit(tmp_path: Path) -> None:
    old, new = Package("lib", "1.0"), Package("lib", "2.0")
    channel = write_channel(tmp_path / "local", old)
    kept = source.resolve(section(channel, "lib"), context(tmp_path))
    write_channel(tmp_path / "local", old, new)

    def version(spec: str) -> object:
        (found,) = source.resolve(section(channel, spec), context(tmp_path, kept=kept))
        return record(found)["version"]

    assert version("lib") == "1.0"
    assert version("lib>=2") == "2.0"
    write_channel(tmp_path / "local", new)
    assert version("lib") == "2.0", "a package that its channel no longer has is not kept"
    write_channel(tmp_path / "local", Package("lib", "1.0", files={"other": b""}), new)
    assert version("lib") == "2.0", "nor one whose bytes are others now"


def test_every_unsatisfied_spec_is_explained(tmp_path: Path) -> None:
    channel = write_channel(
        tmp_path / "local", TOOL, LIBS[0], Package("app", depends=["engine >=4", "lib"])
    )
    with pytest.raises(ResolutionError) as caught:
        source.resolve(section(channel, "lib", "tool", "app", "ghost"), context(tmp_path))
    text = str(caught.value)
    assert "conda.packages.1: tool: " in text
    assert "tool 1.0 would require" in text
    assert "lib >=2, for which no candidates were found" in text
    assert "engine >=4, for which no candidates were found" in text
    assert "conda.packages.3: ghost: the channels have no such package" in text
    assert "__glibc 2.28" in text, "what the target gives is said"


def test_specs_that_exclude_each_other_are_explained(tmp_path: Path) -> None:
    channel = write_channel(tmp_path / "local", TOOL, *LIBS)
    with pytest.raises(ResolutionError) as caught:
        source.resolve(section(channel, "tool", "lib<2"), context(tmp_path))
    text = str(caught.value)
    assert "tool 1.0 would require" in text
    assert "lib 2.0 | 3.0" in text, "what could be had but for the other spec"
    assert "lib <2 cannot be fulfilled" in text


def test_versions_and_builds_that_are_not_there_are_told_from_those_that_are(
    tmp_path: Path,
) -> None:
    numpy = [Package("numpy", f"1.{minor}", build="py311_0") for minor in range(8)]
    channel = write_channel(tmp_path / "local", *numpy, Package("numpy", "1.7", build="py310_0"))
    wanted = section(channel, "numpy=9", "numpy=1.7=py39h64a7726_0", "numpy >=1.7")
    with pytest.raises(ResolutionError) as caught:
        source.resolve(wanted, context(tmp_path))
    numpy_9, py39 = caught.value.problems
    assert numpy_9 == (
        "conda.packages.0: numpy=9: the channels have no such version, but ..., 1.3, 1.4, 1.5, 1.6,"
        " 1.7"
    )
    assert py39.endswith("no such build of this version, but py310_0 (noarch), py311_0 (noarch)")
    assert caught.value.hint is not None
    assert "conda env export --no-builds" in caught.value.hint


@pytest.mark.parametrize(
    "form", ["lib=2", "lib 2.*", "lib=2.0=0", "lib >=2,<3", "lib[version=2.0]"]
)
def test_forms_of_match_specs(tmp_path: Path, form: str) -> None:
    channel = write_channel(tmp_path / "local", *LIBS)
    wanted, here = section(channel, form), context(tmp_path)
    found = source.resolve(wanted, here)
    assert [record(artifact)["version"] for artifact in found] == ["2.0"]
    source.prove(found, wanted, here)


def test_python_comes_in_the_targets_version_only(tmp_path: Path) -> None:
    pythons = [Package("python", version) for version in ("3.10.9", "3.11.4", "3.12.1")]
    channel = write_channel(tmp_path / "local", *pythons, *LIBS)
    found = source.resolve(section(channel, "python"), context(tmp_path))
    assert (record(found[0])["version"], brings_python(found)) == ("3.11.4", True)
    assert not brings_python(source.resolve(section(channel, "lib"), context(tmp_path)))
    with pytest.raises(ResolutionError, match=r"The target has Python 3\.11"):
        source.resolve(section(channel, "python=3.12"), context(tmp_path))


def virtual(target: Target) -> dict[str, str]:
    return {item.name: item.version for item in virtual_packages(target)}


def test_virtual_packages_follow_from_the_target_alone() -> None:
    plain = Target(python="3.11", platform="linux-x86_64", glibc="2.17")
    assert virtual_packages(plain) == [
        There("__archspec", "1", "x86_64"),
        There("__unix", "0"),
        There("__linux", "3.10"),
        There("__glibc", "2.17"),
    ]
    rich = Target("3.11", "linux-aarch64", "2.34", cuda="12.8", gpus=("sm_120", "sm_90a", "sm_100"))
    found = virtual(rich)
    assert found["__linux"] == "4.18"
    assert found["__cuda"] == "12.8"
    assert found["__cuda_arch"] == "9.0", "what all the GPUs can do"
    assert virtual_packages(rich)[0] == There("__archspec", "1", "aarch64")
    assert "__glibc" not in virtual(Target("3.11", "macos-arm64"))
    assert "__win" in virtual(Target("3.11", "win-amd64"))


@pytest.mark.parametrize(
    ("cuda", "driver", "found"),
    [("", "", None), ("", "450.80", "11"), ("", "570.86", "12"), ("12.4", "580.1", "12.4")],
)
def test_the_driver_tells_the_cuda_that_nobody_states(
    cuda: str, driver: str, found: str | None
) -> None:
    target = Target("3.11", "linux-x86_64", "2.28", cuda=cuda, driver=driver)
    assert virtual(target).get("__cuda") == found


def test_no_build_is_taken_for_a_cpu_that_nobody_stated(tmp_path: Path) -> None:
    level = Package("level", "3", depends=["__archspec 1 x86_64_v3"])
    fast = Package("math", build="fast_1", depends=["level"])
    plain = Package("math", build="plain_0")
    channel = write_channel(tmp_path / "local", level, fast, plain)
    (found,) = source.resolve(section(channel, "math"), context(tmp_path))
    assert record(found)["build"] == "plain_0"


def test_inputs_change_with_a_folders_repodata(tmp_path: Path) -> None:
    channel = write_channel(tmp_path / "local", *LIBS)
    wanted = CondaSection(channels=[str(channel), "conda-forge"], packages=["lib"])
    before = source.inputs(wanted, context(tmp_path))
    assert set(before) == {"conda/local/linux-64", "conda/local/noarch"}
    assert source.inputs(wanted, context(tmp_path)) == before
    write_channel(channel, *LIBS, TOOL)
    after = source.inputs(wanted, context(tmp_path))
    assert after["conda/local/noarch"] != before["conda/local/noarch"]
    assert after["conda/local/linux-64"] == before["conda/local/linux-64"]


def test_missing_and_changed_packages_of_a_folder_are_all_named(tmp_path: Path) -> None:
    channel = write_channel(tmp_path / "local", TOOL, *LIBS)
    (channel / "linux-64" / LIBS[2].file).unlink()
    (channel / "noarch" / TOOL.file).write_bytes(LIBS[0].to_bytes())
    with pytest.raises(DownloadError) as caught:
        source.resolve(section(channel, "tool"), context(tmp_path))
    text = "\n".join(caught.value.problems)
    assert f"{channel / 'linux-64' / LIBS[2].file}: No such file" in text
    assert f"{channel / 'noarch' / TOOL.file} is not the file that" in text


@pytest.mark.parametrize(
    "repodata",
    [
        b"",
        b"[]",
        b"<html>Please log in</html>",
        b'{"packages": {"lib-1.0-0.tar.bz2": {"name": "lib", "version": 1}}}',
        b'{"packages": {"lib-1.0-0.tar.bz2": []}}',
        b'{"packages": ["lib"]}',
    ],
)
def test_malformed_repodata_is_named(tmp_path: Path, repodata: bytes) -> None:
    fine = write_channel(tmp_path / "fine", TOOL)
    broken = write_channel(tmp_path / "broken")
    (broken / "noarch" / "repodata.json").write_bytes(repodata)
    wanted = CondaSection(channels=[str(fine), str(broken)], packages=["lib"])
    with pytest.raises(DownloadError) as caught:
        source.resolve(wanted, context(tmp_path))
    (problem,) = caught.value.problems
    assert problem.startswith(f"{broken / 'noarch' / 'repodata.json'}: ")


def test_derived_repodata_holds_the_records_and_nothing_else(tmp_path: Path) -> None:
    channel = write_channel(tmp_path / "local", TOOL, *LIBS)
    here = context(tmp_path)
    found = source.resolve(section(channel, "tool"), here)
    derived = source.derived(found, here)
    assert derived == source.derived(found[::-1], here)
    assert set(derived) == {"conda/linux-64/repodata.json", "conda/noarch/repodata.json"}
    noarch = json.loads(derived["conda/noarch/repodata.json"])
    assert noarch["packages"] == {TOOL.file: record(found[1])}
    assert set(source.derived([], here)) == set(derived), "an empty channel is still one"


def test_nothing_is_lost_in_the_lock(tmp_path: Path) -> None:
    rich = Package("rich", depends=["lib[version='>=1,<3']", "__glibc >=2.17"])
    channel = write_channel(tmp_path / "local", rich, *LIBS)
    here = context(tmp_path)
    found = source.resolve(section(channel, "rich"), here)
    lock = Lock(inputs="0", target=here.target, artifacts=tuple(found))
    again = parse(lock.to_bytes(), "t.lock.toml").artifacts
    assert list(again) == found
    assert [artifact.origin for artifact in again] == [artifact.origin for artifact in found]
    assert source.derived(again, here) == source.derived(found, here)


def test_prove_finds_what_is_missing_and_what_is_too_much(tmp_path: Path) -> None:
    channel = write_channel(tmp_path / "local", TOOL, *LIBS, Package("extra"))
    here, wanted = context(tmp_path), section(channel, "tool")
    found = source.resolve(wanted, here)
    source.prove(found, wanted, here)
    with pytest.raises(ResolutionError, match=r"lib >=2, for which no candidates were found"):
        source.prove(found[1:], wanted, here)
    extra = source.resolve(section(channel, "extra"), here)
    with pytest.raises(ResolutionError, match=r"extra-1\.0-0\.tar\.bz2 is not needed"):
        source.prove(found + extra, wanted, here)


def test_prove_finds_packages_that_cannot_be_unpacked(tmp_path: Path) -> None:
    channel = write_channel(
        tmp_path / "local",
        Package("far", paths=[{"_path": "../far", "path_type": "hardlink"}]),
        Package("fine"),
    )
    here, wanted = context(tmp_path), section(channel, "far", "fine")
    with pytest.raises(DownloadError) as caught:
        source.prove(source.resolve(wanted, here), wanted, here)
    assert caught.value.problems == (
        "far-1.0-0.tar.bz2: it would write outside the environment: ../far",
    )


def test_prove_finds_python_packages_without_a_python(tmp_path: Path) -> None:
    channel = write_channel(tmp_path / "local", Package("pure", noarch="python"))
    here, wanted = context(tmp_path), section(channel, "pure")
    with pytest.raises(ResolutionError, match="none of the set brings one"):
        source.prove(source.resolve(wanted, here), wanted, here)


def test_a_lock_of_other_channels_is_refused(tmp_path: Path) -> None:
    channel = write_channel(tmp_path / "local", TOOL, *LIBS)
    found = source.resolve(section(channel, "tool"), context(tmp_path))
    other = write_channel(tmp_path / "other", TOOL, *LIBS)
    with pytest.raises(DownloadError, match=r"tool-1\.0-0\.tar\.bz2 of local"):
        source.requests(found, section(other, "tool"), context(tmp_path))
