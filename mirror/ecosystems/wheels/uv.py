"""The default resolver: uv, asked to resolve for the target and for nothing else.

uv is run as a program: it has no Python interface, and its resolver is the only fast one that
takes platform, glibc and Python version of another machine.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from mirror.core.target import Target
from mirror.errors import DownloadError, MachineError, ResolutionError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

#: glibc versions that uv knows as manylinux platforms (uv 0.13).
_GLIBC = ("2.17", "2.28", *(f"2.{minor}" for minor in range(31, 41)))
_PLATFORMS = {
    "win-amd64": "x86_64-pc-windows-msvc",
    "macos-arm64": "aarch64-apple-darwin",
}


@dataclass(frozen=True, slots=True)
class Pin:
    """One wheel that the resolver chose. `url` is where it is now: never written to the lock."""

    name: str
    version: str
    file: str
    url: str
    sha256: str | None
    size: int | None


def resolve(
    requirements: Sequence[str],
    target: Target,
    folder: Path,
    *,
    constraints: Sequence[str] = (),
    find_links: Sequence[Path] = (),
    index_url: str | None = None,
    kept: Sequence[tuple[str, str]] = (),
) -> list[Pin]:
    """The wheels that satisfy the requirements on the target, one a package, sorted by name.

    folder: for files that uv reads and writes. constraints: also `name @ file:///...` for packages
    that are to be taken from there and left out of the answer. index_url: the default index; None
    means no index and no network, `find_links` alone. kept: (name, version) preferred where they
    still fit.
    Raises ResolutionError with uv's reasons, DownloadError when the index cannot be reached.
    """
    asked, limits, result = (folder / n for n in ("asked.txt", "limits.txt", "pylock.toml"))
    asked.write_text("".join(f"{line}\n" for line in requirements), encoding="utf-8")
    limits.write_text("".join(f"{line}\n" for line in constraints), encoding="utf-8")
    if kept:
        # uv reads what stands in its output file as preferences.
        packages = "".join(
            f'[[packages]]\nname = "{name}"\nversion = "{version}"\nwheels = []\n'
            for name, version in kept
        )
        head = f'lock-version = "1.0"\ncreated-by = "mirror"\nrequires-python = ">={target.python}"'
        result.write_text(f"{head}\n{packages}", encoding="utf-8")
    command: list[str | Path] = [
        *(program(), "pip", "compile", asked, "--constraints", limits),
        *("--output-file", result, "--format", "pylock.toml", "--quiet", "--no-header"),
        *("--no-config", "--only-binary", ":all:", "--no-sources"),
        *("--python-platform", platform(target), "--python-version", target.python),
    ]
    for place in find_links:
        command += ["--find-links", place]
    if index_url is None:
        command += ["--no-index", "--offline", "--no-cache"]
    else:
        command += ["--default-index", index_url]
    environment = {k: v for k, v in os.environ.items() if _is_harmless(k)}
    environment |= {"UV_PYTHON_DOWNLOADS": "never", "NO_COLOR": "1"}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=environment,
        check=False,
        cwd=folder,
    )
    if done.returncode != 0:
        raise _explained(done.returncode, done.stderr, target)
    packages = tomllib.loads(result.read_text(encoding="utf-8")).get("packages", [])
    # A package taken from an address has an archive in place of an index's wheels.
    return sorted((_pin(p) for p in packages if "archive" not in p), key=lambda pin: pin.name)


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


def platform(target: Target) -> str:
    """The target as uv's --python-platform names it."""
    if target.platform in _PLATFORMS:
        return _PLATFORMS[target.platform]
    machine = target.platform.removeprefix("linux-")
    ceiling = tuple(int(part) for part in (target.glibc or "2.17").split("."))
    known = [v for v in _GLIBC if tuple(int(part) for part in v.split(".")) <= ceiling]
    if not known:
        raise ResolutionError(
            f"the target's glibc {target.glibc} is older than any that wheels are resolved for",
            hint="The oldest is 2.17 (manylinux2014).",
        )
    return f"{machine}-manylinux_{known[-1].replace('.', '_')}"


def _is_harmless(variable: str) -> bool:
    """Whether uv may see it: most of its own would change the answer behind our back."""
    kept = ("UV_CACHE_DIR", "UV_NATIVE_TLS", "UV_SYSTEM_CERTS", "UV_INSECURE_HOST")
    return not variable.startswith("UV_") or variable.startswith("UV_HTTP_") or variable in kept


def _pin(table: dict[str, Any]) -> Pin:
    wheels = table.get("wheels", [])
    if len(wheels) != 1:
        raise ResolutionError(
            f"{table['name']}: the resolver named {len(wheels)} wheels for one target"
        )
    wheel = wheels[0]
    url = wheel.get("url") or Path(wheel["path"]).as_uri()
    return Pin(
        name=table["name"],
        version=table.get("version", ""),
        file=unquote(urlsplit(url).path.rpartition("/")[2]),
        url=url,
        sha256=wheel.get("hashes", {}).get("sha256"),
        size=wheel.get("size"),
    )


def _explained(code: int, stderr: str, target: Target) -> Exception:
    """uv's message as one of ours. Code 1 means that there is no solution."""
    lines = [
        re.sub(r"^(error|cause|hint):\s*", "", line.strip(" \t\u00d7\u2570\u2500\u25b6")).strip()
        for line in stderr.splitlines()
    ]
    # Credentials in an index's address are masked by uv itself ("****"); be sure.
    lines = [re.sub(r"://[^/@\s]+@", "://", line) for line in lines if line]
    if code == 1 and "No solution found" in stderr:
        causes = [line for line in lines if not line.startswith("No solution found")]
        named = (item for item in target.provided if item.partition("==")[0] in stderr)
        causes += [f"The target provides {item}." for item in named]
        return ResolutionError(
            "no set of wheels satisfies the requirements",
            problems=causes,
            hint="Change the requirement that the last lines name, or the target.",
        )
    if any(word in stderr for word in ("Failed to fetch", "Request failed", "error sending")):
        return DownloadError(
            "the package index cannot be read",
            problems=lines,
            hint="Check the network; another index is named by UV_DEFAULT_INDEX or PIP_INDEX_URL.",
        )
    return ResolutionError("the resolver failed", problems=lines or [f"it ended with code {code}"])
