"""Wheels on the server: installed into the generation's environment, offline, hashes required."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path, PurePosixPath

from mirror import machine
from mirror.core.artifact import Artifact
from mirror.core.paths import shown
from mirror.core.secrets import without
from mirror.ecosystems.deploy import Site
from mirror.ecosystems.wheels.unpacking import unpack
from mirror.errors import BundleError, MachineError
from mirror.store.blobs import place
from mirror.store.generation import Generation
from mirror.store.generations import remove_tree


def deploy(artifacts: Sequence[Artifact], site: Site) -> None:
    """Lay the wheels out as a find-links folder and install them all.

    With uv when the tool carries it. Without, they are unpacked here, since nothing is in the way;
    only into an environment that was there before, pip installs, which the tool always carries.
    Neither is expected of the machine. Where the generation's own environment has no pip then, the
    tool's is installed too: people look for it there.
    Raises MachineError with the installer's own words when it refuses, BundleError where the bundle
    has none.
    """
    generation = site.generation
    for artifact in artifacts:
        if artifact.path.endswith(".whl"):
            place(site.blobs.path(artifact.sha256), generation.path / artifact.path)
        else:
            place(site.blobs.path(artifact.sha256), generation.wheels / artifact.path)
    pip = next((a for a in site.index.of_kind("tool") if a.text("name") == "pip"), None)
    if pip is None:
        raise BundleError("the bundle holds wheels, and no pip to install them with")
    asked = generation.wheels / "requirements.txt"
    bare = not generation.env.is_symlink() and _lacks_pip(artifacts, generation)
    uv = generation.tool / "bin" / "uv"
    if uv.is_file():
        _by_uv(uv, site, asked, pip if bare else None)
    elif generation.env.is_symlink():
        _by_pip(site, pip, asked)
    else:
        wheels = [generation.path / a.path for a in artifacts if a.path.endswith(".whl")]
        if bare:
            wheels.append(generation.tool / "wheels" / PurePosixPath(pip.path).name)
        unpack(wheels, generation.python, _environ())


def _lacks_pip(artifacts: Sequence[Artifact], generation: Generation) -> bool:
    """Whether the generation's own environment will have no pip."""
    if "pip" in {a.text("name") for a in artifacts}:
        return False
    conda = (generation.env / "conda-meta").is_dir()
    return not conda or machine.ask(generation.python, ["pip"]).packages["pip"] is None


def _by_uv(uv: Path, site: Site, asked: Path, pip: Artifact | None) -> None:
    generation = site.generation
    scratch = site.blobs.staging()
    scratch.mkdir()
    command: list[str | Path] = [
        *(uv, "pip", "install", "--python", generation.python),
        *("--offline", "--no-config", "--no-index", "--no-build", "--quiet", "--no-progress"),
        *("--require-hashes", "--no-deps", "--no-python-downloads"),
        # Said of a conda Python, that is for others: the environment is mirror's own.
        "--break-system-packages",
        # Unpacked on the same file system, so that files are linked, not copied.
        *("--cache-dir", scratch / "cache"),
        *(f"--find-links={asked.parent}", "--requirement", asked),
    ]
    if pip:
        own = scratch / "pip.txt"
        line = f"pip=={pip.text('version')} --hash=sha256:{pip.sha256}\n"
        own.write_text(line, encoding="utf-8")
        command += [f"--find-links={generation.tool / 'wheels'}", "--requirement", own]
    try:
        _run(command)
    finally:
        site.beside(partial(remove_tree, scratch))  # takes a third of what uv takes
        (generation.env / ".lock").unlink(missing_ok=True)  # uv's


# A wheel is a zip file, and Python imports from those whatever they are called; so nothing is taken
# from the working directory or from a user's own packages. To learn whether there is IPv6, pip's
# HTTP library would open a socket when it is imported: told that there is none, it does not.
_PIP = """\
import runpy, socket, sys
sys.path.insert(0, sys.argv.pop(1))
socket.has_ipv6 = False
runpy.run_module("pip", run_name="__main__", alter_sys=True)
"""


def _by_pip(site: Site, pip: Artifact, asked: Path) -> None:
    command: list[str | Path] = [
        *(site.generation.python, "-I", "-c", _PIP, site.blobs.path(pip.sha256)),
        *("install", "--isolated", "--no-index"),
        *("--require-hashes", "--no-deps", "--no-cache-dir", "--disable-pip-version-check"),
        *("--no-input", "--no-warn-script-location", "--quiet", "--progress-bar", "off"),
        "--break-system-packages",
        *(f"--find-links={asked.parent}", "--requirement", asked),
    ]
    _run(command)


def _run(command: Sequence[str | Path]) -> None:
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        env=_environ(),
        check=False,
    )
    if done.returncode != 0:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reasons = [re.sub(r"^error:\s*", "", line, flags=re.I) for line in said]
        problems = [shown(reason) for reason in reasons[-20:]]
        raise MachineError("the wheels could not be installed", problems=problems)


def _environ() -> dict[str, str]:
    """An installer's variables: nobody's settings have a say."""
    return without(os.environ, ("PIP_", "UV_", "PYTHON", "VIRTUAL_ENV", "CONDA_"))
