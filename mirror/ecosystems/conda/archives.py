"""What a package installs, and whether rattler may be given it.

rattler trusts a package: a path that leaves the prefix is followed, a symbolic link too, and an
absolute path ends the process.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from mirror.core.paths import shown
from mirror.ecosystems.conda import bridge

if TYPE_CHECKING:
    import rattler

#: Kinds of scripts that a package may want to have run while it is installed, in that order.
LINK_SCRIPTS = ("pre-link", "post-link")
#: Where rattler puts, of a file that several packages bring, those that are not used.
CLOBBERED = "__clobbers__"


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a package's list of what it installs.

    path: in the prefix, with forward slashes. kind: "hardlink" (a file), "softlink" or "directory"
    (an empty one). prefix: what stands in it for the prefix, "" when nothing does. binary: whether
    that is replaced in place.
    """

    path: str
    kind: str = "hardlink"
    prefix: str = ""
    binary: bool = False


@dataclass(frozen=True, slots=True)
class Contents:
    """What a package installs.

    files: paths in the prefix, with forward slashes; those of Python packages, as they are in the
        package: site-packages/..., python-scripts/...
    prefix_limit: no prefix may be longer, in bytes, for its binary files hold one; None: any may.
    links: the symbolic links among the files, and where each leads.
    folders: empty folders.
    python: whether it is a Python package for any Python ("noarch: python").
    """

    files: tuple[str, ...]
    prefix_limit: int | None
    links: Mapping[str, str] = field(default_factory=dict, hash=False)
    folders: tuple[str, ...] = ()
    python: bool = False

    def link_scripts(self, name: str) -> list[str]:
        """Which of the link scripts the package `name` wants to have run."""
        return [kind for kind in LINK_SCRIPTS if link_script(name, kind) in self.files]

    @property
    def menus(self) -> list[str]:
        """What it would add to the menus of a desktop."""
        return [path for path in self.files if path.startswith("Menu/") and path.endswith(".json")]

    def installed(self, path: str, site_packages: str) -> str:
        """Where in the prefix one of its files goes."""
        top, _, rest = path.partition("/")
        if not self.python or not rest:
            return path
        folders = {"site-packages": site_packages, "python-scripts": "bin"}
        return f"{folders.get(top, top)}/{rest}"


def link_script(name: str, kind: str) -> str:
    """The path of a link script in a package."""
    return f"bin/.{name}-{kind}.sh"


def contents(
    entries: Iterable[Entry], links: Mapping[str, str] | None, *, python: bool
) -> Contents:
    """What a package with these entries installs.

    links: every symbolic link that the package holds, and where it leads; None: not known.
    Raises ValueError that says why rattler must not be given it.
    """
    files: dict[str, Entry] = {}
    for entry in entries:
        if entry.path in files:
            raise ValueError(f"it lists {shown(entry.path)} twice")
        if reason := _outside(entry.path) or (links is not None and _linked(entry, links)):
            raise ValueError(reason)
        files[entry.path] = entry
    limits = [len(e.prefix.encode()) for e in files.values() if e.prefix and e.binary]
    return Contents(
        files=tuple(path for path, entry in files.items() if entry.kind != "directory"),
        prefix_limit=min(limits, default=None),
        links={path: target for path, target in (links or {}).items() if path in files},
        folders=tuple(path for path, entry in files.items() if entry.kind == "directory"),
        python=python,
    )


def read(archive: Path) -> Contents:
    """What `archive` installs, by its own list, without unpacking it.

    Raises ValueError that says why when it is no package, or one that would leave the prefix.
    """
    try:
        return bridge.run(_read(archive))
    except bridge.RattlerError as error:
        raise ValueError(f"what it holds cannot be read: {error.lines[0]}") from None


async def _read(archive: Path) -> Contents:
    from rattler import IndexJson

    entries = await _listed(archive)
    links = await _links(archive)
    noarch = IndexJson.from_package_archive(archive).noarch
    return contents(entries, links, python=noarch.python)


async def _listed(archive: Path) -> list[Entry]:
    from rattler import PathsJson
    from rattler.exceptions import ExtractError

    try:
        listed = PathsJson.from_package_archive(archive).paths
    except ExtractError:
        older = await _from_before_paths_json(archive)
        if older is None:
            raise
        return [Entry(file) for file in older]
    return [_entry(path) for path in listed]


def _entry(listed: rattler.PathsEntry) -> Entry:
    kind, prefix = listed.path_type, listed.prefix_placeholder
    return Entry(
        path=listed.relative_path.as_posix(),
        kind="directory" if kind.directory else "softlink" if kind.softlink else "hardlink",
        prefix=prefix.placeholder if prefix else "",
        binary=bool(prefix and prefix.file_mode.binary),
    )


async def _from_before_paths_json(archive: Path) -> list[str] | None:
    """The lines of info/files, which rattler follows where there is no info/paths.json."""
    from rattler.package_streaming import PackageArchive

    try:
        data = await (await PackageArchive.from_path(archive)).read_file("info/files")
    except OSError:
        return None
    return None if data is None else data.decode("utf-8", "replace").splitlines()


async def _links(archive: Path) -> dict[str, str] | None:
    """The symbolic links that the archive really holds.

    Raises ValueError, or rattler's own error, for a member that would be outside the folder that it
    is unpacked to. Of an archive that rattler opens only to unpack it (its zip64 fields are odd)
    nothing is known: the server, which looks at what was unpacked, judges it.
    """
    from rattler.package_streaming import PackageArchive

    found = {}
    try:
        opened = await PackageArchive.from_path(archive)
    except OSError:
        return None
    async for member in opened.stream("pkg"):
        if member.is_symlink:
            found[PurePosixPath(member.name).as_posix()] = member.link_target or ""
        elif member.is_hardlink and leaves(member.link_target or ""):
            raise ValueError(
                f"it links {shown(member.name)} to a file outside of itself:"
                f" {shown(member.link_target or '')}"
            )
    return found


def _outside(path: str) -> str | None:
    """Why a path is not one in the prefix that a package may write to."""
    if leaves(path):
        return f"it would write outside the environment: {shown(path)}"
    top, _, below = path.partition("/")
    record = top == "conda-meta" and (not below or below == "history" or path.endswith(".json"))
    if record or top == CLOBBERED:
        return f"it would write into the environment's own records: {shown(path)}"
    return None


def _linked(entry: Entry, links: Mapping[str, str]) -> str | None:
    """What is wrong with the symbolic links on the way to an entry."""
    name = shown(entry.path)
    above = next(above_in(entry.path, links), None)
    if above is not None:
        return f"it would write through a symbolic link: {name} is below {shown(above)}"
    target = links.get(entry.path)
    if target is None:
        return f"{name} is listed as a symbolic link and is none" * (entry.kind == "softlink")
    if not target:
        return f"the symbolic link {name} leads nowhere: its target is empty"
    if target.startswith("/"):
        return f"the symbolic link {name} leads out of the environment: {shown(target)}"
    return f"{name} is a symbolic link, and is said to hold the prefix" * bool(entry.prefix)


def above_in(path: str, known: Container[str]) -> Iterator[str]:
    """Those of the folders above a path that are among some known paths."""
    while "/" in path:
        path = path.rpartition("/")[0]
        if path in known:
            yield path


def leaves(path: str) -> bool:
    """Whether a path is one that rattler must not be given, on this system or on Windows."""
    parts = path.replace("\\", "/").split("/")
    return parts[0] == "" or ".." in parts or ":" in parts[0]
