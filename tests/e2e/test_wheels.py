"""Wheels on the server: by uv and by pip, into an environment, over one, from an inventory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from mirror import machine
from tests.e2e.conftest import mirror, mirror_json

_UV = [sys.executable, "-m", "uv", "pip"]
HERE = machine.this_python()


@pytest.fixture
def project(tmp_path: Path, demo_cache: Path) -> Path:
    assert demo_cache.is_dir()
    return tmp_path


def write(folder: Path, wheels: str, target: str = "{}", rest: str = "") -> None:
    (folder / "mirror.yaml").write_text(
        f"name: x\nversion: 1\ntarget: {target}\nwheels: {wheels}\n{rest}", encoding="utf-8"
    )


def versions(python: Path) -> dict[str, str | None]:
    return machine.ask(python, everything=True).packages


@pytest.mark.parametrize("way", ["by uv", "own", "into by pip", "into by uv"])
def test_every_way_of_installing_makes_the_same_environment(project: Path, way: str) -> None:
    installer = way.rpartition(" ")[2].replace("own", "pip")
    write(project, f"{{requirements: [six, 'rich==14.0.0'], installer: {installer}}}")
    mirror("build", "-o", "b.tar.gz", cwd=project)
    tools = [a["path"] for a in mirror_json("inspect", project / "b.tar.gz")["artifacts"]]
    assert any("/uv-" in path for path in tools) == (installer == "uv")
    into: list[object] = []
    if way.startswith("into"):
        venv.create(project / "env", with_pip=True)
        into = ["--into", "env", "--yes"]
    mirror("install", "b.tar.gz", "--root", "root", *into, cwd=project)
    python = project / "root/current/env/bin/python"
    found = versions(python)
    assert found["rich"] == "14.0.0"
    assert {"six", "rich", "pygments", "markdown-it-py", "mdurl", "pip"} <= {
        name.lower() for name in found
    }
    done = subprocess.run([python, "-m", "pip", "check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    assert not (project / "root/current/installing").exists()


def test_a_wheel_that_changed_in_the_store_is_not_installed(project: Path) -> None:
    write(project, "{requirements: [six]}")
    mirror("build", "-o", "b.tar.gz", cwd=project)
    mirror("install", "b.tar.gz", "--root", "root", cwd=project)
    [wheel] = (project / "root/current/wheels").glob("six-*.whl")
    wheel.chmod(0o644)
    data = wheel.read_bytes()
    wheel.write_bytes(data[:100] + b"\x00" + data[101:])  # the store's own blob, by its hard link
    shutil.rmtree(project / "root" / "generations")
    (project / "root" / "current").unlink()
    mirror("install", "b.tar.gz", "--root", "root", cwd=project)  # mended from the bundle
    [wheel] = (project / "root/current/wheels").glob("six-*.whl")
    assert wheel.read_bytes() == data


def test_into_an_environment_shows_the_plan_and_asks(project: Path) -> None:
    env = project / "env"
    venv.create(env, with_pip=False)
    write(project, "{requirements: ['six==1.16.0', packaging]}")
    mirror("build", "-o", "b.tar.gz", cwd=project)
    plan = mirror_json(
        *("install", "b.tar.gz", "--root", "root", "--into", env, "--dry-run"), cwd=project
    )
    assert "six 1.16.0" in plan["added"]
    assert plan["changed"] == []
    said = mirror("install", "b.tar.gz", "--root", "root", "--into", env, cwd=project, code=2)
    assert "add      six 1.16.0" in said.stderr
    assert "--yes" in said.stderr
    assert not (project / "root").exists()
    mirror("install", "b.tar.gz", "--root", "root", "--into", env, "--yes", cwd=project)
    assert versions(env / "bin/python")["six"] == "1.16.0"
    write(project, "{requirements: ['six==1.17.0', packaging]}")
    mirror("build", "-o", "c.tar.gz", cwd=project)
    done = mirror("install", "c.tar.gz", "--root", "root", "--into", env, "--yes", cwd=project)
    assert versions(env / "bin/python")["six"] == "1.17.0"
    [record] = (project / "root/log").glob("before-000002.txt")
    assert "six==1.16.0" in record.read_text(encoding="utf-8")
    assert str(record) in done.stderr
    assert "pip" not in versions(env / "bin/python")  # nothing but what was shown
    mirror("verify", "--root", "root", cwd=project)
    refused = mirror("rollback", "--root", "root", cwd=project, code=8).stderr
    assert "before-" in refused
    subprocess.run([*_UV, "uninstall", "--python", env / "bin/python", "six"], check=True)
    again = mirror_json(
        *("install", "c.tar.gz", "--root", "root", "--into", env, "--yes"), cwd=project
    )
    assert again["changed"] is True
    assert versions(env / "bin/python")["six"] == "1.17.0"


def test_into_an_environment_that_would_break_is_refused(project: Path) -> None:
    env = project / "env"
    venv.create(env, with_pip=False)
    subprocess.run([*_UV, "install", "--python", env / "bin/python", "requests==2.31"], check=True)
    before = versions(env / "bin/python")
    write(project, "{requirements: ['urllib3==1.20']}")
    mirror("build", "-o", "b.tar.gz", cwd=project)
    said = mirror("install", "b.tar.gz", "--root", "r", "--into", env, "--yes", cwd=project, code=7)
    assert "requests 2.31.0 needs urllib3" in said.stderr
    assert versions(env / "bin/python") == before


def test_what_is_installed_is_for_every_user(project: Path) -> None:
    write(project, "{requirements: [six]}", rest="files: [{path: mirror.yaml, to: m.yaml}]\n")
    mirror("build", "-o", "b.tar.gz", cwd=project)
    before = os.umask(0o077)
    try:
        mirror("install", "b.tar.gz", "--root", "root", cwd=project)
    finally:
        os.umask(before)
    for path in (project / "root").rglob("*"):
        if not path.is_symlink() and path.name != "lock":
            mode = path.stat().st_mode & 0o777
            assert mode & 0o444 == 0o444, (path, oct(mode))
            assert not mode & 0o022, (path, oct(mode))
            assert not path.is_dir() or mode & 0o111 == 0o111, (path, oct(mode))


def test_into_what_does_not_fit(project: Path) -> None:
    write(project, "{requirements: [six]}")
    mirror("build", "-o", "b.tar.gz", cwd=project)
    said = mirror("install", "b.tar.gz", "--root", "r", "--into", project, cwd=project, code=8)
    assert "no Python environment" in said.stderr
    both = ("--into", sys.prefix, "--over", sys.prefix)
    mirror("install", "b.tar.gz", "--root", "r", *both, cwd=project, code=2)


def test_an_inventory_is_a_target(project: Path) -> None:
    server = project / "server"
    venv.create(server, with_pip=False)
    site = next((server / "lib").glob("python3*/site-packages"))
    for name, version in (("markdown_it_py", "3.0.0"), ("torch", "2.8.0")):
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
        )
    mirror("probe", "--env", server, "-o", "server.json", cwd=project)
    known = json.loads((project / "server.json").read_text(encoding="utf-8"))
    assert known["packages"] == ["markdown-it-py==3.0.0", "torch==2.8.0"]
    write(project, "{requirements: ['rich==14.0.0']}", "{inventory: server.json}")
    mirror("build", "-o", "b.tar.gz", cwd=project)
    seen = mirror_json("inspect", project / "b.tar.gz")
    carried = {a["path"] for a in seen["artifacts"] if a["path"].startswith("wheels/")}
    assert {path.split("/")[1].split("-")[0] for path in carried} == {"rich", "pygments"}
    mirror("install", "b.tar.gz", "--root", "root", "--over", server, cwd=project)
    # What stands against the server's version is named; `carry` takes ours in its place.
    write(project, "{requirements: ['markdown-it-py>=4']}", "{inventory: server.json}")
    said = mirror("build", "-o", "c.tar.gz", cwd=project, code=3)
    assert "The target provides markdown-it-py==3.0.0." in said.stderr
    write(
        project,
        "{requirements: ['markdown-it-py>=4']}",
        "{inventory: server.json, carry: [Markdown-It-Py]}",
    )
    mirror("build", "-o", "c.tar.gz", cwd=project)


def test_a_lock_moves_only_when_and_what_it_is_told(project: Path) -> None:
    write(project, "{requirements: [six, packaging], exclude-newer: 2023-01-01}")
    mirror("lock", cwd=project)
    old = (project / "mirror.lock.toml").read_text(encoding="utf-8")
    assert 'version = "1.16.0"' in old
    write(project, "{requirements: [six, packaging]}")
    mirror("lock", "--check", cwd=project, code=2)
    mirror("lock", cwd=project)
    kept = (project / "mirror.lock.toml").read_text(encoding="utf-8")
    changed = set(kept.splitlines()) - set(old.splitlines())
    assert not any("six-1.17" in line or "packaging-2" in line for line in changed)
    assert mirror_json("lock", cwd=project)["changed"] is False
    said = mirror("lock", "--upgrade-package", "six", cwd=project).stderr
    moved = (project / "mirror.lock.toml").read_text(encoding="utf-8")
    assert "six-1.17" in moved or "six-1.18" in moved
    assert "six 1.16.0 -> " in said
    assert "packaging" not in said
    mirror("lock", "--upgrade-package", "nonsense", cwd=project, code=2)
    assert "packaging 2" in mirror("lock", "--upgrade", cwd=project).stderr


def test_a_yanked_version_is_warned_of(project: Path) -> None:
    write(project, "{requirements: ['attrs==21.1.0']}")
    assert "yanked" in mirror("lock", cwd=project).stderr


@pytest.mark.parametrize("resolver", ["uv", "pip-tools"])
def test_both_resolvers_lock_and_build(project: Path, resolver: str) -> None:
    write(
        project,
        f"{{requirements: [rich, 'tomli; python_version < \"3.11\"'], resolver: {resolver}}}",
        "{python: 3.10, platform: win-amd64}",
    )
    mirror("build", "-o", "b.tar.gz", cwd=project)
    seen = mirror_json("inspect", project / "b.tar.gz")
    paths = [a["path"] for a in seen["artifacts"] if a["path"].startswith("wheels/")]
    names = {path.split("/")[1].split("-")[0] for path in paths}
    assert {"rich", "pygments", "tomli"} <= names


def test_an_sdist_is_built_once_and_fits_any_target(project: Path) -> None:
    write(
        project,
        "{requirements: ['antlr4-python3-runtime==4.9.3']}",
        "{python: 3.12, platform: linux-aarch64}",
    )
    first = mirror("build", "-o", "b.tar.gz", cwd=project)
    assert "building one from its sdist" in first.stderr
    text = (project / "mirror.lock.toml").read_text(encoding="utf-8")
    assert 'sdist = "antlr4-python3-runtime-4.9.3.tar.gz"' in text
    again = mirror("build", "-o", "b.tar.gz", cwd=project)
    assert "building" not in again.stderr
    write(project, "{requirements: ['antlr4-python3-runtime==4.9.3'], sdists: never}")
    said = mirror("build", "-o", "c.tar.gz", cwd=project, code=3)
    assert "antlr4-python3-runtime" in said.stderr


def test_what_cannot_work_on_the_gpus_is_refused_by_name(project: Path) -> None:
    write(
        project,
        "{requirements: ['torch==2.7.1']}",
        "{python: 3.11, platform: linux-x86_64, glibc: 2.28, gpus: [sm_120], driver: 570.86}",
    )
    said = mirror("lock", cwd=project, code=7).stderr
    assert "sm_120" in said
    assert "torch 2.7.1" in said or "nccl" in said.lower()
    assert not (project / "mirror.lock.toml").exists()


def test_the_torch_for_the_targets_cuda_is_chosen(project: Path) -> None:
    write(
        project,
        "{requirements: [torch]}",
        "{python: 3.11, platform: linux-x86_64, glibc: 2.28, cuda: 12.6}",
    )
    mirror("lock", cwd=project)
    assert 'file = "torch-2.7.1-' in (project / "mirror.lock.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["companionguard", "verl", "grace", "h200"])
def test_the_locks_of_real_stacks_are_fresh(name: str, demo_cache: Path) -> None:
    folder = Path(__file__).resolve().parents[2] / "manifests"
    assert os.environ["MIRROR_CACHE"] == str(demo_cache)
    mirror("lock", folder / f"{name}.yaml", "--check")
