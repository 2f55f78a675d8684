"""What this machine is, and what an interpreter on it says of itself."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mirror.core.inventory import CondaPackage
from mirror.core.secrets import without
from mirror.errors import MachineError

#: (system, machine) as Python's platform module names them -> a target's platform.
_PLATFORMS = {
    ("Linux", "x86_64"): "linux-x86_64",
    ("Linux", "aarch64"): "linux-aarch64",
    ("Windows", "AMD64"): "win-amd64",
    ("Darwin", "arm64"): "macos-arm64",
}
#: A file of a conda package that says which Python package it brings.
_DISTRIBUTION = re.compile(r"site-packages/[^/]+\.(dist|egg)-info(/|$)")
# Asked of an interpreter in isolated mode: no variable and no folder changes the answer.
_QUESTION = """
import importlib.metadata, json, os, sys, sysconfig
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
packages = {name: version(name) for name in sys.argv[1:] if name != "*"}
requires = {}
if "*" in sys.argv:
    for found in importlib.metadata.distributions():
        name = found.metadata["Name"]
        if name and name not in packages:  # the first on the path is the one that imports
            packages[name] = found.version
            requires[name] = found.requires or []
marker = os.path.join(sysconfig.get_path("stdlib"), "EXTERNALLY-MANAGED")
folders = [p for p in sys.path if p.endswith(("site-packages", "dist-packages"))]
print(json.dumps({
    "version": "%d.%d" % sys.version_info[:2], "prefix": sys.prefix,
    "base": sys.base_prefix, "folders": folders,
    "packages": packages, "requires": requires,
    "managed": sys.prefix == sys.base_prefix and os.path.exists(marker),
}))
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """What a Python interpreter says of itself.

    version: "3.11". prefix: of its environment. site_folders: where it finds packages.
    packages: version of each package asked for, None where it is not installed.
    requires: what each needs, as requirement specifiers, when everything was asked for.
    managed: whether the system's own package manager says that nobody else may install there.
    """

    path: Path
    version: str
    prefix: Path
    base_prefix: Path
    site_folders: tuple[str, ...]
    packages: dict[str, str | None]
    requires: dict[str, list[str]]
    managed: bool


def this_platform() -> str:
    """This machine as a target's platform; empty when it is none that mirror knows."""
    return _PLATFORMS.get((platform.system(), platform.machine()), "")


def this_glibc() -> str:
    """This machine's glibc ("2.36"); empty where there is none."""
    name, version = platform.libc_ver()
    return version if name == "glibc" else ""


def this_python() -> str:
    """Major and minor version of the running Python."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def ask(python: Path, packages: Sequence[str] = (), *, everything: bool = False) -> Interpreter:
    """What this interpreter says of itself, about some packages or everything installed there.

    Raises MachineError when it does not run.
    """
    names = ["*"] if everything else packages
    try:
        done = subprocess.run(
            [python, "-I", "-c", _QUESTION, *names],
            capture_output=True,
            text=True,
            encoding="utf-8",
            env=without(os.environ),
            timeout=120,
            check=True,
        )
        answer = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        reason = getattr(error, "strerror", None) or (getattr(error, "stderr", "") or str(error))
        raise MachineError(
            f"the Python interpreter {python} does not run: {str(reason).strip()[-300:]}"
        ) from None
    return Interpreter(
        path=python,
        version=answer["version"],
        prefix=Path(answer["prefix"]),
        base_prefix=Path(answer["base"]),
        site_folders=tuple(answer["folders"]),
        packages=answer["packages"],
        requires=answer["requires"],
        managed=answer["managed"],
    )


def interpreter_of(prefix: Path) -> Path:
    """The interpreter of an environment given by its prefix, or by the interpreter itself.

    Raises MachineError when there is none.
    """
    tried = (prefix / "bin" / "python", prefix / "bin" / "python3", prefix / "Scripts/python.exe")
    for candidate in (prefix, *tried):
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return candidate.absolute()
    raise MachineError(
        f"{prefix} is no Python environment: it has no bin/python",
        hint="Name the folder of a virtual or conda environment.",
    )


def conda_packages(prefix: Path) -> tuple[CondaPackage, ...]:
    """The conda packages of an environment, by name, as its conda-meta lists them.

    Raises MachineError for a record that cannot be read.
    """
    found = []
    for file in sorted((prefix / "conda-meta").glob("*.json")):
        try:
            record = json.loads(file.read_bytes())
            name, version, build = (str(record[key]) for key in ("name", "version", "build"))
            subdir = str(record.get("subdir") or "unknown")
            files = [str(path) for path in record["files"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise MachineError(
                f"{file} is no record of a conda package: {type(error).__name__}"
            ) from None
        python = name == "python" or any(_DISTRIBUTION.search(path) for path in files)
        found.append(CondaPackage(name, version, build, subdir, python))
    return tuple(found)


def find_python(version: str) -> Path | None:
    """An interpreter of exactly this minor version: the running one, or one on PATH."""
    if this_python() == version:
        return Path(sys.executable)
    found = shutil.which(f"python{version}")
    if found:
        try:
            # A version manager's shim may be there and still not run.
            return Path(found) if ask(Path(found)).version == version else None
        except MachineError:
            return None
    return None


def free_bytes(folder: Path) -> int:
    """Bytes that an ordinary user can still write where `folder` is or will be."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free
