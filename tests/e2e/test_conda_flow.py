"""Conda packages as a person carries them: lock, build, install, list, run, verify."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from mirror import machine
from tests.conda_packages import DATA, Package, needs_data, write_channel
from tests.conda_python import python_package
from tests.e2e.conftest import mirror, mirror_json

HERE = machine.this_python()
GREETING = Package(
    "greeting",
    depends=["python"],
    noarch="python",
    files={"site-packages/greeting.py": b"import sys\ndef main():\n    print(sys.prefix)\n"},
    info={
        "info/link.json": json.dumps(
            {
                "noarch": {"type": "python", "entry_points": ["greet = greeting:main"]},
                "package_metadata_version": 1,
            }
        ).encode()
    },
)


@pytest.fixture
def project(tmp_path: Path, demo_cache: Path) -> Path:
    assert demo_cache.is_dir()
    return tmp_path


def write(folder: Path, text: str) -> None:
    (folder / "mirror.yaml").write_text(f"name: x\nversion: 1\n{text}", encoding="utf-8")


def installed(folder: Path) -> Path:
    """Build and install; returns the environment."""
    mirror("build", "-o", "b.tar.gz", cwd=folder)
    mirror("install", "b.tar.gz", "--root", "root", cwd=folder)
    return (folder / "root" / "current").resolve() / "env"


def said(*command: str | Path) -> str:
    bare = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    done = subprocess.run(command, env=bare, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("installer", ["uv", "pip"])
def test_a_python_from_conda_and_wheels_beside_it(project: Path, installer: str) -> None:
    python = python_package()
    # As Pythons have it whose packages are somebody's: here they are mirror's.
    managed = {f"lib/python{HERE}/EXTERNALLY-MANAGED": b"[externally-managed]\nError=no\n"}
    python = replace(python, files={**python.files, **managed})
    write_channel(project / "channel", python, GREETING)
    write(
        project,
        "conda: {channels: [./channel], packages: [greeting]}\n"
        f"wheels: {{requirements: [markdown-it-py], installer: {installer}}}\n"
        "verify: {imports: [greeting, markdown_it]}\n",
    )
    env = installed(project)
    prefix = str(env)
    program = env / "bin" / "python"
    assert not (env / "pyvenv.cfg").exists(), "it is an environment of its own, not one of another"
    code = "import sys; print(sys.prefix, sys.base_prefix)"
    assert said(program, "-I", "-c", code) == f"{prefix} {prefix}"
    packages = machine.ask(program, everything=True).packages
    assert {name.lower() for name in packages} >= {"markdown-it-py", "mdurl", "pip"}
    assert said(program, "-m", "pip", "check") == "No broken requirements found."
    assert said(env / "bin" / "greet") == prefix
    assert said(env / "bin" / "markdown-it", "--version")
    first = (env / "bin" / "markdown-it").read_bytes()[:300].decode()
    assert f"{prefix}/bin/python" in first
    line = ["run", "--root", "root", "--", "greet"]
    assert mirror(*line, cwd=project).stdout.strip() == prefix
    report = project / "report"
    mirror("verify", "--root", "root", "--report", report, cwd=project)
    stages = json.loads((report / "report.json").read_bytes())["stages"]
    checks = {
        check["name"]: check["verdict"]
        for stage in stages
        if stage["name"] == "environment"
        for check in stage["checks"]
    }
    assert checks["python"] == checks["versions"] == checks["dependencies"] == "pass"
    assert checks["conda"] == "pass"
    assert checks["import greeting"] == checks["import markdown_it"] == "pass"
    assert {stage["name"]: stage["verdict"] for stage in stages}["store"] == "pass"
    linked = next((env / "lib").glob("python3*/site-packages/greeting*.py"))
    linked.unlink()
    linked.write_text("def main():\n    pass\n", encoding="utf-8")
    told = mirror("verify", "--root", "root", cwd=project, code=9).stdout
    assert linked.name in told
    assert "store        fail" in told


def test_a_generation_can_be_left_and_come_back_to(project: Path) -> None:
    write_channel(project / "channel", Package("p", files={"share/p": b"one"}))
    write(project, "conda: {channels: [./channel], packages: [p]}\n")
    first = installed(project)
    shutil.rmtree(project / "channel")
    write_channel(project / "channel", Package("p", "2.0", files={"share/p": b"two"}))
    assert (installed(project) / "share/p").read_bytes() == b"two"
    mirror("rollback", "--root", "root", cwd=project)
    assert (project / "root/current").resolve() / "env" == first
    assert (first / "share/p").read_bytes() == b"one"
    listed = mirror_json("list", "--root", "root", cwd=project)
    assert [generation["current"] for generation in listed] == [True, False]


def test_a_failing_link_script_leaves_what_was_there(project: Path) -> None:
    fine = Package("p", files={"share/p": b"one"})
    broken = Package("q", files={"bin/.q-post-link.sh": b"echo no luck; exit 3\n"}, depends=["p"])
    write_channel(project / "channel", fine, broken)
    write(project, "conda: {channels: [./channel], packages: [p]}\n")
    first = installed(project)
    write(project, "conda: {channels: [./channel], packages: [q], link-scripts: [q]}\n")
    mirror("build", "-o", "b.tar.gz", cwd=project)
    done = mirror("install", "b.tar.gz", "--root", "root", cwd=project, code=8)
    assert "q: its post-link script failed: it ended with exit code 3" in done.stderr
    assert ".q-post-link.sh: no luck" in done.stderr
    assert (project / "root/current").resolve() / "env" == first
    assert [path.name for path in (project / "root/generations").iterdir()] == ["000001"]
    log = project / "root/log/link-scripts-000002.log"
    assert "no luck" in log.read_text(encoding="utf-8")


_OTHER = """
import asyncio, os, sys, rattler
async def main(channel, prefix, cache):
    gateway = rattler.Gateway(cache_dir=cache)
    given = rattler.GenericVirtualPackage(
        rattler.PackageName("__glibc"), rattler.Version("2.28"), rattler.BuildString("0")
    )
    records = await rattler.solve(
        [channel], ["app"], gateway=gateway, platforms=["linux-64", "noarch"],
        virtual_packages=[given],
    )
    await rattler.install(records, prefix, cache_dir=cache, show_progress=False)
asyncio.run(main(*sys.argv[1:]))
os._exit(0)  # its threads may outlive the interpreter, which then aborts
"""


def test_what_is_unpacked_and_what_is_installed_are_channels_for_others(project: Path) -> None:
    """Without mirror: tar, and rattler as anybody uses it, with no network."""
    library = Package("lib", files={"share/lib": b"lib"}, subdir="linux-64", noarch=None)
    app = Package("app", depends=["lib >=1", "__glibc >=2.17"], files={"share/app": b"app"})
    write_channel(project / "channel", library, replace(app, modern=True), Package("unused"))
    write(project, "conda: {channels: [./channel], packages: [app]}\n")
    generation = installed(project).parent
    shutil.rmtree(project / "channel")
    subprocess.run(["tar", "-xzf", "b.tar.gz", "conda"], cwd=project, check=True)
    alone = ["unshare", "--map-root-user", "--net"]
    if subprocess.run([*alone, "true"], check=False).returncode:
        alone = []
    for number, folder in enumerate((project / "conda", generation / "conda")):
        prefix, cache = project / f"prefix-{number}", project / f"cache-{number}"
        subprocess.run([*alone, sys.executable, "-c", _OTHER, folder, prefix, cache], check=True)
        assert (prefix / "share/lib").read_bytes() == b"lib"
        assert (prefix / "share/app").read_bytes() == b"app"


@needs_data
def test_real_packages_all_the_way(project: Path) -> None:
    """Of conda's, pixi's and rattler's own tests: channels, versions, scripts, activation."""
    channels = [
        DATA / "pixi" / "post_link_script_channel",
        DATA / "pixi" / "dummy_channel_1",
        DATA / "pixi" / "multiple_versions_channel_1",
        DATA / "conda" / "test-recipes",
    ]
    wanted = [
        "post-link-script-package",
        "pixi-foobar",
        "package4<0.2",
        "activate_deactivate_package",
    ]
    wanted += ["clobber-a", "clobber-b", "post_link-d", "post_link_run_in_env_package"]
    scripts = ["post_link-d", "post_link-e", "post_link_run_in_env_package"]
    write(
        project,
        f"conda:\n  channels: {json.dumps([str(c) for c in channels])}\n"
        f"  packages: {json.dumps(wanted)}\n  link-scripts: {json.dumps(scripts)}\n",
    )
    mirror("lock", cwd=project)
    mirror("build", "-o", "b.tar.gz", cwd=project)
    done = mirror("install", "b.tar.gz", "--root", "root", cwd=project)
    env = project / "root/current/env"
    assert "post-link-script-package: its post-link script was not run" in done.stderr
    assert "says: Success: TEST_VAR is set correctly" in done.stderr
    assert (env / "bin/file").is_file(), "made by a script, and needed by that of a dependent"
    assert not (env / ".messages.txt").exists()
    assert not (env / ".messages.bak.txt").exists()
    records = {path.name for path in (env / "conda-meta").glob("*.json")}
    assert any(name.startswith("package4-0.1.0-") for name in records)
    [generation] = mirror_json("list", "--root", "root", cwd=project)
    assert generation["current"]
    seen = mirror("run", "--root", "root", "--", "env", cwd=project).stdout
    assert "TEST=teststringfromactivate" in seen.splitlines()
    assert "TEST_VAR=1" in seen.splitlines()
    mirror("verify", "--root", "root", cwd=project)
