"""Files that ask for packages, opened and followed; and twenty of well-known training projects."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from mirror.core.requirements.values import Constraint, LocalProject, Requirements, Specifier
from mirror.ecosystems.source import LocalHashes
from mirror.ecosystems.wheels import reading
from mirror.errors import UsageError
from tests.index import make_wheel

REAL = Path(__file__).parents[1] / "requirements"
SHA = "ab" * 32
INDEX = "https://download.pytorch.invalid/whl/cu128"


def write(folder: Path, **files: str) -> None:
    """write(folder, a__txt="...") writes a.txt; two underscores before a name part are a dot."""
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8", newline="\n")


def read(folder: Path, *items: str, indexes: Sequence[str] = ()) -> Requirements:
    return reading.read(items, folder, indexes)


def refused(folder: Path, *items: str) -> list[str]:
    with pytest.raises(UsageError) as caught:
        read(folder, *items)
    assert caught.value.exit_code == 2
    return list(caught.value.problems)


def names(found: Requirements) -> list[str]:
    return [specifier.name for specifier in found.specifiers]


def test_files_are_followed_from_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path, base__txt="numpy\n-c sub/limits.txt")
    write(tmp_path / "sub", dev__txt="-r ../base.txt\npytest", limits__txt="numpy<2\n-c more.txt")
    write(tmp_path / "sub", more__txt="pytest<9")
    found = read(tmp_path, "torch", "-r sub/dev.txt", "-r base.txt", "--pre")
    assert found.specifiers == (
        Specifier("torch", "torch", "wheels.requirements.0"),
        Specifier("numpy", "numpy", "base.txt:1"),
        Specifier("pytest", "pytest", "sub/dev.txt:2"),
    )
    assert found.constraints == (
        Constraint("numpy", "numpy<2", "sub/limits.txt:1"),
        Constraint("pytest", "pytest<9", "sub/more.txt:1"),
    )
    assert found.prereleases
    assert not found.require_hashes


def test_one_file_can_ask_and_limit(tmp_path: Path) -> None:
    write(tmp_path, a__txt="numpy<2")
    found = read(tmp_path, "-r a.txt", "-c a.txt")
    assert (len(found.specifiers), len(found.constraints)) == (1, 1)


def test_a_circle_is_named(tmp_path: Path) -> None:
    write(tmp_path, a__txt="-r b.txt", b__txt="\n-r ./a.txt\nnumpy")
    assert refused(tmp_path, "-r a.txt") == [
        "b.txt:2: files name each other: a.txt -> b.txt -> a.txt"
    ]


@pytest.mark.skipif(not hasattr(os, "symlink") or os.name == "nt", reason="links need rights")
def test_a_circle_through_a_link_ends(tmp_path: Path) -> None:
    write(tmp_path, a__txt="-r here/a.txt")
    (tmp_path / "here").symlink_to(".")
    assert "files name each other: a.txt -> here/a.txt" in refused(tmp_path, "-r a.txt")[0]


def test_all_mistakes_of_all_files_come_in_one_error(tmp_path: Path) -> None:
    write(tmp_path, a__txt="torch=1\n-r b.txt\n--extra-index-url https://x.invalid/s")
    write(tmp_path, b__txt="--no-index\n-r missing.txt\n./nothing\n./x-1-py3-none-any.whl")
    (tmp_path / "bad.txt").write_bytes("numpy\n# 中文".encode("gb18030"))
    places = [line.split(" ")[0] for line in refused(tmp_path, "-r a.txt", "", "-r bad.txt")]
    assert places == [
        "a.txt:1:",
        "b.txt:1:",
        "b.txt:2:",
        "b.txt:3:",
        "b.txt:4:",
        "a.txt:3:",
        "wheels.requirements.1:",
        "wheels.requirements.2:",
    ]


def test_a_file_that_is_no_utf_8_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("numpy\n# 中文".encode("gb18030"))
    (problem,) = refused(tmp_path, "-r a.txt")
    assert problem.endswith("a.txt is no utf-8 text (line 2): save it as UTF-8")


def test_a_declared_index_is_no_mistake(tmp_path: Path) -> None:
    write(tmp_path, a__txt=f"--extra-index-url {INDEX}/\ntorch")
    assert names(read(tmp_path, "-r a.txt", indexes=[INDEX])) == ["torch"]
    (problem,) = refused(tmp_path, "-r a.txt")
    assert f'indexes: {{pytorch-cu128: {{url: "{INDEX}", only: [torch]}}}}' in problem


def test_the_public_index_needs_no_declaration(tmp_path: Path) -> None:
    from pypi_simple import PYPI_SIMPLE_ENDPOINT

    assert names(read(tmp_path, "numpy", f"-i {PYPI_SIMPLE_ENDPOINT}")) == ["numpy"]


def test_local_places_are_found_from_the_file_or_the_manifest(tmp_path: Path) -> None:
    for folder in ("sub", "sub/own", "dist"):
        (tmp_path / folder).mkdir()
    wheel = make_wheel(tmp_path / "dist", "x", "1").name
    write(tmp_path, pyproject__toml="[project]\nname = 'Top_Level'\n")
    write(tmp_path / "sub/own", setup__py="")
    write(tmp_path / "sub", a__txt=f"-e .\n./own[extra]\n./dist/{wheel}")
    found = read(tmp_path, "-r sub/a.txt")
    assert found.local_projects == (
        LocalProject("top-level", ".", "sub/a.txt:1", editable=True),
        LocalProject(None, "sub/own", "sub/a.txt:2", extras=("extra",)),
    )
    assert [(w.name, w.path) for w in found.local_wheels] == [("x", f"dist/{wheel}")]
    write(tmp_path / "sub", setup__py="")
    assert "sub/a.txt:1: . can mean sub and .:" in refused(tmp_path, "-r sub/a.txt")[0]
    assert "is top-level, not other" in refused(tmp_path, "other @ ./")[0]


def test_what_the_lock_depends_on_is_digested(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "x", "1")
    write(tmp_path, a__txt="-r b.txt", b__txt=f"./{wheel.name}", c__toml="")
    (tmp_path / "p").mkdir()
    write(tmp_path / "p", pyproject__toml="[project]\nname = 'p'\n")
    found = read(tmp_path, "-r a.txt", "p/pyproject.toml")
    digests = reading.inputs(found, tmp_path, LocalHashes(None))
    paths = ["a.txt", "b.txt", "p/pyproject.toml", wheel.name]
    expected = {p: hashlib.sha256((tmp_path / p).read_bytes()).hexdigest() for p in paths}
    assert digests == expected
    wheel.unlink()
    with pytest.raises(UsageError, match="local wheels cannot be read"):
        reading.inputs(found, tmp_path, LocalHashes(None))


def test_require_hashes_holds_for_everything(tmp_path: Path) -> None:
    write(tmp_path, p__txt="")
    (tmp_path / "pyproject.toml").write_text("[project]\nname='p'\n", encoding="utf-8")
    found = read(tmp_path, "--require-hashes", f"x==1 --hash=sha256:{SHA}")
    assert found.require_hashes
    assert found.hashes == {"x": {f"sha256:{SHA}"}}
    problems = refused(tmp_path, "--require-hashes", "y==1", "./")
    assert [line.split(":")[0] for line in problems] == [
        "wheels.requirements.1",
        "wheels.requirements.2",
    ]


PROJECT = """\
[project]
name = "My_App"
requires-python = ">=3.10,<3.13"
dependencies = ["numpy<2", "torch==2.8.0"]
[project.optional-dependencies]
train = ["accelerate", "my-app[Log_ging]; sys_platform == 'linux'"]
log-ging = ["wandb; python_version > '3.9'"]
all = ["my.app[train,all]"]
[dependency-groups]
Test_All = ["pytest", {include-group = "lint"}]
lint = ["ruff"]
round = [{include-group = "about"}]
about = [{include-group = "round"}]
"""


def test_a_pyproject_with_extras_and_groups(tmp_path: Path) -> None:
    write(tmp_path, pyproject__toml=PROJECT)
    found = read(tmp_path, "pyproject.toml[all]")
    assert [(s.text, s.where) for s in found.specifiers] == [
        ("numpy<2", "pyproject.toml:4"),
        ("torch==2.8.0", "pyproject.toml:4"),
        ("accelerate", "pyproject.toml:6"),
        ('wandb; sys_platform == "linux" and python_version > "3.9"', "pyproject.toml:7"),
    ]
    assert [(p.text, p.where) for p in found.pythons] == [("<3.13,>=3.10", "pyproject.toml:3")]
    found = read(tmp_path, "pyproject.toml:test-all")
    assert names(found) == ["pytest", "ruff"]
    assert found.pythons == ()


@pytest.mark.parametrize(
    ("item", "advice"),
    [
        ("pyproject.toml[trian]", "there is no extra trian; did you mean train?"),
        ("pyproject.toml:tests", "there is no dependency group tests"),
        ("pyproject.toml:round", "groups hold each other: round -> about -> round"),
    ],
)
def test_what_a_pyproject_lacks(tmp_path: Path, item: str, advice: str) -> None:
    write(tmp_path, pyproject__toml=PROJECT)
    assert advice in refused(tmp_path, item)[0]


@pytest.mark.parametrize(
    ("content", "advice"),
    [
        ("[project", "is no TOML"),
        ("[tool.black]", "there is no [project] table"),
        ("[tool.poetry.dependencies]\ntorch = '*'", "under tool.poetry: name the project itself"),
        ("[project]\nname='x'\ndynamic=['dependencies']", "name the project itself"),
        ("[project]\ndependencies='torch'", "project.dependencies is not a list of text"),
        ("[project]\ndependencies=[1]", "project.dependencies is not a list of text"),
        ("[project]\ndependencies=['a', '''b=1''']", "one = is conda's"),
        ("[project]\nrequires-python='later'\ndependencies=[]", "names no versions"),
        ("project = 3", "project is no table"),
        ("[project]\ndependencies=[]\n[tool.uv]\nsources=3", "tool.uv.sources is no table"),
        ("[project]\ndependencies=['a']\n[tool.uv.sources]\na={index='x'}", "has no x"),
        ("[project]\ndependencies=['a']\n[tool.uv.sources]\na={b='x'}", "names no place"),
        (
            "[project]\ndependencies=['a']\n[tool.uv.sources]\na={workspace=true}",
            "a is no member of the workspace",
        ),
    ],
)
def test_a_pyproject_that_does_not_tell(tmp_path: Path, content: str, advice: str) -> None:
    write(tmp_path, pyproject__toml=content)
    (problem,) = refused(tmp_path, "pyproject.toml")
    assert advice in problem


def test_a_pyproject_whose_dependencies_are_in_files(tmp_path: Path) -> None:
    dynamic = "[tool.setuptools.dynamic]\ndependencies = {file = ['deps.txt']}\n"
    extra = "optional-dependencies.train = {file = 'train.txt'}\n"
    head = "[project]\nname='x'\ndynamic=['dependencies', 'optional-dependencies']\n"
    write(tmp_path, pyproject__toml=head + dynamic + extra, deps__txt="numpy", train__txt="torch")
    found = read(tmp_path, "pyproject.toml[train]")
    assert names(found) == ["numpy", "torch"]
    assert sorted(found.files) == ["deps.txt", "pyproject.toml", "train.txt"]


UV = """
[project]
dependencies = ["a>=1", "b[x]; os_name == 'posix'", "c", "d", "e"]
[project.optional-dependencies]
more = ["f"]
[tool.uv]
prerelease = "allow"
constraint-dependencies = ["g<2", "h @ ./h"]
override-dependencies = ["i==1"]
[tool.uv.sources]
a = {index = "cu"}
B = {git = "https://h.invalid/b", tag = "v1", subdirectory = "p"}
c = [{url = "https://h.invalid/c-1-py3-none-any.whl", marker = "os_name == 'nt'"}]
d = {path = "d"}
e = {git = "https://h.invalid/e", extra = "more"}
[[tool.uv.index]]
name = "cpu"
url = "https://download.pytorch.invalid/whl/cpu"
explicit = true
[[tool.uv.index]]
name = "cu"
url = "https://download.pytorch.invalid/whl/cu128"
explicit = true
[[tool.uv.index]]
url = "https://second.invalid/simple"
"""


def test_where_uv_takes_packages_from_is_followed(tmp_path: Path) -> None:
    write(tmp_path, pyproject__toml=UV.replace(', "h @ ./h"', ""))
    (tmp_path / "d").mkdir()
    write(tmp_path / "d", setup__py="")
    found = read(tmp_path, "pyproject.toml", indexes=[INDEX, "https://second.invalid/simple/"])
    assert names(found) == ["a", "b", "c", "d", "e"]
    (git,) = found.git_urls
    assert (git.name, git.revision, git.subdirectory, git.extras, git.marker) == (
        *("b", "v1", "p", ("x",)),
        'os_name == "posix"',
    )
    assert [(w.name, w.marker) for w in found.wheel_urls] == [("c", 'os_name == "nt"')]
    assert [(p.name, p.path) for p in found.local_projects] == [("d", "d")]
    assert [c.text for c in found.constraints] == ["g<2"]
    assert found.prereleases
    assert found.notes == ("pyproject.toml: tool.uv.override-dependencies is not followed",)
    found = read(
        tmp_path, "pyproject.toml[more]", indexes=[INDEX, "https://second.invalid/simple/"]
    )
    assert [g.name for g in found.git_urls] == ["b", "e"]


def test_what_uv_would_take_from_elsewhere_is_a_mistake(tmp_path: Path) -> None:
    write(tmp_path, pyproject__toml=UV)
    problems = refused(tmp_path, "pyproject.toml")
    assert f'url: "{INDEX}", only: [a]' in problems[0]
    assert "d: there is no pyproject.toml or setup.py" in problems[1]
    assert "https://second.invalid/simple: packages of any name" in problems[2]
    assert "only versions limit a package" in problems[3]


def test_an_environment_is_read_as_far_as_pip_is_meant(tmp_path: Path) -> None:
    write(
        tmp_path,
        e__yml="name: e\ndependencies:\n- python=3.10\n- pip\n- conda-forge::pip=23\n- nccl >=2\n"
        "- pip:\n  - -r more.txt\n  - torch>=2  # why\nvariables: {A: b}\n",
        more__txt="numpy",
    )
    found = read(tmp_path, "e.yml")
    assert [(s.name, s.where) for s in found.specifiers] == [
        ("numpy", "more.txt:1"),
        ("torch", "e.yml:9"),
    ]
    conda, variables = found.notes
    assert conda.startswith("e.yml:3: its conda part is not carried")
    assert conda.endswith("conda.packages: python=3.10, nccl >=2")
    assert variables == "e.yml:10: its variables are not set on the server"


@pytest.mark.parametrize(
    ("content", "advice"),
    [
        ("dependencies: [numpy]", "no pip part: its packages belong under conda.packages: numpy"),
        ("name: x", "has no list of dependencies"),
        ("- x", "has no list of dependencies"),
        ("", "has no list of dependencies"),
        ("a: [", "is no YAML"),
        ("dependencies: [{pip: [{a: b}]}]", "is no line of text"),
        ("dependencies: [[a], {pip: [b]}]", "is neither a conda package nor a list pip:"),
        ("dependencies:\n- pip: ['torch=1']", "e.yml:2: torch=1: one = is conda's"),
    ],
)
def test_an_environment_that_does_not_tell(tmp_path: Path, content: str, advice: str) -> None:
    write(tmp_path, e__yml=content)
    (problem,) = refused(tmp_path, "e.yml")
    assert advice in problem


#: As people name them: folder under tests/requirements -> item of the manifest.
TWENTY = {
    "alpaca-lora": "-r requirements.txt",
    "axolotl": "-r requirements.txt",
    "cleanrl": "-r requirements/requirements.txt",
    "detectron2": "-r docs/requirements.txt",
    "dinov2": "-r requirements.txt",
    "dinov2-conda": "conda.yaml",
    "gpt-neox": "-r requirements/requirements.txt",
    "jax": "-r requirements_lock_3_12.txt",
    "keras": "-r requirements-jax-cuda.txt",
    "kohya_ss": "-r requirements_linux.txt",
    "mmdetection": "-r requirements/albu.txt",
    "open-instruct": "pyproject.toml[compile]",
    "openpi": "pyproject.toml:rlds",
    "ray": "-r dl-gpu-requirements.txt",
    "sd-scripts": "-r requirements.txt",
    "stable-diffusion": "environment.yaml",
    "text-generation-webui": "-r requirements.txt",
    "unsloth": "pyproject.toml[intel-gpu-torch260]",
    "verl": "-r requirements.txt",
    "yolov5": "-r requirements.txt",
}


@pytest.mark.parametrize("project", TWENTY)
def test_twenty_real_ones_give_what_the_documentation_says(project: str, tmp_path: Path) -> None:
    folder, item = tmp_path / "project", TWENTY[project]
    shutil.copytree(REAL / project, folder)
    if not (folder / "pyproject.toml").exists():
        write(folder, setup__py="")  # theirs; it makes the folder a project
    as_it_stands, mended = _outcome(folder, item, []), "the same"
    if urls := _undeclared(folder, item):
        mended = _outcome(folder, item, urls)
    row = f"| {project} | `{item}` | {as_it_stands} | {mended} |"
    assert row in (REAL.parents[1] / "docs/requirements.md").read_text(encoding="utf-8")
    first = next(folder.rglob(item.removeprefix("-r ").split("/")[-1].split("[")[0].split(":")[0]))
    assert project.split("-conda")[0] in first.read_text(encoding="utf-8").splitlines()[0]


def _outcome(folder: Path, item: str, indexes: Sequence[str]) -> str:
    try:
        found = read(folder, item, indexes=indexes)
    except UsageError as error:
        places = (problem.split(": ")[0] for problem in error.problems)
        return "mistakes at " + ", ".join(dict.fromkeys(places))
    counts = {
        "specifiers": found.specifiers,
        "wheel URLs": found.wheel_urls,
        "git": found.git_urls,
        "local": found.local_projects,
        "with hashes": found.hashes,
    }
    return ", ".join(f"{len(items)} {noun}" for noun, items in counts.items() if items)


def _undeclared(folder: Path, item: str) -> list[str]:
    try:
        read(folder, item)
    except UsageError as error:
        return [url for line in error.problems for url in re.findall(r'url: "([^"]+)"', line)]
    return []
