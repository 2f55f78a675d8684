"""A wheel opened and looked at before it ships: whether it is what its file name says.

Its own metadata must agree with its name, RECORD must list exactly what it holds with the hashes
that it has, and nothing that it installs may land outside the environment. `archive` sees to it
that every installer reads the same from it.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from zipfile import ZipInfo

from packaging.tags import Tag, parse_tag
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from mirror.core import licences
from mirror.core.paths import shown
from mirror.ecosystems.wheels.archive import Archive

#: Of one wheel so many problems are named; a damaged one can have thousands.
_NAMED = 20
#: A file of `.dist-info` that is read whole has no more bytes.
_METADATA_LIMIT = 64 * 2**20
#: What RECORD may use, and the files that it cannot hold the hash of.
_HASHES = ("sha256", "sha384", "sha512")
_UNLISTED = ("RECORD", "RECORD.jws", "RECORD.p7s")
_SCHEMES = ("purelib", "platlib", "headers", "scripts", "data")
_DOTTED = r"[^\W\d]\w*(\.[^\W\d]\w*)*"
_FUNCTION = re.compile(rf"{_DOTTED}\s*:\s*{_DOTTED}\s*(\[.*\])?")


@dataclass(frozen=True, slots=True)
class Metadata:
    """What a wheel says of itself. requires: requirement specifiers, as they are written there.

    licence: as `licences.of_wheel` has it, empty when nothing is stated.
    """

    name: str
    version: str
    requires: tuple[str, ...]
    requires_python: str
    licence: str


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found in a wheel, a line each.

    problems: it must not ship. remarks: it was made carelessly, and every installer takes it.
    """

    problems: tuple[str, ...]
    remarks: tuple[str, ...]


def metadata(path: Path) -> Metadata:
    """A wheel's own METADATA. Raises ValueError that says why when it has none to be read."""
    with Archive(path) as archive:
        return parsed(_text(archive, f"{_info_folder(archive)}/METADATA"))


def parsed(text: str) -> Metadata:
    """What a METADATA file says."""
    message = HeaderParser().parsestr(text)
    return Metadata(
        name=message.get("Name", ""),
        version=message.get("Version", ""),
        requires=tuple(message.get_all("Requires-Dist", [])),
        requires_python=message.get("Requires-Python", ""),
        licence=licences.of_wheel(
            message.get("License-Expression", ""),
            message.get("License", ""),
            message.get_all("Classifier", []),
        ),
    )


def check(path: Path, name: str) -> Findings:
    """Look a wheel over, every byte of it.

    name: its file name, which `path` need not have. Raises OSError when `path` cannot be read.
    """
    remarks: list[str] = []
    try:
        with Archive(path) as archive:
            # What is wrong with the archive makes all that it holds uncertain.
            problems = list(archive.problems()) or list(_contents(archive, name, remarks))
    except ValueError as error:
        problems = [str(error)]
    if len(problems) > _NAMED:
        problems[_NAMED:] = [f"and {len(problems) - _NAMED} more"]
    return Findings(tuple(problems), tuple(remarks))


def _contents(archive: Archive, name: str, remarks: list[str]) -> Iterator[str]:
    folder = _info_folder(archive)
    yield from _identity(archive, folder, name, remarks)
    yield from _places(archive, folder)
    yield from _programs(archive, folder)
    yield from _record(archive, folder, remarks)


def _identity(archive: Archive, folder: str, file: str, remarks: list[str]) -> Iterator[str]:
    """Where file name, METADATA, WHEEL and the folder's name say different things."""
    try:
        name, version, _, tags = parse_wheel_filename(file)
    except (InvalidWheelFilename, InvalidVersion) as error:
        yield str(error)
        return
    said = _headers(archive, f"{folder}/METADATA")
    its_name, its_version = said.get("Name", ""), said.get("Version", "")
    if canonicalize_name(its_name) != name or not _same(its_version, version):
        yield f"METADATA says that it is {shown(its_name)!r} {shown(its_version)!r}"
    stem, _, of = folder.removesuffix(".dist-info").rpartition("-")
    if canonicalize_name(stem) != name or not _same(of, version):
        yield f"its metadata stands in {shown(folder)}"
    made = _headers(archive, f"{folder}/WHEEL")
    form = made.get("Wheel-Version", "")
    if form.partition(".")[0] != "1":
        yield f"it is in version {shown(form)!r} of the wheel format; installers know version 1"
    inside = {tag for text in made.get_all("Tag", []) for tag in parse_tag(text.strip())}
    if inside != tags:
        written = ", ".join(sorted(shown(str(tag)) for tag in inside)) or "nothing"
        if _machines(inside).isdisjoint(_machines(tags)) and _machines(inside) != {"any"}:
            yield f"WHEEL says that it is for {written}"
        else:
            remarks.append(f"WHEEL says that it is for {written}")


def _places(archive: Archive, folder: str) -> Iterator[str]:
    """Folders of its `.data` that stand for no place of an environment."""
    data = folder.removesuffix(".dist-info") + ".data"
    parts = [entry.filename.split("/", 2) for entry in archive.entries]
    for scheme in sorted({p[1] for p in parts if len(p) == 3 and p[0] == data} - {*_SCHEMES}):
        yield f"{shown(data)}/{shown(scheme)} is no place that installers know"


def _programs(archive: Archive, folder: str) -> Iterator[str]:
    """Entry points that would be written elsewhere than among the environment's programs.

    Read line by line, as importlib.metadata and so pip do: for them an indented line is an entry of
    its own, where configparser sees the rest of the one before.
    """
    file = f"{folder}/entry_points.txt"
    if archive.entry(file) is None:
        return
    group = ""
    for line in map(str.strip, _text(archive, file).splitlines()):
        if not line or line[0] in "#;":
            continue
        if line[0] == "[":
            group = line[1:-1].strip()
        elif group in ("console_scripts", "gui_scripts"):
            name, _, target = (part.strip() for part in line.partition("="))
            if not name.isprintable() or set(name) & set("/\\:") or not name.strip(". "):
                yield f"its program {shown(name)!r} would not be written where programs belong"
            elif not _FUNCTION.fullmatch(target):
                yield f"its program {shown(name)!r} starts {shown(target)!r}, which is no function"


def _record(archive: Archive, folder: str, remarks: list[str]) -> Iterator[str]:
    """Where RECORD and the archive differ; in `.dist-info` itself that is a remark.

    What stands there is not run, and people edit it by hand; real wheels in wide use are like that.
    """
    listed: dict[str, tuple[str, str]] = {}
    for row in csv.reader(_text(archive, f"{folder}/RECORD").splitlines()):
        path, digest, size = (*row, "", "", "")[:3]
        if listed.setdefault(path, (digest, size)) != (digest, size):
            yield f"RECORD lists {shown(path)} twice, and differently"
    free = {f"{folder}/{name}" for name in _UNLISTED}
    files = {entry.filename for entry in archive.entries if not entry.is_dir()}
    for path in sorted(listed.keys() - files - free - {""}):
        yield f"RECORD lists {shown(path)}, which is not there"
    for entry in archive.entries:
        if entry.is_dir() or entry.filename in free:
            continue
        try:
            reason = _unlike(archive, entry, listed.get(entry.filename))
        except ValueError as error:
            yield str(error)
            continue
        if reason and entry.filename.startswith(f"{folder}/"):
            remarks.append(f"{shown(entry.filename)} {reason}")
        elif reason:
            yield f"{shown(entry.filename)} {reason}"


def _unlike(archive: Archive, entry: ZipInfo, row: tuple[str, str] | None) -> str | None:
    """How an entry differs from its row in RECORD. Raises ValueError when it does not unpack."""
    digest, size = row or ("", "")
    algorithm, _, value = digest.partition("=")
    computed = hashlib.new(algorithm if algorithm in _HASHES else _HASHES[0])
    for chunk in archive.chunks(entry):
        computed.update(chunk)
    if row is None:
        return "is not in RECORD"
    if algorithm not in _HASHES:
        return "has no sha256 in RECORD"
    real = base64.urlsafe_b64encode(computed.digest()).decode()
    if real.rstrip("=") != value.rstrip("=") or size not in ("", str(entry.file_size)):
        return "is not what RECORD says"
    return None


def _info_folder(archive: Archive) -> str:
    tops = {entry.filename.partition("/")[0] for entry in archive.entries}
    folders = sorted(top for top in tops if top.endswith(".dist-info"))
    if len(folders) != 1:
        has = ", ".join(map(shown, folders)) or "none"
        raise ValueError(f"a wheel has one .dist-info folder; this has {has}")
    return folders[0]


def _headers(archive: Archive, file: str) -> Message:
    return HeaderParser().parsestr(_text(archive, file))


def _text(archive: Archive, file: str) -> str:
    entry = archive.entry(file)
    if entry is None:
        raise ValueError(f"{shown(file)} is missing")
    if entry.file_size > _METADATA_LIMIT:
        raise ValueError(f"{shown(file)} claims to have {entry.file_size:,} bytes")
    return b"".join(archive.chunks(entry)).decode("utf-8", "replace")


def _same(text: str, version: Version) -> bool:
    try:
        return Version(text) == version
    except InvalidVersion:
        return False


def _machines(tags: Iterable[Tag]) -> set[str]:
    """System and CPU of tags, without versions: manylinux_2_28_x86_64 -> linux_x86_64.

    Wheels are renamed (py3 for cp36, manylinux for linux) and work; not so for another machine.
    """
    found = {re.sub(r"^(many|musl)?linux(\d+|_\d+_\d+)?_", "linux_", t.platform) for t in tags}
    return {re.sub(r"^macosx_.*", "macosx", platform) for platform in found}
