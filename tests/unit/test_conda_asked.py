"""What a conda section asks for: specs, package files, and an environment.yml as people have it."""

from __future__ import annotations

from pathlib import Path

import pytest

from mirror.core.manifest import CondaSection
from mirror.core.progress import Quiet
from mirror.core.target import Target
from mirror.ecosystems.conda import source
from mirror.ecosystems.conda.records import record
from mirror.ecosystems.conda.solving import asked
from mirror.errors import DownloadError, ResolutionError, UsageError
from mirror.project import open_project
from tests.conda_packages import (
    DATA,
    Package,
    Recorder,
    context,
    index_channel,
    needs_data,
    section,
    write_channel,
)

LIBS = [Package("lib", "1.0"), Package("lib", "2.0")]
ENVIRONMENT = """\
name: ldm
channels:
  - local       # ours
  - nodefaults
dependencies:
  - python=3.11
  - pip
  - local::lib=1
  - pywin32     # [win]
  - tmux        # [linux]
  - odd         # [py>=38]
  - pip:
      - torch>=2   # why
      - -e .
prefix: /home/somebody/envs/ldm
variables: {CUDA_HOME: /usr}
"""


def environment(folder: Path, text: str = ENVIRONMENT) -> CondaSection:
    (folder / "environment.yml").write_text(text, encoding="utf-8", newline="\n")
    return CondaSection(environment="environment.yml", channels=["./local"])


def refused(section: CondaSection, folder: Path) -> list[str]:
    with pytest.raises(UsageError) as caught:
        asked.read(section, context(folder))
    return list(caught.value.problems)


def test_an_environment_is_taken_as_it_is(tmp_path: Path) -> None:
    names = ("python", "pip", "tmux", "odd")
    write_channel(tmp_path / "local", *LIBS, *(Package(n, "3.11.1") for n in names))
    wanted, here = environment(tmp_path), context(tmp_path)
    found = asked.read(wanted, here)
    assert [channel.name for channel in found.channels] == ["local"]
    assert [(spec.text, spec.where, spec.channel) for spec in found.specs] == [
        ("python=3.11", "environment.yml:6", None),
        ("pip", "environment.yml:7", None),
        ("local::lib=1", "environment.yml:8", "local"),
        ("tmux", "environment.yml:10", None),
        ("odd", "environment.yml:11", None),
    ]
    artifacts = source.resolve(wanted, here)
    assert {a.text("name"): a.text("version") for a in artifacts} == {
        **dict.fromkeys(names, "3.11.1"),
        "lib": "1.0",
    }
    assert isinstance(here.progress, Recorder)
    assert here.progress.warnings == [
        "environment.yml:11: [py>=38] is no selector that mirror knows: the line holds",
        "environment.yml:16: its variables are not set on the server",
        "environment.yml:9: pywin32 is left out: its comment says that it is not for linux-x86_64",
    ]


def test_the_lock_depends_on_the_environments_bytes(tmp_path: Path) -> None:
    write_channel(tmp_path / "local", *LIBS)
    before = source.inputs(environment(tmp_path), context(tmp_path))
    assert "environment.yml" in before
    after = source.inputs(environment(tmp_path, ENVIRONMENT + "# more\n"), context(tmp_path))
    assert {key for key in before if before[key] != after[key]} == {"environment.yml"}


def test_the_manifests_own_packages_come_on_top(tmp_path: Path) -> None:
    channel = write_channel(tmp_path / "local", *LIBS, Package("more"))
    environment(tmp_path, "dependencies: [lib<2]\nchannels: [./local]\n")
    wanted = CondaSection(environment="environment.yml", packages=["more", "lib"])
    found = source.resolve(wanted, context(tmp_path))
    assert [a.text("file") for a in found] == [LIBS[0].file, "more-1.0-0.tar.bz2"]
    assert channel.is_dir()


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("dependencies: [", ["environment.yml:1: is no YAML"]),
        ("name: x", ["environment.yml: has no list of dependencies"]),
        (
            "channels: [defaults, './nowhere']\ndependencies:\n- lib = = 3 ]\n- {a: b}\n-\n",
            [
                "environment.yml:1: defaults stands for what conda's own configuration says",
                "environment.yml:1: ./nowhere: there is no folder",
                "environment.yml:3: lib = = 3 ]: it is no match spec",
                "environment.yml:4: is neither a conda package nor a list pip:",
                "environment.yml:5: is neither a conda package nor a list pip:",
            ],
        ),
        (
            """dependencies:
- numpy=${VERSION}
- numpy[channel=x]
- https://c.invalid/linux-64/a-1-0.conda
- '*x*'
- file:///a-1-0.conda
""",
            [
                "environment.yml:2: numpy=${VERSION}: ${VERSION} is filled in for channels alone",
                "environment.yml:3: numpy[channel=x]: the channel is written in front",
                "environment.yml:4: https://c.invalid/linux-64/a-1-0.conda: a package is named",
                "environment.yml:5: *x*: it is no match spec",
                "environment.yml:6: file:****: a package is named NAME=VERSION=BUILD",
            ],
        ),
    ],
)
def test_every_mistake_of_an_environment_has_its_line(
    tmp_path: Path, text: str, problems: list[str]
) -> None:
    write_channel(tmp_path / "local", *LIBS)
    found = refused(environment(tmp_path, text), tmp_path)
    assert len(found) == len(problems), found
    for problem in problems:
        assert any(line.startswith(problem) for line in found), (problem, found)


def test_an_environment_without_channels_and_one_that_is_not_there(tmp_path: Path) -> None:
    environment(tmp_path, "dependencies: [lib]")
    (problem,) = refused(CondaSection(environment="environment.yml"), tmp_path)
    assert problem == "environment.yml: no channel is listed"
    (problem,) = refused(CondaSection(environment="gone.yml"), tmp_path)
    assert problem == "gone.yml: cannot be read: No such file or directory"


def test_a_build_of_another_platform_is_named_with_a_way_out(tmp_path: Path) -> None:
    write_channel(tmp_path / "local", Package("lib", "1.0", build="h123_0", subdir="linux-64"))
    wanted = environment(tmp_path, "dependencies:\n- lib=1.0=hb0f4dca_0\n")
    with pytest.raises(ResolutionError) as caught:
        source.resolve(wanted, context(tmp_path))
    (problem,) = caught.value.problems
    assert problem.startswith("environment.yml:2: lib=1.0=hb0f4dca_0: ")
    assert problem.endswith("no such build of this version, but h123_0 (linux-64)")
    assert "conda env export --no-builds" in str(caught.value)


def test_a_spec_for_a_channel_takes_no_other(tmp_path: Path) -> None:
    first = write_channel(tmp_path / "first", Package("lib", "9.0"), Package("app"))
    second = write_channel(tmp_path / "second", *LIBS)
    linux = Package("lib", "1.5", subdir="linux-64")
    third = write_channel(tmp_path / "third", linux, Package("lib", "1.6"))
    both = [str(first), str(second)]

    def chosen(spec: str, *channels: str) -> tuple[str, str]:
        wanted = CondaSection(channels=list(channels) or both, packages=[spec, "app"])
        here = context(tmp_path)
        lib = next(a for a in source.resolve(wanted, here) if a.text("name") == "lib")
        source.prove(source.resolve(wanted, here), wanted, here)
        return lib.text("channel"), lib.text("version")

    assert chosen("lib") == ("first", "9.0")
    assert chosen("second::lib") == ("second", "2.0")
    assert chosen("second::lib<2") == ("second", "1.0")
    assert chosen("third/linux-64::lib", *both, str(third)) == ("third", "1.5")
    assert chosen(f"{third}::lib") == ("third", "1.6")


def test_a_channel_that_only_a_spec_names_comes_last_and_is_announced(tmp_path: Path) -> None:
    write_channel(tmp_path / "c" / "extra", *LIBS)
    wanted = section(write_channel(tmp_path / "local", Package("app")), "app", "./c/extra::lib")
    here = context(tmp_path)
    assert [a.text("channel") for a in source.resolve(wanted, here)] == ["local", "extra"]
    assert isinstance(here.progress, Recorder)
    assert here.progress.warnings == [
        "conda.packages.1: the channel extra is listed nowhere: it comes last"
    ]
    with pytest.raises(ResolutionError, match="the channel extra has no such package"):
        source.resolve(section(tmp_path / "c" / "extra", "extra::app"), context(tmp_path))


def test_a_package_file_stands_before_all_channels(tmp_path: Path) -> None:
    channel = write_channel(tmp_path / "local", *LIBS, Package("lib", "3.0"))
    injected = Package("lib", "2.5", depends=["app"], build="mine_0")
    (tmp_path / "odd name.tar.bz2").write_bytes(injected.to_bytes())
    wanted, here = section(channel, "./odd name.tar.bz2"), context(tmp_path)
    with pytest.raises(ResolutionError) as caught:
        source.resolve(wanted, here)
    assert "lib 2.5 would require" in str(caught.value)
    assert "app *, for which no candidates were found" in str(caught.value)
    write_channel(channel, *LIBS, Package("app"))
    app, lib = source.resolve(wanted, here)
    assert lib.path == "conda/noarch/lib-2.5-mine_0.tar.bz2"
    assert lib.text("place") == "file odd name.tar.bz2"
    assert source.requests([lib], wanted, here) == [tmp_path / "odd name.tar.bz2"]
    source.prove([app, lib], wanted, here)
    before = source.inputs(wanted, here)
    (tmp_path / "odd name.tar.bz2").write_bytes(Package("lib", "2.6").to_bytes())
    assert source.inputs(wanted, here) != before
    with pytest.raises(DownloadError, match="has other bytes than the lock names"):
        source.prove([app, lib], wanted, here)


def test_package_files_that_cannot_be_taken_are_all_named(tmp_path: Path) -> None:
    channel = write_channel(tmp_path / "local", *LIBS)
    (tmp_path / "a.conda").write_bytes(b"no zip")
    for number in (1, 2):
        (tmp_path / f"{number}.tar.bz2").write_bytes(Package("twice").to_bytes())
    (tmp_path / "w.tar.bz2").write_bytes(Package("w", subdir="win-64").to_bytes())
    files = ["a.conda", "1.tar.bz2", "2.tar.bz2", "w.tar.bz2", "gone.conda"]
    problems = refused(section(channel, *files), tmp_path)
    assert [problem.partition(": ")[2].partition(": ")[0] for problem in problems] == [
        *("a.conda", "2.tar.bz2", "w.tar.bz2", "gone.conda")
    ]
    text = "\n".join(problems)
    assert "it is no conda package" in text
    assert "a second file of twice" in text
    assert "it is for win-64, the target is linux-64" in text
    assert "there is no file" in text


@needs_data
@pytest.mark.parametrize(("fastapi", "fits"), [("0.112.0", True), ("0.111.1", False)])
def test_an_injected_package_of_others(tmp_path: Path, fastapi: str, fits: bool) -> None:
    """pixi-pack's case: what is injected has to go together with what the channels have."""
    name = "my-webserver-broken-0.1.0-pyh4616a5c_0.conda"
    file = DATA / "pixi-pack" / "webserver" / name
    pydantic = Package("pydantic", "2.8.2")
    rest = [Package("python", "3.12.1"), Package("fastapi", fastapi), pydantic]
    wanted = section(write_channel(tmp_path / "rest", *rest), "python", "pydantic", str(file))
    here = context(tmp_path, Target("3.12", "linux-x86_64", "2.28"))
    if fits:
        found = {a.text("name"): a for a in source.resolve(wanted, here)}
        assert found["my-webserver-broken"].path == f"conda/noarch/{name}"
        assert record(found["my-webserver-broken"])["constrains"] == ["pydantic >=2,<3"]
        return
    with pytest.raises(ResolutionError) as caught:
        source.resolve(wanted, here)
    assert "my-webserver-broken 0.1.0 would require" in str(caught.value)
    assert "fastapi >=0.112, for which no candidates were found" in str(caught.value)


def test_the_pip_part_goes_to_the_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRROR_CACHE", str(tmp_path / "cache"))
    environment(tmp_path)
    manifest = tmp_path / "m.yaml"

    def requirements(text: str) -> list[str] | None:
        head = "name: t\nversion: '1'\nconda: {environment: environment.yml}\n"
        manifest.write_text(head + text, encoding="utf-8")
        project = open_project(manifest, Quiet())
        assert project.context.wheels == project.manifest.wheels
        return project.manifest.wheels.requirements if project.manifest.wheels else None

    part = "environment.yml:pip"
    assert requirements("") == [part]
    assert requirements("wheels: {requirements: [numpy]}\n") == ["numpy", part]
    assert requirements(f"wheels: {{requirements: [environment.yml, '{part}']}}\n") == [part]
    environment(tmp_path, "dependencies: [lib, pip]")
    assert requirements("") is None


@needs_data
def test_an_environment_of_others_that_is_not_to_be_had(tmp_path: Path) -> None:
    text = (Path(__file__).parents[1] / "requirements/dinov2-conda/conda.yaml").read_text("utf-8")
    (tmp_path / "conda.yaml").write_text(text, encoding="utf-8")
    names = ("pytorch", "nvidia", "xformers", "conda-forge", "defaults")
    for name in names:
        index_channel(tmp_path / "c" / name)
    wanted = CondaSection(environment="conda.yaml", channels=[f"./c/{name}" for name in names])
    with pytest.raises(ResolutionError) as caught:
        source.resolve(wanted, context(tmp_path, Target("3.9", "linux-x86_64", "2.28")))
    problems = caught.value.problems
    assert problems[0] == "conda.yaml:10: python=3.9: the channels have no such package"
    assert "the channel pytorch has no such package" in problems[1]
    assert len(problems) == 11
