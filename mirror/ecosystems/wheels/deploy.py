"""Wheels on the server: installed into the generation's environment, offline, hashes required."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence

from mirror.core.artifact import Artifact
from mirror.ecosystems.deploy import Site
from mirror.errors import MachineError
from mirror.store.blobs import place


def deploy(artifacts: Sequence[Artifact], site: Site) -> None:
    """Lay the wheels out as a find-links folder and install them all with pip.

    pip itself is one of the tool's wheels: it runs from there, needs nothing on the machine, and
    is installed into the environment with the rest, unless the lock names a pip of its own.
    Raises MachineError with pip's own words when it refuses.
    """
    generation = site.generation
    for artifact in artifacts:
        if artifact.path.endswith(".whl"):
            place(site.blobs.path(artifact.sha256), generation.path / artifact.path)
        else:
            place(site.blobs.path(artifact.sha256), generation.wheels / artifact.path)
    own = {artifact.text("name") for artifact in artifacts}
    pip = next(a for a in site.index.of_kind("tool") if a.text("name") == "pip")
    lines = [(generation.wheels / "requirements.txt").read_text(encoding="utf-8")]
    find_links = [generation.wheels]
    if "pip" not in own:
        lines.append(f"pip=={pip.text('version')} --hash=sha256:{pip.sha256}\n")
        find_links.append(generation.tool / "wheels")
    asked = generation.path / "requirements.tmp"
    asked.write_text("".join(lines), encoding="utf-8")
    try:
        _run_pip(site, pip, [f"--find-links={folder}" for folder in find_links], str(asked))
    finally:
        asked.unlink()


def _run_pip(site: Site, pip: Artifact, find_links: list[str], requirements: str) -> None:
    command = [
        *(str(site.generation.python), "-m", "pip", "install", "--isolated", "--no-index"),
        *("--require-hashes", "--no-deps", "--no-cache-dir", "--disable-pip-version-check"),
        *("--no-input", "--no-warn-script-location", "--quiet", "--progress-bar", "off"),
        *(*find_links, "--requirement", requirements),
    ]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "PYTHON"))}
    # A wheel is a zip file, and Python imports from those whatever they are called.
    environment["PYTHONPATH"] = str(site.blobs.path(pip.sha256))
    done = subprocess.run(
        command, capture_output=True, text=True, encoding="utf-8", env=environment, check=False
    )
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.strip()]
        reasons = [re.sub(r"^ERROR:\s*", "", line) for line in said]
        raise MachineError("pip could not install the wheels", problems=reasons[-20:])
