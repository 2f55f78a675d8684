"""Whether what a bundle holds can work on a machine, told before a byte is written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mirror.core.index import Index
from mirror.core.target import PLATFORMS

# PEP 600 and the older names that it defines as its aliases.
_MANYLINUX = re.compile(r"manylinux_(\d+)_(\d+)_")
_LEGACY = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}


@dataclass(frozen=True, slots=True)
class Facts:
    """The machine: its platform and glibc as a Target writes them."""

    platform: str
    glibc: str


def problems(index: Index, facts: Facts) -> Iterator[str]:
    """Every reason why this bundle cannot work here, a line each."""
    target = index.target
    if target is None:
        return
    if target.platform != facts.platform:
        here = facts.platform or "none of " + ", ".join(PLATFORMS)
        yield f"the bundle is for {target.platform}; this machine is {here}"
        return
    if not facts.glibc:
        return
    have = version(facts.glibc)
    for artifact in index.of_kind("wheels") + index.of_kind("tool"):
        if artifact.path.endswith(".whl") and (need := needed_glibc(artifact.path)) > have:
            name = artifact.path.rpartition("/")[2]
            yield f"{name} needs glibc {need[0]}.{need[1]}; this machine has {facts.glibc}"


def needed_glibc(wheel: str) -> tuple[int, ...]:
    """The oldest glibc that a wheel of this file name runs on; () when it needs none."""
    tags = wheel.removesuffix(".whl").rpartition("-")[2].split(".")
    needs = []
    for tag in tags:
        if match := _MANYLINUX.match(tag):
            needs.append((int(match[1]), int(match[2])))
        elif (legacy := tag.partition("_")[0]) in _LEGACY:
            needs.append(_LEGACY[legacy])
    return min(needs, default=())


def version(text: str) -> tuple[int, ...]:
    """ "2.28" as numbers that compare."""
    return tuple(int(part) for part in re.findall(r"\d+", text))


def canonical_name(name: str) -> str:
    """A package's name as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def same_version(have: str, wanted: str) -> bool:
    """Whether a package of version `have` is the one wanted: 2023.03 is 2023.3, 1.0 is 1.0.0.

    A side without a local part ("2.8.0") goes with any ("2.8.0+cu128"). For what is wanted, that is
    PEP 440. For what is there, it is how torch's wheels on the default index are: their metadata
    says 2.11.0, torch.__version__ says 2.11.0+cu130.
    """
    (public, _, local), (other, _, label) = have.partition("+"), wanted.partition("+")
    return _release(public) == _release(other) and (not local or not label or local == label)


def _release(version: str) -> list[str]:
    parts = re.split(r"[-_.]+", version.lower())
    plain = [part.lstrip("0") or "0" if part.isdecimal() else part for part in parts]
    while len(plain) > 1 and plain[-1] == "0":
        plain.pop()
    return plain
