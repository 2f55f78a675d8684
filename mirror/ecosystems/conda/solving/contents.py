"""What a package archive holds, looked over once, every byte of it, and remembered.

So damage is found before anything travels; the Python distributions that a package brings are known
by their own metadata, which is what wheels go by; and so are the files that no wheel may replace.
"""

from __future__ import annotations

import json
import re
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PathDistribution
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version

from mirror.core.paths import shown
from mirror.ecosystems.conda import bridge
from mirror.store import atomic
from mirror.store.blobs import Blobs

if TYPE_CHECKING:
    from rattler.package_streaming import PackageArchive

#: Where packages for Python lie in a prefix, and in a noarch package before it is linked.
_SITE = re.compile(r"(?:(?:lib/python[\d.]+t?|Lib)/)?site-packages/")
_METADATA = re.compile(
    rf"{_SITE.pattern}(?P<folder>[^/]+\.(?:dist|egg)-info)"
    r"(?:/(?:METADATA|PKG-INFO|requires\.txt))?"
)
#: Of a package so many files are named that it lacks.
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Distribution:
    """A Python package as its own metadata describes it. requires: specifiers (PEP 508)."""

    name: str
    version: str
    requires: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Contents:
    """What is in a package.

    files: path in the prefix -> sha256 before the prefix is written into it, empty when not known;
    what lies in a Python's site-packages is under `site-packages/`, whatever the Python.
    distributions: those that it brings.
    """

    files: Mapping[str, str]
    distributions: tuple[Distribution, ...]


def of(archive: Path, sha256: str, blobs: Blobs) -> Contents:
    """What is in this archive. sha256: of its bytes, by which it is remembered.

    Raises ValueError that says why when it is damaged.
    """
    known = remembered(sha256, blobs)
    if known is None:
        known = _examined(archive)
        path = _note(sha256, blobs)
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(path, json.dumps(asdict(known)).encode())
    return known


def remembered(sha256: str, blobs: Blobs) -> Contents | None:
    """What is in the archive of this hash, when it was looked into before."""
    with suppress(OSError, ValueError, KeyError, TypeError):
        table = json.loads(_note(sha256, blobs).read_bytes())
        return Contents(
            files=table["files"],
            distributions=tuple(
                Distribution(d["name"], d["version"], tuple(d["requires"]))
                for d in table["distributions"]
            ),
        )
    return None


def _note(sha256: str, blobs: Blobs) -> Path:
    return blobs.folder / "conda" / f"{sha256}.json"


def _examined(archive: Path) -> Contents:
    with TemporaryDirectory(prefix="mirror-") as name:
        try:
            files, metadata = bridge.run(_read(archive, Path(name)))
        except bridge.RattlerError as error:
            raise ValueError(f"what it holds cannot be read: {error.lines[0]}") from None
        return Contents(
            files={_installed(path): sha256 for path, sha256 in files.items()},
            distributions=tuple(_distributions(metadata, Path(name))),
        )


def _installed(path: str) -> str:
    """Where a file goes: noarch packages have folders of their own for what is a Python's."""
    if path.startswith("python-scripts/"):
        return path.replace("python-scripts", "bin", 1)
    return _SITE.sub("site-packages/", path, count=1)


async def _read(archive: Path, scratch: Path) -> tuple[dict[str, str], dict[str, bytes]]:
    """Every file with its sha256, and the bytes of those that are metadata of distributions."""
    package = await _opened(archive, scratch)
    listed = await _listed(package)
    metadata: dict[str, bytes] = {}
    missing = dict.fromkeys(listed)
    async for entry in package.stream("pkg"):
        path = PurePosixPath(entry.name).as_posix()
        missing.pop(path, None)
        if path in listed and entry.is_file and _METADATA.fullmatch(path):
            metadata[path] = await entry.read()
    if missing:
        names = [shown(name) for name in missing]
        more = f" and {len(names) - _NAMED} more" if names[_NAMED:] else ""
        raise ValueError(f"it lacks files that it lists: {', '.join(names[:_NAMED])}{more}")
    return {**listed, **dict.fromkeys(await _programs(package), "")}, metadata


async def _opened(archive: Path, scratch: Path) -> PackageArchive:
    from rattler.package_streaming import PackageArchive

    try:
        return await PackageArchive.from_path(archive)
    except OSError:
        # rattler unpacks some .conda files that it does not open so: their zip64 fields are odd.
        plain = scratch / archive.name
        try:
            with zipfile.ZipFile(archive) as odd, zipfile.ZipFile(plain, "w") as copy:
                for member in odd.infolist():
                    with odd.open(member) as old, copy.open(member.filename, "w") as new:
                        shutil.copyfileobj(old, new, 2**20)
        except (zipfile.BadZipFile, NotImplementedError):
            plain = archive
        return await PackageArchive.from_path(plain)


async def _programs(package: PackageArchive) -> list[str]:
    """The programs that are made of a noarch package's entry points when it is linked."""
    data = await package.read_file("info/link.json")
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        points = json.loads(data or b"{}")["noarch"]["entry_points"]
        return [f"bin/{point.partition('=')[0].strip()}" for point in points]
    return []


async def _listed(package: PackageArchive) -> dict[str, str]:
    """The package's own list of its files, folders left out."""
    try:
        entries = (await package.paths_json()).paths
    except OSError:
        older = await package.read_file("info/files")
        if older is None:
            raise
        return dict.fromkeys(filter(None, older.decode("utf-8", "replace").splitlines()), "")
    return {
        entry.relative_path.as_posix(): (entry.sha256 or b"").hex()
        for entry in entries
        if not entry.path_type.directory
    }


def _distributions(metadata: Mapping[str, bytes], scratch: Path) -> Iterator[Distribution]:
    folders: dict[Path, None] = {}
    for path, data in metadata.items():
        below = _SITE.sub("", path, count=1)
        file = scratch / "site-packages" / below
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(data.decode("utf-8", "replace"), encoding="utf-8", newline="\n")
        folders[scratch / "site-packages" / below.partition("/")[0]] = None
    for folder in folders:
        found = PathDistribution(folder)
        with suppress(InvalidVersion, KeyError, TypeError):
            held = found.metadata
            stated = {key: held[key] for key in ("Name", "Version") if key in held}
            name, version = stated["Name"], str(Version(stated["Version"]))
            yield Distribution(name, version, tuple(map(_plain, found.requires or ())))


def _plain(line: str) -> str:
    """A requirement without an address that may stand in it: a lock holds no hosts."""
    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        return " ".join(line.partition("@")[0].split())
    requirement.url = None
    return str(requirement)
