"""Wheels on the server: installed into the generation's environment, offline, hashes required."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from mirror.core.artifact import Artifact
from mirror.ecosystems.deploy import Site
from mirror.errors import MachineError
from mirror.store.blobs import place
from mirror.store.generations import remove_tree


def deploy(artifacts: Sequence[Artifact], site: Site) -> None:
    """Lay the wheels out as a find-links folder and install them all.

    With uv when the tool carries it, else with pip, which it always carries: neither is expected of
    the machine. pip is installed into the environment with the rest, since people look for it
    there, unless the lock names a pip of its own.
    Raises MachineError with the installer's own words when it refuses.
    """
    generation = site.generation
    for artifact in artifacts:
        if artifact.path.endswith(".whl"):
            place(site.blobs.path(artifact.sha256), generation.path / artifact.path)
        else:
            place(site.blobs.path(artifact.sha256), generation.wheels / artifact.path)
    pip = next(a for a in site.index.of_kind("tool") if a.text("name") == "pip")
    lines = [(generation.wheels / "requirements.txt").read_text(encoding="utf-8")]
    folders = [generation.wheels]
    if "pip" not in {artifact.text("name") for artifact in artifacts}:
        lines.append(f"pip=={pip.text('version')} --hash=sha256:{pip.sha256}\n")
        folders.append(generation.tool / "wheels")
    scratch = generation.path / "installing"
    scratch.mkdir()
    asked = scratch / "requirements.txt"
    asked.write_text("".join(lines), encoding="utf-8")
    uv = generation.tool / "bin" / "uv"
    try:
        if uv.is_file():
            _run(_uv(uv, site, scratch, folders, asked), {})
        else:
            # A wheel is a zip file, and Python imports from those whatever they are called.
            _run(_pip(site, folders, asked), {"PYTHONPATH": str(site.blobs.path(pip.sha256))})
    finally:
        remove_tree(scratch)


def _uv(
    uv: Path, site: Site, scratch: Path, folders: Sequence[Path], asked: Path
) -> list[str | Path]:
    return [
        *(uv, "pip", "install", "--python", site.generation.python),
        *("--offline", "--no-config", "--no-index", "--no-build", "--quiet"),
        *("--require-hashes", "--no-deps", "--no-progress", "--no-python-downloads"),
        # Unpacked beside the environment, so that files are linked into it, not copied.
        *("--cache-dir", scratch / "cache"),
        *(f"--find-links={folder}" for folder in folders),
        *("--requirement", asked),
    ]


def _pip(site: Site, folders: Sequence[Path], asked: Path) -> list[str | Path]:
    return [
        *(site.generation.python, "-m", "pip", "install", "--isolated", "--no-index"),
        *("--require-hashes", "--no-deps", "--no-cache-dir", "--disable-pip-version-check"),
        *("--no-input", "--no-warn-script-location", "--quiet", "--progress-bar", "off"),
        *(f"--find-links={folder}" for folder in folders),
        *("--requirement", asked),
    ]


def _run(command: Sequence[str | Path], variables: dict[str, str]) -> None:
    foreign = ("PIP_", "UV_", "PYTHON", "VIRTUAL_ENV", "CONDA_")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=environment | variables,
        check=False,
    )
    if done.returncode != 0:
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        reasons = [re.sub(r"^error:\s*", "", line, flags=re.I) for line in said]
        raise MachineError("the wheels could not be installed", problems=reasons[-20:])
