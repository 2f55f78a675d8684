"""A `python` conda package, made of an interpreter of this machine: the smallest honest one.

It holds what conda's has in the same places: the program under its versioned name with links to it,
the standard library less its tests, site-packages; and it says where it is built, for the prefix to
be put there. Its interpreter finds its home by where it lies, as conda's does.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conda_packages import PREFIX, Package

_QUESTION = """
import json, sys, sysconfig
print(json.dumps({
    "version": "%d.%d.%d" % sys.version_info[:3], "base": sys.base_prefix,
    "stdlib": sysconfig.get_path("stdlib"), "scheme": sysconfig.get_preferred_scheme("prefix"),
}))
"""
_LEFT_OUT = {
    "__pycache__", "site-packages", "test", "tests", "idlelib", "idle_test", "lib2to3",
    "turtledemo", "tkinter", "ensurepip", "pydoc_data", "config",
}  # fmt: skip


@functools.cache
def python_package(interpreter: str = sys.executable) -> Package:
    """The package; a test that asks for it is skipped where the interpreter is none for this."""
    done = subprocess.run(
        [interpreter, "-I", "-c", _QUESTION], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    if found["scheme"] not in ("posix_prefix", "venv"):
        pytest.skip(f"{interpreter} is a Python that its distribution has moved things in")
    base, version = Path(found["base"]), found["version"]
    minor = version.rpartition(".")[0]
    folder = f"lib/python{minor}"
    program = (base / "bin" / f"python{minor}").read_bytes()
    files = {f"bin/python{minor}": program, f"{folder}/site-packages/README.txt": b""}
    links = {"bin/python": f"python{minor}", "bin/python3": f"python{minor}"}
    if b"$ORIGIN" in program:
        for path in (base / "lib").glob("libpython*.so*"):
            if path.is_symlink():
                links[f"lib/{path.name}"] = os.readlink(path)
            else:
                files[f"lib/{path.name}"] = path.read_bytes()
    for name, data in _library(Path(found["stdlib"])):
        built_there = name.startswith("_sysconfigdata")
        files[f"{folder}/{name}"] = (
            data.replace(str(base).encode(), PREFIX.encode()) if built_there else data
        )
    return Package(
        "python",
        version,
        files=files,
        links=links,
        noarch=None,
        subdir="linux-64",
        build="h0_0_cpython",
        modern=True,
    )


def _library(stdlib: Path) -> list[tuple[str, bytes]]:
    found = []
    for folder, folders, names in os.walk(stdlib):
        folders[:] = sorted(n for n in folders if n not in _LEFT_OUT and "config-" not in n)
        found += [
            (path.relative_to(stdlib).as_posix(), path.read_bytes())
            for path in (Path(folder, name) for name in sorted(names))
            if path.suffix in (".py", ".so") and "_test" not in path.name
        ]
    return found
