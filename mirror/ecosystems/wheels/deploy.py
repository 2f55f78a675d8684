"""Wheels on the server: installed into the generation's environment, offline, hashes required."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from mirror import machine
from mirror.core.artifact import Artifact
from mirror.ecosystems.deploy import Site
from mirror.errors import MachineError
from mirror.store.blobs import place
from mirror.store.generations import Generation, remove_tree


def deploy(artifacts: Sequence[Artifact], site: Site) -> None:
    """Lay the wheels out as a find-links folder and install them all.

    With uv when the tool carries it, else with pip, which it always carries: neither is expected of
    the machine. Where the environment has no pip then, the tool's is installed too: people look for
    it there.
    Raises MachineError with the installer's own words when it refuses.
    """
    generation = site.generation
    for artifact in artifacts:
        if artifact.path.endswith(".whl"):
            place(site.blobs.path(artifact.sha256), generation.path / artifact.path)
        else:
            place(site.blobs.path(artifact.sha256), generation.wheels / artifact.path)
    pip = next(a for a in site.index.of_kind("tool") if a.text("name") == "pip")
    scratch = generation.path / "installing"
    scratch.mkdir()
    asked = {generation.wheels: generation.wheels / "requirements.txt"}
    if _lacks_pip(artifacts, generation):
        own = scratch / "pip.txt"
        line = f"pip=={pip.text('version')} --hash=sha256:{pip.sha256}\n"
        own.write_text(line, encoding="utf-8")
        asked[generation.tool / "wheels"] = own
    uv = generation.tool / "bin" / "uv"
    try:
        if uv.is_file():
            _by_uv(uv, site, scratch, asked)
        else:
            _by_pip(site, pip, asked)
    finally:
        remove_tree(scratch)
        (generation.env / ".lock").unlink(missing_ok=True)  # uv's


def _lacks_pip(artifacts: Sequence[Artifact], generation: Generation) -> bool:
    """Whether the environment will have no pip. One that is not ours gets none from us."""
    if generation.env.is_symlink() or "pip" in {a.text("name") for a in artifacts}:
        return False
    conda = (generation.env / "conda-meta").is_dir()
    return not conda or machine.ask(generation.python, ["pip"]).packages["pip"] is None


def _by_uv(uv: Path, site: Site, scratch: Path, asked: Mapping[Path, Path]) -> None:
    command: list[str | Path] = [
        *(uv, "pip", "install", "--python", site.generation.python),
        *("--offline", "--no-config", "--no-index", "--no-build", "--quiet", "--no-progress"),
        *("--require-hashes", "--no-deps", "--no-python-downloads"),
        # Said of a conda Python, that is for others: the environment is mirror's own.
        "--break-system-packages",
        # Unpacked beside the environment, so that files are linked into it, not copied.
        *("--cache-dir", scratch / "cache"),
    ]
    for folder, file in asked.items():
        command += [f"--find-links={folder}", "--requirement", file]
    _run(command, {})


def _by_pip(site: Site, pip: Artifact, asked: Mapping[Path, Path]) -> None:
    for folder, file in asked.items():
        command: list[str | Path] = [
            *(site.generation.python, "-m", "pip", "install", "--isolated", "--no-index"),
            *("--require-hashes", "--no-deps", "--no-cache-dir", "--disable-pip-version-check"),
            *("--no-input", "--no-warn-script-location", "--quiet", "--progress-bar", "off"),
            "--break-system-packages",
            # It takes itself for installed, since it runs from its wheel.
            *(["--ignore-installed"] if file.name == "pip.txt" else []),
            *(f"--find-links={folder}", "--requirement", file),
        ]
        # A wheel is a zip file, and Python imports from those whatever they are called.
        _run(command, {"PYTHONPATH": str(site.blobs.path(pip.sha256))})


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
