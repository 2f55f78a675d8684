"""Which wheels a target takes, and which of several it takes first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from packaging.tags import Tag, compatible_tags, cpython_tags, mac_platforms
from packaging.utils import parse_wheel_filename

from mirror.core.compat import version
from mirror.core.target import Target

#: The macOS that uv resolves for when it is told nothing (uv 0.13).
_MACOS = (13, 0)
#: The names of manylinux before PEP 600, by the minor version of their glibc 2.
_LEGACY = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}


def platforms(target: Target) -> list[str]:
    """The platform tags that the target takes, best first: all of them, none to be expanded."""
    if target.platform == "win-amd64":
        return ["win_amd64"]
    if target.platform == "macos-arm64":
        return list(mac_platforms(_MACOS, "arm64"))
    machine = target.platform.removeprefix("linux-")
    # x86_64's manylinux begins with glibc 2.5, aarch64's with 2.17.
    oldest = 5 if machine == "x86_64" else 17
    _, newest, *_ = (*version(target.glibc or "2.17"), 0)
    names = []
    for minor in range(newest, oldest - 1, -1):
        names.append(f"manylinux_2_{minor}")
        names += [_LEGACY[minor]] if minor in _LEGACY else []
    # Nobody knows how old a glibc "linux" goes back to: last, as for uv (but not for pip).
    return [f"{name}_{machine}" for name in [*names, "linux"]]


def supported(target: Target) -> Iterator[Tag]:
    """Every tag that CPython takes on the target, best first."""
    python, places = version(target.python), platforms(target)
    interpreter = "cp" + "".join(map(str, python))
    yield from cpython_tags(python, [interpreter], places)
    yield from compatible_tags(python, interpreter, places)


def best(files: Iterable[str], target: Target) -> str | None:
    """The wheel that pip and uv on the target would take, of several of one package and version.

    None when it takes none of them.
    """
    order = {tag: place for place, tag in enumerate(supported(target))}

    def preference(file: str) -> tuple[int, tuple[int, str] | tuple[()]]:
        _, _, build, tags = parse_wheel_filename(file)
        return -min(order.get(tag, len(order)) for tag in tags), build

    fitting = [file for file in files if order.keys() & parse_wheel_filename(file)[3]]
    return max(fitting, key=preference, default=None)
