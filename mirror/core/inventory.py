"""What a server has, as `mirror probe` writes it down there and a manifest's target takes it."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

from mirror.core import paths
from mirror.core.artifact import Json
from mirror.core.target import PLATFORMS
from mirror.errors import UsageError

FORMAT = 1
#: What names, versions and builds of conda packages are made of.
_WORD = re.compile(r"[A-Za-z0-9_.+!-]+")


@dataclass(frozen=True, slots=True)
class CondaPackage:
    """A conda package in an environment.

    python: whether it is a Python, or brings packages for one.
    """

    name: str
    version: str
    build: str
    subdir: str
    python: bool


@dataclass(frozen=True, slots=True)
class Inventory:
    """Facts of a server.

    python: "3.11". packages: "name==version", sorted. conda: the conda packages of the environment,
    by name; none when conda did not make it.
    """

    python: str
    platform: str
    glibc: str
    packages: tuple[str, ...]
    conda: tuple[CondaPackage, ...] = ()

    def to_json(self) -> dict[str, Json]:
        """The file's document."""
        document: dict[str, Json] = {
            "format": FORMAT,
            "python": self.python,
            "platform": self.platform,
            "glibc": self.glibc,
            "packages": list(self.packages),
        }
        return document | ({"conda": [asdict(item) for item in self.conda]} if self.conda else {})


def parse(data: bytes, source: str) -> Inventory:
    """The inventory that these bytes spell. Raises UsageError when they spell none."""
    try:
        document = json.loads(data)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ValueError(f"it is not an inventory of format {FORMAT}")
        texts = [document[key] for key in ("python", "platform", "glibc")]
        packages = document["packages"]
        if not all(isinstance(text, str) for text in (*texts, *packages)):
            raise ValueError("a value is not text")
        if document["platform"] not in PLATFORMS:
            raise ValueError(f"its platform is none of {', '.join(PLATFORMS)}")
        if odd := [item for item in packages if item.count("==") != 1]:
            raise ValueError(f"{odd[0]!r} is not NAME==VERSION")
        conda = tuple(_conda_package(item) for item in document.get("conda", []))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(
            f"{source} is not an inventory: {paths.shown(str(error))}",
            hint="Write one on the server: mirror probe --env ENV -o FILE",
        ) from None
    return Inventory(texts[0], texts[1], texts[2], tuple(sorted(packages)), conda)


def _conda_package(item: dict[str, Json]) -> CondaPackage:
    """Raises KeyError, TypeError or ValueError for anything else."""
    name, version, build, subdir = (
        str(item[key]) for key in ("name", "version", "build", "subdir")
    )
    if odd := [text for text in (name, version, build, subdir) if not _WORD.fullmatch(text)]:
        raise ValueError(f"{odd[0]!r} is no part of a conda package's name")
    return CondaPackage(name, version, build, subdir, python=item["python"] is True)
