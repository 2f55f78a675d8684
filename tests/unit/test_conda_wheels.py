"""Conda and wheels in one lock: what conda brings is resolved against, and never replaced."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from mirror import build
from mirror.core import lock as locks
from mirror.core.artifact import Artifact, Json
from mirror.core.lock import Lock
from mirror.core.manifest import CondaSection, WheelsSection
from mirror.ecosystems.conda import source as conda
from mirror.ecosystems.conda.solving import contents
from mirror.ecosystems.source import Context
from mirror.ecosystems.wheels import source as wheels
from mirror.errors import DownloadError, ResolutionError
from mirror.project import open_project
from tests.conda_packages import DATA, Package, Recorder, context, needs_data, write_channel
from tests.index import make_wheel, serve

PYTHON = Package("python", "3.11.4", noarch=None, subdir="linux-64")


def metadata(name: str, version: str, *requires: str, more: str = "") -> bytes:
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    lines += [f"Requires-Dist: {item}" for item in requires]
    return ("\n".join(lines) + f"\n{more}\n").encode()


def python_package(
    name: str, version: str, *distributions: bytes, noarch: bool = True, **files: bytes
) -> Package:
    """A conda package of these distributions, each given by its METADATA."""
    site = "site-packages" if noarch else "lib/python3.11/site-packages"
    held: dict[str, bytes] = {}
    for data in distributions:
        called = data.split(b"Name: ")[1].split(b"\n")[0].decode()
        held[f"{site}/{called}-1.dist-info/METADATA"] = data
    held |= {f"{site}/{path.replace('__', '.')}": data for path, data in files.items()}
    return Package(
        name,
        version,
        depends=["python"],
        files=held,
        noarch="python" if noarch else None,
        subdir="noarch" if noarch else "linux-64",
    )


TORCH = python_package(
    "pytorch",
    "2.8.0",
    metadata("torch", "2.8.0.post301", "sympy>=1.13", 'pillow ; extra == "vision"'),
    metadata("torchgen", "2.8.0"),
    noarch=False,
)
SYMPY = python_package("sympy", "1.14.0", metadata("sympy", "1.14.0", "mpmath<1.4"))


@pytest.fixture
def shelf(tmp_path: Path) -> Path:
    folder = tmp_path / "shelf"
    folder.mkdir()
    for version in ("2.8.0", "2.9.0"):
        make_wheel(folder, "torch", version, requires=["sympy"])
    for version in ("1.13.0", "1.14.0"):
        make_wheel(folder, "sympy", version)
    make_wheel(folder, "mpmath", "1.3.0")
    make_wheel(folder, "mpmath", "1.4.0")
    make_wheel(folder, "pillow", "11.0")
    make_wheel(folder, "accelerate", "1.0", requires=["torch>=2"])
    return folder


@pytest.fixture
def here(tmp_path: Path, shelf: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Context]:
    with serve(shelf) as url:
        monkeypatch.setenv("UV_DEFAULT_INDEX", url)
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
        yield context(tmp_path)


def section(folder: Path, *packages: Package) -> CondaSection:
    write_channel(folder / "local", PYTHON, *packages)
    return CondaSection(channels=["./local"], packages=[package.name for package in packages])


def both(
    here: Context, conda_section: CondaSection, *requirements: str
) -> tuple[list[Artifact], list[Artifact]]:
    """Resolve and prove both, one after the other, as lock and build do."""
    found = conda.resolve(conda_section, here)
    after = replace(here, resolved=tuple(found))
    wanted = WheelsSection(requirements=list(requirements))
    resolved = wheels.resolve(wanted, after)
    wheels_at = wheels.requests(resolved, wanted, here)
    here.fetcher.fetch([request for request in wheels_at if not isinstance(request, Path)])
    locked = replace(here, resolved=(*found, *resolved))
    conda.prove(found, conda_section, locked)
    wheels.prove(resolved, wanted, locked)
    return found, resolved


def names(artifacts: Sequence[Artifact]) -> list[str]:
    return [f"{a.text('name')} {a.text('version')}" for a in artifacts]


def warned(here: Context) -> list[str]:
    assert isinstance(here.progress, Recorder)
    return here.progress.warnings


def test_what_conda_brings_is_no_wheel_and_what_it_lacks_is_one(
    tmp_path: Path, here: Context
) -> None:
    found, resolved = both(here, section(tmp_path, TORCH, SYMPY), "accelerate", "torch[vision]")
    assert names(resolved) == ["accelerate 1.0", "mpmath 1.3.0", "pillow 11.0"]
    brought = {a.text("name"): a.origin.get("distributions") for a in found}
    assert brought == {
        "python": None,
        "pytorch": [
            {
                "name": "torch",
                "version": "2.8.0.post301",
                "requires": ["sympy>=1.13", 'pillow; extra == "vision"'],
            },
            {"name": "torchgen", "version": "2.8.0", "requires": []},
        ],
        "sympy": [{"name": "sympy", "version": "1.14.0", "requires": ["mpmath<1.4"]}],
    }
    assert warned(here) == []


def test_a_need_that_conda_does_not_meet_becomes_a_wheel(tmp_path: Path, here: Context) -> None:
    _, resolved = both(here, section(tmp_path, TORCH), "accelerate")
    assert names(resolved) == ["accelerate 1.0", "sympy 1.14.0"]


def test_conda_packages_that_nobody_asks_for_are_condas_business(
    tmp_path: Path, here: Context
) -> None:
    _, resolved = both(here, section(tmp_path, TORCH), "pillow")
    assert names(resolved) == ["pillow 11.0"]


def test_a_need_between_conda_packages_that_their_metadata_denies_is_said(
    tmp_path: Path, here: Context
) -> None:
    old = python_package("sympy", "1.12", metadata("sympy", "1.12"))
    _, resolved = both(here, section(tmp_path, TORCH, old), "accelerate")
    assert names(resolved) == ["accelerate 1.0"]
    (warning,) = warned(here)
    assert warning == (
        "the conda package pytorch 2.8.0 brings torch 2.8.0.post301, which needs sympy>=1.13; but "
        "the conda package sympy 1.12 brings sympy 1.12"
    )


@pytest.mark.parametrize(
    ("requirement", "problem"),
    [
        ("torch==2.9.0", "wheels.requirements.0: torch==2.9.0 is asked for, and the conda"),
        ("torch @ https://c.invalid/torch-2.8.0-py3-none-any.whl", "a place of torch is named"),
    ],
)
def test_a_requirement_that_condas_does_not_satisfy_names_both(
    tmp_path: Path, here: Context, requirement: str, problem: str
) -> None:
    with pytest.raises(ResolutionError, match="do not agree") as caught:
        both(here, section(tmp_path, TORCH), requirement, "torch<1 ; sys_platform == 'win32'")
    (line,) = caught.value.problems
    assert problem in line
    assert "the conda package pytorch 2.8.0 brings torch 2.8.0.post301" in line


@pytest.mark.parametrize("resolver", ["uv", "pip-tools"])
def test_a_need_of_a_wheel_that_condas_does_not_satisfy_names_both(
    tmp_path: Path, shelf: Path, here: Context, resolver: str
) -> None:
    make_wheel(shelf, "newer", "1.0", requires=["torch>=2.9"])
    found = conda.resolve(section(tmp_path, TORCH), here)
    wanted = WheelsSection.model_validate({"requirements": ["newer"], "resolver": resolver})
    with pytest.raises(ResolutionError) as caught:
        wheels.resolve(wanted, replace(here, resolved=tuple(found)))
    text = str(caught.value)
    assert "newer" in text
    assert "The conda package pytorch 2.8.0 brings torch 2.8.0.post301." in text


def test_no_wheel_is_shipped_that_would_write_over_condas_files(
    tmp_path: Path, shelf: Path, here: Context
) -> None:
    make_wheel(shelf, "shared", "1.0", code="VERSION = 'wheel'\n")
    link = {"noarch": {"type": "python", "entry_points": ["tool = other:main"]}}
    other = python_package("other", "1.0", shared__py=b"VERSION = 'conda'\n")
    other.info = {"info/link.json": json.dumps(link).encode()}
    with pytest.raises(ResolutionError, match="write over what conda packages bring") as caught:
        both(here, section(tmp_path, other), "shared")
    assert caught.value.problems == (
        "shared-1.0-py3-none-any.whl would replace site-packages/shared.py of other 1.0",
    )
    known = contents.remembered(conda.resolve(section(tmp_path, other), here)[1].sha256, here.blobs)
    assert known is not None
    assert set(known.files) == {"site-packages/shared.py", "bin/tool"}


def test_a_file_that_is_the_same_in_both_harms_nobody(
    tmp_path: Path, shelf: Path, here: Context
) -> None:
    make_wheel(shelf, "shared", "1.0", code="same\n")
    same = python_package("other", "1.0", noarch=False, shared__py=b"same\n")
    _, resolved = both(here, section(tmp_path, same), "shared")
    assert names(resolved) == ["shared 1.0"]


def test_a_lock_needs_nothing_to_be_read_again(tmp_path: Path, here: Context) -> None:
    wanted = section(tmp_path, TORCH, SYMPY)
    found = conda.resolve(wanted, here)
    lock = Lock(inputs="0", target=here.target, artifacts=tuple(found))
    again = locks.parse(lock.to_bytes(), "t.lock.toml").artifacts
    assert [a.origin for a in again] == [a.origin for a in found]
    for note in (here.blobs.folder / "conda").iterdir():
        note.unlink()
    after = replace(here, kept=again, resolved=again)
    assert conda.resolve(wanted, after) == found
    assert not list((here.blobs.folder / "conda").iterdir())
    resolved = wheels.resolve(WheelsSection(requirements=["accelerate"]), after)
    assert names(resolved) == ["accelerate 1.0", "mpmath 1.3.0"]


def test_metadata_in_every_form_that_python_knows(tmp_path: Path, here: Context) -> None:
    site = "lib/python3.11/site-packages"
    forms = Package(
        "forms",
        "1.0",
        depends=["python_abi"],
        noarch=None,
        subdir="linux-64",
        files={
            f"{site}/a-1.0.dist-info/METADATA": metadata(
                "A_b", "1.0", "x (>=1)", "y @ https://c.invalid/y.whl", "z !"
            ),
            f"{site}/b-2.0.egg-info/PKG-INFO": metadata("b", "2.0"),
            f"{site}/b-2.0.egg-info/requires.txt": b"y>=2\n\n[extra]\nz\n",
            f"{site}/c-3.0-py3.11.egg-info": metadata("c", "3.0"),
            f"{site}/d-4.0.dist-info/METADATA": b"no metadata\n",
            f"{site}/e-5.0.dist-info/METADATA": metadata("e", "not a version"),
            f"{site}/f/_vendor/g-6.0.dist-info/METADATA": metadata("g", "6.0"),
            f"{site}/h-7.0.dist-info/RECORD": b"",
            f"{site}/j-9.0.egg-info/requires.txt": b"x\n",
            f"{site}/i-8.0.dist-info/METADATA": metadata("i", "8.0", more="\xe4").replace(
                "ä".encode(), b"\xe4"
            ),
        },
    )
    write_channel(tmp_path / "local", forms, Package("python_abi"))
    wanted = CondaSection(channels=["./local"], packages=["forms"])
    found = conda.resolve(wanted, here)
    (origin,) = (a.origin for a in found if a.text("name") == "forms")
    brought = origin["distributions"]
    assert isinstance(brought, list)
    assert [(d["name"], d["version"], d["requires"]) for d in brought] == [
        ("A_b", "1.0", ["x>=1", "y", "z !"]),
        ("b", "2.0", ["y>=2", 'z; extra == "extra"']),
        ("c", "3.0", []),
        ("i", "8.0", []),
    ]


@needs_data
def test_one_name_for_conda_and_another_for_wheels(tmp_path: Path, here: Context) -> None:
    file = DATA / "pixi-pack" / "webserver" / "my-webserver-broken-0.1.0-pyh4616a5c_0.conda"
    channel = [PYTHON, Package("fastapi", "0.112"), Package("pydantic", "2.0")]
    write_channel(tmp_path / "local", replace(PYTHON, version="3.12.1"), *channel[1:])
    wanted = CondaSection(channels=["./local"], packages=[str(file)])
    found = conda.resolve(wanted, replace(here, target=replace(here.target, python="3.12")))
    origin: dict[str, Json] = dict(
        next(a.origin for a in found if a.text("name") == "my-webserver-broken")
    )
    assert origin["distributions"] == [{"name": "my-webserver", "version": "0.1.0", "requires": []}]


def test_a_damaged_package_is_found_while_locking(tmp_path: Path, here: Context) -> None:
    torn = Package("torn", depends=["python"], paths=[{"_path": "gone", "path_type": "hardlink"}])
    with pytest.raises(DownloadError) as caught:
        conda.resolve(section(tmp_path, torn), here)
    assert caught.value.problems == ("torn-1.0-0.tar.bz2: it lacks files that it lists: gone",)


def test_lock_hands_what_conda_resolved_to_the_wheels(
    tmp_path: Path, shelf: Path, here: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIRROR_CACHE", str(tmp_path / "cache"))
    for tool in ("click", "tqdm", "packaging", "segno", "pip", "py-rattler"):
        make_wheel(shelf, tool, {"py-rattler": "0.28.0"}.get(tool, "99.0"))
    monkeypatch.setattr("mirror.ecosystems.tool.source._requirements", lambda *_: ["click"])
    write_channel(tmp_path / "local", PYTHON, TORCH, SYMPY)
    environment = "channels: [local]\ndependencies: [pytorch, sympy, {pip: [accelerate]}]\n"
    (tmp_path / "environment.yml").write_text(environment, encoding="utf-8")
    manifest = tmp_path / "m.yaml"
    manifest.write_text(
        "name: t\nversion: '1'\ntarget: {python: '3.11', platform: linux-x86_64, glibc: '2.28'}\n"
        "conda: {environment: environment.yml, channels: [./local]}\n",
        encoding="utf-8",
    )
    project = open_project(manifest, Recorder())
    locked, changed = build.lock(project)
    assert changed
    assert names([a for a in locked.artifacts if a.kind == "wheels"]) == [
        "accelerate 1.0",
        "mpmath 1.3.0",
    ]
    assert build.lock(open_project(manifest, Recorder())) == (locked, False)
    newer = replace(SYMPY, version="1.15.0")
    write_channel(tmp_path / "local", PYTHON, TORCH, SYMPY, newer)
    kept, _ = build.lock(open_project(manifest, Recorder()))
    assert kept.artifacts == locked.artifacts, "a stale lock keeps what still fits"
    moved, _ = build.lock(open_project(manifest, Recorder()), upgrade=["SymPy"])
    assert "sympy 1.15.0" in names(moved.artifacts)
    assert "torch" not in "".join(set(names(moved.artifacts)) - set(names(locked.artifacts)))
