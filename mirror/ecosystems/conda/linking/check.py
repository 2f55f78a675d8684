"""Whether an environment still holds the conda packages that were linked into it. Reads only."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mirror.core.artifact import Artifact, Json
from mirror.core.paths import shown
from mirror.ecosystems.conda.records import is_package, stem
from mirror.store.blobs import hash_file


def problems(prefix: Path, artifacts: Sequence[Artifact]) -> list[str]:
    """What is not as it was installed, a line each: packages, and their files by their hashes.

    artifacts: the conda artifacts of the generation's index. Where a package's link scripts were
    run, a file that changed is no problem: they may change any.
    """
    packages = [artifact for artifact in artifacts if is_package(artifact)]
    scripts = any(artifact.origin.get("link_scripts") is True for artifact in packages)
    expected = {f"{stem(artifact)}.json": artifact for artifact in packages}
    there = {path.name: path for path in (prefix / "conda-meta").glob("*.json")}
    found = [f"{stem(a)} is not installed" for name, a in expected.items() if name not in there]
    found += [
        f"{shown(name.removesuffix('.json'))} was installed by somebody else"
        for name in sorted(there.keys() - expected.keys())
    ]
    listed: list[tuple[str, Mapping[str, Json]]] = []
    for name in sorted(there.keys() & expected.keys()):
        package = stem(expected[name])
        files = _files(there[name], expected[name].sha256)
        if files is None:
            found.append(f"{package}: {there[name]} is not what was written there")
        listed += [(package, file) for file in files or ()]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        wrong = pool.map(lambda item: _problem(prefix, item[1], scripts), listed)
        named = zip(listed, wrong, strict=True)
        found += [f"{package}: {what}" for (package, _), what in named if what]
    return found


def _files(file: Path, sha256: str) -> list[Mapping[str, Json]] | None:
    """What a record of the environment lists; None when it is not of the package of this hash."""
    try:
        known = json.loads(file.read_bytes())
        paths = known["paths_data"]["paths"]
        right = known["sha256"] == sha256 and all(isinstance(path["_path"], str) for path in paths)
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return paths if right else None


def _problem(prefix: Path, listed: Mapping[str, Json], scripts: bool) -> str:
    """What is wrong with one file; empty when nothing is."""
    name = str(listed["_path"])
    path = prefix / name
    if not os.path.lexists(path):
        return f"{shown(name)} is missing"
    expected = listed.get("sha256_in_prefix") or listed.get("sha256")
    if listed.get("path_type") != "hardlink" or not expected or scripts:
        return ""
    try:
        changed = path.is_symlink() or hash_file(path) != expected
    except OSError as error:
        return f"{shown(name)} cannot be read: {error.strerror}"
    return f"{shown(name)} has changed" if changed else ""
