"""What both sides know of conda artifacts: their records, and the channel that they make."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from mirror.core.artifact import Artifact, Json

KIND = "conda"
REPODATA = "repodata.json"


def is_package(artifact: Artifact) -> bool:
    """Whether a conda artifact is a package; else it is the channel's repodata."""
    return "record" in artifact.origin


def record(package: Artifact) -> Mapping[str, Json]:
    """The package's record as its channel had it: the truth, even where the package disagrees."""
    found = package.origin.get("record")
    return found if isinstance(found, Mapping) else {}


def stem(package: Artifact) -> str:
    """NAME-VERSION-BUILD: what conda calls a package's record and its unpacked folder."""
    known = record(package)
    return f"{known.get('name')}-{known.get('version')}-{known.get('build')}"


def brings_python(artifacts: Iterable[Artifact]) -> bool:
    """Whether these conda packages put a Python into the environment."""
    return any(record(artifact).get("name") == "python" for artifact in artifacts)


def repodata(artifacts: Iterable[Artifact], subdir: str) -> dict[str, bytes]:
    """The `repodata.json` of the channel that holds these packages and nothing else.

    Always for both folders, `subdir` and noarch: without them it would not be a channel.
    """
    folders: dict[str, dict[str, Json]] = {subdir: {}, "noarch": {}}
    for package in filter(is_package, artifacts):
        folders[package.text("subdir")][package.text("file")] = record(package)
    return {f"conda/{name}/{REPODATA}": document(name, found) for name, found in folders.items()}


def document(subdir: str, records: Mapping[str, Json]) -> bytes:
    """The repodata of these records, by file name: equal records give equal bytes."""
    modern = {file: found for file, found in records.items() if file.endswith(".conda")}
    whole: Json = {
        "info": {"subdir": subdir},
        "packages": {file: found for file, found in records.items() if file not in modern},
        "packages.conda": modern,
        "removed": [],
        "repodata_version": 1,
    }
    return (json.dumps(whole, sort_keys=True, indent=2) + "\n").encode("ascii")


def site_packages(artifacts: Iterable[Artifact]) -> str:
    """Where in a prefix with these packages Python packages go."""
    for artifact in filter(is_package, artifacts):
        known = record(artifact)
        if known.get("name") == "python":
            version = ".".join(str(known.get("version")).split(".")[:2])
            return str(
                known.get("python_site_packages_path") or f"lib/python{version}/site-packages"
            )
    return "site-packages"
