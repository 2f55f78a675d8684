"""How uv is run: as a program, with nothing in its environment that would change the answer."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from mirror.core.secrets import is_secret
from mirror.ecosystems.wheels.indexes import Indexes
from mirror.errors import MachineError

#: What every build is held to, where it can be: setuptools 81 announced the end of pkg_resources,
#: which the setup.py of many an old sdist imports.
CONSTRAINTS = ("setuptools<81",)
#: The program that stands for the compilers in a build that may not compile: no such exists.
NO_COMPILER = "mirror-compiles-nothing-for-any-machine"
#: 1980-01-01, the oldest time that a zip archive can hold.
EPOCH = 315532800
#: Variables that change what is resolved or built: uv takes a Mac's version from the last.
_MEDDLING = ("UV_", "PIP_", "PYTHON", "MACOSX_DEPLOYMENT_TARGET")
#: uv's own variables that say how to reach an index, not what to take from it.
_TRANSPORT = re.compile(
    r"UV_(CACHE_DIR|HTTP_\w+|NATIVE_TLS|SYSTEM_CERTS|INSECURE_HOST|INDEX_\w+_(USERNAME|PASSWORD))"
)


def program() -> Path:
    """uv's executable. Raises MachineError when the uv package is broken."""
    import uv

    try:
        return Path(uv.find_uv_bin())
    except FileNotFoundError as error:
        raise MachineError(
            f"uv's executable is not where its package should have put it: {error}",
            hint="Install mirror again: pip install --force-reinstall uv",
        ) from None


def environment(indexes: Indexes | None, *, native: bool = False) -> dict[str, str]:
    """The variables of a resolution or a build: no secret of the user's, nothing that changes it.

    Without `native` the compilers are named away, so that what compiles fails at once instead of
    after an hour.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if _TRANSPORT.fullmatch(name) or not (is_secret(name) or name.startswith(_MEDDLING))
    }
    fixed = {
        "UV_PYTHON_DOWNLOADS": "never",
        "NO_COLOR": "1",
        "SOURCE_DATE_EPOCH": str(EPOCH),
        "PYTHONHASHSEED": "0",
        "TZ": "UTC",
    }
    if indexes:
        # In a variable, since what stands on a command line can be read by every user.
        fixed["UV_DEFAULT_INDEX"] = f"{indexes.default.name}={indexes.default.url}"
    return kept | fixed | ({} if native else dict.fromkeys(("CC", "CXX", "CARGO"), NO_COMPILER))


def run(
    *arguments: str | Path, environment: Mapping[str, str], folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run uv to its end, whatever that is."""
    return subprocess.run(
        [program(), *arguments],
        capture_output=True,
        text=True,
        encoding="utf-8",
        errors="replace",
        env=environment,
        cwd=folder,
        check=False,
    )
