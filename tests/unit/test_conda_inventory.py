"""What a server's conda environment has: told there, solved against here, and not carried."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mirror.core import inventory as inventories
from mirror.core.inventory import CondaPackage
from mirror.core.manifest import CondaSection
from mirror.core.progress import Quiet
from mirror.core.target import Target
from mirror.ecosystems.conda import source
from mirror.errors import MachineError, ResolutionError, UsageError
from mirror.probe import probe
from mirror.project import open_project
from tests.conda_packages import TARGET, Package, context, write_channel

HERE = f"{sys.version_info[0]}.{sys.version_info[1]}"
THERE = replace(TARGET, conda=("numpy=1.26.4=py311h_0", "python=3.11.4=h_0"))


def conda_meta(env: Path, name: str, version: str, *files: str, build: str = "h_0") -> None:
    record = {"name": name, "version": version, "build": build, "subdir": "linux-64"}
    (env / "conda-meta").mkdir(exist_ok=True)
    (env / "conda-meta" / f"{name}-{version}-{build}.json").write_text(
        json.dumps({**record, "files": files}), encoding="utf-8"
    )


@pytest.fixture
def env(tmp_path: Path) -> Path:
    """A Python environment that says of itself that conda made it."""
    env = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", env], check=True)
    site = f"lib/python{HERE}/site-packages"
    conda_meta(env, "python", f"{HERE}.4", "bin/python")
    conda_meta(env, "numpy", "1.26.4", f"{site}/numpy-1.26.4.dist-info/METADATA")
    conda_meta(env, "openssl", "3.3.1", "lib/libssl.so")
    (env / site / "numpy-1.26.4.dist-info").mkdir()
    (env / site / "numpy-1.26.4.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: numpy\nVersion: 1.26.4\n", encoding="utf-8"
    )
    return env


def test_a_probe_lists_the_conda_packages(env: Path) -> None:
    found = probe(env)
    assert found.packages == ("numpy==1.26.4",)
    assert found.conda == (
        CondaPackage("numpy", "1.26.4", "h_0", "linux-64", python=True),
        CondaPackage("openssl", "3.3.1", "h_0", "linux-64", python=False),
        CondaPackage("python", f"{HERE}.4", "h_0", "linux-64", python=True),
    )
    again = inventories.parse(json.dumps(found.to_json()).encode(), "server.json")
    assert again == found


def test_an_inventory_from_before_has_none() -> None:
    old = {"format": 1, "python": "3.11", "platform": "linux-x86_64", "glibc": "2.28"}
    assert inventories.parse(json.dumps({**old, "packages": []}).encode(), "i").conda == ()


@pytest.mark.parametrize("conda", [["numpy"], [{"name": "a b", "version": "1"}], 3, [{}]])
def test_an_inventory_of_another_shape_is_named(conda: object) -> None:
    document = {"format": 1, "python": "3.11", "platform": "linux-x86_64", "glibc": "2.28"}
    data = json.dumps({**document, "packages": [], "conda": conda}).encode()
    with pytest.raises(UsageError, match=r"server\.json is not an inventory"):
        inventories.parse(data, "server.json")


def test_a_damaged_record_is_named(env: Path) -> None:
    (env / "conda-meta" / "bad.json").write_text("{", encoding="utf-8")
    with pytest.raises(MachineError, match=r"bad\.json is no record of a conda package"):
        probe(env)


def test_the_target_takes_the_packages_that_a_layer_sees(
    tmp_path: Path, env: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIRROR_CACHE", str(tmp_path / "cache"))
    (tmp_path / "server.json").write_text(json.dumps(probe(env).to_json()), encoding="utf-8")

    def conda(target: str) -> tuple[str, ...]:
        text = f"name: t\nversion: '1'\ntarget: {{inventory: server.json{target}}}\n"
        text += "conda: {channels: [conda-forge], packages: [tmux]}\n"
        (tmp_path / "m.yaml").write_text(text, encoding="utf-8")
        return open_project(tmp_path / "m.yaml", Quiet()).context.target.conda

    assert conda("") == ("numpy=1.26.4=h_0", f"python={HERE}.4=h_0")
    assert conda(", carry: [numpy]") == (f"python={HERE}.4=h_0",)
    assert conda(", python: '3.99'") == (), "packages of another Python are none for this one"


def test_what_a_target_has_survives_the_lock() -> None:
    assert Target.from_json(THERE.to_json()) == THERE
    with pytest.raises(ValueError, match="NAME=VERSION=BUILD"):
        Target.from_json({**THERE.to_json(), "conda": ["numpy"]})


def names(section: CondaSection, folder: Path, target: Target = THERE) -> list[str]:
    here = context(folder, target)
    found = source.resolve(section, here)
    source.prove(found, section, here)
    return sorted(f"{a.text('name')} {a.text('version')}" for a in found)


def test_what_the_server_has_is_solved_against_and_left_out(tmp_path: Path) -> None:
    numpy = Package("numpy", "2.0", depends=["libblas"])
    app = Package("app", depends=["numpy >=1.20", "python", "lib"], noarch=None, subdir="linux-64")
    channel = write_channel(
        tmp_path / "c", numpy, app, *(Package(n) for n in ("lib", "libblas", "python"))
    )
    wanted = CondaSection(channels=[str(channel)], packages=["app", "numpy"])
    assert names(wanted, tmp_path) == ["app 1.0", "lib 1.0"]
    assert names(wanted, tmp_path, replace(TARGET, conda=("python=3.11.4=h_0",))) == [
        "app 1.0",
        "lib 1.0",
        "libblas 1.0",
        "numpy 2.0",
    ]


def test_what_does_not_go_with_it_is_said(tmp_path: Path) -> None:
    app = Package("app", depends=["numpy >=2"])
    channel = write_channel(tmp_path / "c", Package("numpy", "2.0"), app)

    def problems(*packages: str) -> tuple[str, ...]:
        with pytest.raises(ResolutionError) as caught:
            names(CondaSection(channels=[str(channel)], packages=list(packages)), tmp_path)
        return caught.value.problems

    assert problems("app")[-1] == "The target has numpy 1.26.4 py311h_0, and it is not replaced."
    assert problems("numpy>=2") == (
        "conda.packages.0: numpy>=2: the target has numpy 1.26.4 py311h_0",
    )


def test_packages_that_a_python_has_to_link_bring_one(tmp_path: Path) -> None:
    python = Package("python", "3.11.9", noarch=None, subdir="linux-64")
    pure = Package("pure", depends=["python", "numpy"], noarch="python")
    channel = write_channel(tmp_path / "c", python, pure)
    wanted = CondaSection(channels=[str(channel)], packages=["pure"])
    assert names(wanted, tmp_path) == ["pure 1.0", "python 3.11.9"]
    write_channel(channel, pure)
    (channel / "linux-64" / "repodata.json").unlink()
    with pytest.raises(ResolutionError) as caught:
        names(wanted, tmp_path)
    assert caught.value.problems[-1] == (
        "pure-1.0-0.tar.bz2 is linked by a Python of its own prefix, which has to be carried"
    )
