"""What a package archive says it will install, read before anything of it is unpacked.

rattler trusts it: a path that leaves the prefix is followed, and an absolute one ends the process.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from mirror.core.paths import shown
from mirror.ecosystems.conda import bridge

_LINK_SCRIPT = re.compile(r"bin/\..+-(?:pre|post)-link\.sh")


@dataclass(frozen=True, slots=True)
class Contents:
    """What a package installs.

    files: paths in the prefix, with forward slashes.
    prefix_limit: no prefix may be longer, in bytes, for its binary files hold one; None: any may.
    """

    files: tuple[str, ...]
    prefix_limit: int | None

    @property
    def link_scripts(self) -> list[str]:
        """The scripts that the package wants to have run while it is installed."""
        return [file for file in self.files if _LINK_SCRIPT.fullmatch(file)]


def read(archive: Path) -> Contents:
    """What `archive` installs.

    Raises ValueError that says why when it is no package, or one that would leave the prefix.
    """
    try:
        listed = bridge.run(_listed(archive))
    except bridge.RattlerError as error:
        raise ValueError(f"what it holds cannot be read: {error.lines[0]}") from None
    if outside := [file for file, _ in listed if _leaves(file)]:
        raise ValueError(f"it would write outside the environment: {shown(outside[0])}")
    limits = [limit for _, limit in listed if limit is not None]
    return Contents(tuple(file for file, _ in listed), min(limits, default=None))


async def _listed(archive: Path) -> list[tuple[str, int | None]]:
    """Each file, and how many bytes a prefix may have that is written between its own."""
    from rattler import PathsJson
    from rattler.exceptions import ExtractError

    try:
        entries = PathsJson.from_package_archive(archive).paths
    except ExtractError:
        older = await _from_before_paths_json(archive)
        if older is None:
            raise
        return [(file, None) for file in older]
    placeholders = [entry.prefix_placeholder for entry in entries]
    return [
        (
            entry.relative_path.as_posix(),
            len(found.placeholder.encode()) if found and found.file_mode.binary else None,
        )
        for entry, found in zip(entries, placeholders, strict=True)
    ]


async def _from_before_paths_json(archive: Path) -> list[str] | None:
    """The lines of info/files, which rattler follows where there is no info/paths.json."""
    from rattler.package_streaming import PackageArchive

    try:
        data = await (await PackageArchive.from_path(archive)).read_file("info/files")
    except OSError:
        return None
    return None if data is None else data.decode("utf-8", "replace").splitlines()


def _leaves(file: str) -> bool:
    """Whether a path is one that rattler must not be given, on this system or on Windows."""
    parts = file.replace("\\", "/").split("/")
    return parts[0] == "" or ".." in parts or ":" in parts[0]
