"""Wheels that would write over files which conda packages bring, told before anything is shipped.

An installer would do so without a word; what conda installed is then no longer what its records
say. A file that is the same in both harms nobody.
"""

from __future__ import annotations

import base64
import csv
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from configparser import ConfigParser
from configparser import Error as ConfigError
from io import TextIOWrapper
from pathlib import Path

from mirror.core.artifact import Artifact
from mirror.core.paths import shown
from mirror.ecosystems.conda.solving import contents
from mirror.ecosystems.source import Context

#: Of one wheel so many files are named.
_NAMED = 3
_DATA = re.compile(r"[^/]+\.data/(purelib|platlib|scripts|data)/(.+)")
_SCRIPTS = ("console_scripts", "gui_scripts")


def problems(
    wheels: Mapping[str, Path], conda: Iterable[Artifact], context: Context
) -> Iterator[str]:
    """A line for each wheel that would replace files of these conda packages.

    wheels: file name -> where its bytes are.
    """
    owners: dict[str, tuple[str, str]] = {}
    for artifact in conda:
        if known := contents.remembered(artifact.sha256, context.blobs):
            package = f"{artifact.text('name')} {artifact.text('version')}"
            owners |= {path: (sha256, package) for path, sha256 in known.files.items()}
    for name, wheel in wheels.items() if owners else ():
        found = list(_replaced(wheel, owners))
        named = ", ".join(f"{shown(path)} of {package}" for path, package in found[:_NAMED])
        more = f" and {len(found) - _NAMED} more" if found[_NAMED:] else ""
        if found:
            yield f"{name} would replace {named}{more}"


def _replaced(wheel: Path, owners: Mapping[str, tuple[str, str]]) -> Iterator[tuple[str, str]]:
    for path, sha256 in _installed(wheel):
        if owned := owners.get(path):
            theirs, package = owned
            if not sha256 or sha256 != theirs:
                yield path, package


def _installed(wheel: Path) -> Iterator[tuple[str, str]]:
    """What a wheel installs: path in the prefix, and sha256 ("" where a script is made or changed).

    What goes to site-packages is under `site-packages/`, programs are under `bin/`.
    """
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        record = next(name for name in names if re.fullmatch(r"[^/]+\.dist-info/RECORD", name))
        points = record.replace("RECORD", "entry_points.txt")
        if points in names:
            for name in _programs(archive.read(points).decode("utf-8", "replace")):
                yield f"bin/{name}", ""
        with archive.open(record) as file:
            for row in csv.reader(TextIOWrapper(file, "utf-8", newline="")):
                yield _place(row[0]), _sha256(row[1] if len(row) > 1 else "")


def _place(path: str) -> str:
    found = _DATA.fullmatch(path)
    if not found:
        return f"site-packages/{path}"
    folder = {"scripts": "bin/", "data": ""}.get(found[1], "site-packages/")
    return f"{folder}{found[2]}"


def _sha256(stated: str) -> str:
    algorithm, _, value = stated.partition("=")
    if algorithm != "sha256":
        return ""
    return base64.urlsafe_b64decode(value + "=" * (-len(value) % 4)).hex()


def _programs(text: str) -> list[str]:
    parser = ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
    try:
        parser.read_string(text)
    except ConfigError:
        return []
    return [name for group in _SCRIPTS if parser.has_section(group) for name in parser[group]]
