"""The default resolver: uv, asked to resolve for the target and for nothing else.

uv is run as a program: it has no Python interface, and its resolver is the only fast one that
takes platform, glibc and Python version of another machine.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name

from mirror.core.paths import masked
from mirror.core.target import Target
from mirror.ecosystems.wheels import running, tags
from mirror.ecosystems.wheels.indexes import Indexes, is_denial
from mirror.errors import MirrorError, ResolutionError

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


_YANKED = re.compile(r"^warning: `([^`]+)` is yanked(?: \(reason: \"(.*)\"\))?", re.MULTILINE)
_UNREAD = re.compile(r"Failed to fetch|Request failed|error sending")
_ABSENT = re.compile(r"(\S+) was not found in the package registry")
#: The project that asks for what comes from an index of its own. Only a project can, in uv.
_PROJECT = "mirror-indexes"


@dataclass(frozen=True, slots=True)
class Pin:
    """One file that the resolver chose: a wheel, or an sdist where it may choose one.

    `url` is where it is now: never written to the lock. yanked: why its publisher withdrew the
    version, None when it was not.
    """

    name: str
    version: str
    file: str
    url: str
    sha256: str | None
    size: int | None
    yanked: str | None = None


def resolve(
    requirements: Sequence[str],
    target: Target,
    folder: Path,
    *,
    constraints: Sequence[str] = (),
    find_links: Sequence[Path] = (),
    indexes: Indexes | None = None,
    kept: Sequence[tuple[str, str]] = (),
    exclude_newer: str | None = None,
    prereleases: bool = False,
    wheels_only: Collection[str] | None = None,
) -> list[Pin]:
    """The wheels that satisfy the requirements on the target, one a package, sorted by name.

    folder: for files that uv reads and writes. constraints: also `name @ file:///...` for packages
    that are to be taken from there and left out of the answer. indexes: None means no index and no
    network, `find_links` alone. kept: (name, version) preferred where they still fit.
    exclude_newer: a moment; what was uploaded later does not exist. wheels_only: packages of which
    no sdist may be chosen; None means none of any package.
    Raises ResolutionError with uv's reasons, DownloadError when an index cannot be read.
    """
    asked, limits = folder / "asked.txt", folder / "limits.txt"
    tools = folder / "tools.txt"
    asked.write_text("".join(f"{line}\n" for line in requirements), encoding="utf-8")
    limits.write_text("".join(f"{line}\n" for line in constraints), encoding="utf-8")
    only = [":all:"] if wheels_only is None else sorted(wheels_only)
    tools.write_text("".join(f"{line}\n" for line in running.CONSTRAINTS), encoding="utf-8")
    options: list[str | Path] = [
        *("--build-constraints", tools, "--no-header", "--no-config"),
        # Otherwise uv looks for a Python of the target's version everywhere, to build with it.
        *("--python", sys.executable),
        *(("--constraints", limits) if constraints else ()),
        *(part for name in only for part in ("--only-binary", name)),
        *("--python-platform", platform(target), "--python-version", target.python),
    ]
    for place in find_links:
        options += ["--find-links", place]
    options += ["--exclude-newer", exclude_newer] if exclude_newer else []
    options += ["--prerelease", "allow"] if prereleases else []
    options += [] if indexes else ["--no-index", "--offline", "--no-cache"]
    inputs = [asked]
    if indexes and indexes.named:
        inputs.append(_pinned_project(indexes, [asked], options, target, folder))
    result = folder / "pylock.toml"
    if kept:
        result.write_text(_preferences(kept, target), encoding="utf-8")
    _, said = _compile(
        [*inputs, *options, "--output-file", result, "--format", "pylock.toml"],
        indexes,
        target,
        folder,
    )
    yanked = {match[1]: match[2] or "" for match in _YANKED.finditer(said)}
    packages = tomllib.loads(result.read_text(encoding="utf-8")).get("packages", [])
    stubs = {line.partition(" @ ")[0] for line in constraints if " @ " in line}
    names = {canonicalize_name(name) for name in stubs}
    pins = [_pin(table, target) for table in packages if table["name"] not in names]
    pins = [replace(pin, yanked=yanked.get(f"{pin.name}=={pin.version}")) for pin in pins]
    return sorted(pins, key=lambda pin: pin.name)


def _pinned_project(
    indexes: Indexes,
    inputs: Sequence[Path],
    options: Sequence[str | Path],
    target: Target,
    folder: Path,
) -> Path:
    """A pyproject.toml that pins packages to their indexes, and asks for none that is not needed.

    uv pins only what a project itself asks for. So it is made to ask for every package that has an
    index of its own; those that nobody else asks for in the answer are taken out again.
    """
    path = folder / "pyproject.toml"
    wanted = sorted(package for index in indexes.named for package in index.only)
    while True:
        path.write_text(_project(indexes, wanted, target), encoding="utf-8")
        answer, _ = _compile([*inputs, path, *options], indexes, target, folder)
        needed = [name for name in wanted if _is_needed(name, answer)]
        if needed == wanted:
            return path
        wanted = needed


def _project(indexes: Indexes, wanted: Sequence[str], target: Target) -> str:
    import tomli_w

    document = {
        "project": {
            "name": _PROJECT,
            "version": "0",
            "requires-python": f">={target.python}",
            "dependencies": list(wanted),
        },
        "tool": {
            "uv": {
                "index": [
                    {
                        "name": index.name,
                        "url": index.url,
                        "explicit": True,
                        **({"format": "flat"} if index.flat else {}),
                    }
                    for index in indexes.named
                ],
                "sources": {
                    package: {"index": index.name}
                    for index in indexes.named
                    for package in sorted(index.only)
                },
            }
        },
    }
    return tomli_w.dumps(document)


def _is_needed(name: str, answer: str) -> bool:
    """Whether somebody besides our own project asks for the package, by uv's `# via` notes."""
    found = re.search(rf"^{re.escape(name)}\b.*\n((?: +#.*\n?)*)", answer, re.MULTILINE)
    if not found:
        return False
    notes = re.sub(r"^ +# *(via)?", "", found[1], flags=re.MULTILINE).splitlines()
    parents = [note.strip() for note in notes if note.strip()]
    return any(not p.startswith((f"{_PROJECT} ", "-c ", "--constraint")) for p in parents)


def _preferences(kept: Sequence[tuple[str, str]], target: Target) -> str:
    """An earlier answer: uv takes what stands in its output file where it still fits."""
    packages = "".join(
        f'[[packages]]\nname = "{name}"\nversion = "{version}"\nwheels = []\n'
        for name, version in kept
    )
    head = f'lock-version = "1.0"\ncreated-by = "mirror"\nrequires-python = ">={target.python}"\n'
    return head + packages


def _compile(
    arguments: Sequence[str | Path], indexes: Indexes | None, target: Target, folder: Path
) -> tuple[str, str]:
    """What uv wrote to stdout and to stderr."""
    done = running.run(
        *("pip", "compile", *arguments), environment=running.environment(indexes), folder=folder
    )
    if done.returncode != 0:
        raise _explained(done.returncode, done.stderr, target, indexes)
    return done.stdout, done.stderr


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


def _pin(table: dict[str, Any], target: Target) -> Pin:
    """The one file of a package: its archive, else the wheel that fits best, else its sdist."""
    if "archive" in table:
        chosen = table["archive"]
    else:
        wheels = {_file(wheel): wheel for wheel in table.get("wheels", [])}
        best = tags.best(wheels, target)
        chosen = wheels[best] if best else table.get("sdist")
    if chosen is None:
        raise ResolutionError(f"{table['name']} {table['version']} has no wheel for the target")
    return Pin(
        name=table["name"],
        version=table.get("version", ""),
        file=_file(chosen),
        url=_url(chosen),
        sha256=chosen.get("hashes", {}).get("sha256"),
        size=chosen.get("size"),
    )


def _url(entry: dict[str, Any]) -> str:
    return str(entry.get("url") or Path(entry["path"]).as_uri())


def _file(entry: dict[str, Any]) -> str:
    return unquote(urlsplit(_url(entry)).path.rpartition("/")[2])


def _explained(code: int, stderr: str, target: Target, indexes: Indexes | None) -> MirrorError:
    """uv's message as one of ours. Code 1 means that there is no solution."""
    lines = [
        re.sub(r"^(error|cause|hint):\s*", "", line.strip(" \t\u00d7\u2570\u2500\u25b6")).strip()
        for line in stderr.splitlines()
        if not line.startswith(("warning:", "Resolved "))
    ]
    # Credentials in an index's address are masked by uv itself ("****"); be sure.
    lines = [re.sub(rf"{_PROJECT}(==0)?", "the manifest", masked(line)) for line in lines if line]
    if indexes:
        if not is_denial(stderr):
            lines += indexes.denials(_ABSENT.findall(stderr))
        said = "\n".join(lines)
        if is_denial(said) or _UNREAD.search(said):
            return indexes.unreadable(lines)
    if code == 1 and "No solution found" in stderr:
        causes = [line for line in lines if not line.startswith("No solution found")]
        named = (item for item in target.provided if item.partition("==")[0] in stderr)
        causes += [f"The target provides {item}." for item in named]
        return ResolutionError(
            "no set of wheels satisfies the requirements",
            problems=causes,
            hint="Change the requirement that the last lines name, or the target.",
        )
    return ResolutionError("the resolver failed", problems=lines or [f"it ended with code {code}"])
