"""What a manifest's `wheels.requirements` can ask for, as values.

Every value knows `where` it was written (FILE:LINE). Names are in normal form. Hashes are written
"sha256:..."; an artifact must have one of those given, and may have any where none is given.
`extras` are what PEP 508 calls so; `marker` is empty when there is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias
from urllib.parse import unquote, urlsplit


class Refusal(ValueError):  # noqa: N818 -- it becomes a Mistake where the line is known
    """Why something cannot be taken as it is written, and what to write instead."""


@dataclass(frozen=True, slots=True)
class Line:
    """A logical line, without comment and continuations."""

    text: str
    where: str


@dataclass(frozen=True, slots=True)
class Mistake:
    """What cannot be taken as it is written, why, and what to write instead."""

    text: str
    where: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


@dataclass(frozen=True, slots=True)
class Note:
    """What is done in another way than it was written, or not done here: for a warning."""

    text: str
    where: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


@dataclass(frozen=True, slots=True)
class Specifier:
    """A package of an index, as PEP 508 writes it."""

    name: str
    text: str
    where: str
    hashes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Constraint:
    """Versions that a package may have, should anything ask for it."""

    name: str
    text: str
    where: str
    hashes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WheelUrl:
    """A wheel at an address, which holds no credentials."""

    name: str
    url: str
    where: str
    extras: tuple[str, ...] = ()
    marker: str = ""
    hashes: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        """The wheel's file name."""
        return unquote(urlsplit(self.url).path.rpartition("/")[2])


@dataclass(frozen=True, slots=True)
class GitUrl:
    """A project in a git repository.

    url: as git takes it, without `git+`, revision and credentials (ssh's user name is none).
    revision: commit, tag, branch or other ref; None for the repository's own default.
    """

    name: str | None
    url: str
    where: str
    revision: str | None = None
    subdirectory: str | None = None
    extras: tuple[str, ...] = ()
    marker: str = ""


@dataclass(frozen=True, slots=True)
class LocalWheel:
    """A wheel on this machine. path: from the manifest's folder, or absolute; with / always."""

    name: str
    path: str
    where: str
    extras: tuple[str, ...] = ()
    marker: str = ""
    hashes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LocalProject:
    """A folder with a pyproject.toml or setup.py. path: as for a LocalWheel."""

    name: str | None
    path: str
    where: str
    extras: tuple[str, ...] = ()
    marker: str = ""
    editable: bool = False


@dataclass(frozen=True, slots=True)
class Include:
    """A file that asks for more; its path as written, from the folder of the file that names it.

    extras, groups: of a pyproject.toml. With groups, those alone are meant, not the project. Of an
    environment.yml the one group is `pip`: its conda part is carried elsewhere.
    """

    kind: Literal["requirements", "constraints", "pyproject", "environment"]
    path: str
    where: str
    extras: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Workspace:
    """A package that is a member of a uv workspace: one of the folders that `members` match."""

    name: str
    members: tuple[str, ...]
    where: str
    marker: str = ""


@dataclass(frozen=True, slots=True)
class Index:
    """An index or a find-links page that `option` names; its address without credentials.

    only: packages that are known to be meant; none when it is every package.
    """

    option: str
    url: str
    where: str
    only: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Flag:
    """A switch that holds for every package."""

    name: Literal["prereleases", "require_hashes"]
    where: str


@dataclass(frozen=True, slots=True)
class WheelsOnly:
    """Packages that must not be built from source; `:all:` stands for every package."""

    names: tuple[str, ...]
    where: str


@dataclass(frozen=True, slots=True)
class Python:
    """The versions of Python that a pyproject.toml allows, as PEP 440 writes them."""

    text: str
    where: str


Place: TypeAlias = WheelUrl | GitUrl | LocalWheel | LocalProject
Entry: TypeAlias = (
    Specifier
    | Constraint
    | Place
    | Include
    | Workspace
    | Index
    | Flag
    | WheelsOnly
    | Python
    | Note
    | Mistake
)


@dataclass(frozen=True, slots=True)
class Requirements:
    """Everything that a manifest's `wheels.requirements` asks for, files and all.

    prereleases: may be taken, of every package.
    require_hashes: only artifacts that `hashes` knows may be taken.
    wheels_only: must not be built from source; `:all:` stands for every package.
    pythons: what each pyproject.toml allows that was named.
    notes: what a person should be told, with FILE:LINE.
    files: sha256 of every file that was read, by its path from the manifest's folder.
    """

    specifiers: tuple[Specifier, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    wheel_urls: tuple[WheelUrl, ...] = ()
    git_urls: tuple[GitUrl, ...] = ()
    local_wheels: tuple[LocalWheel, ...] = ()
    local_projects: tuple[LocalProject, ...] = ()
    prereleases: bool = False
    require_hashes: bool = False
    wheels_only: frozenset[str] = frozenset()
    pythons: tuple[Python, ...] = ()
    notes: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)

    @property
    def hashes(self) -> dict[str, frozenset[str]]:
        """By name: those of which the package's artifact must have one.

        Where markers pin one name to several versions, the hashes of all stand together.
        """
        found: dict[str, frozenset[str]] = {}
        hashed: list[Specifier | Constraint | WheelUrl | LocalWheel]
        hashed = [*self.specifiers, *self.constraints, *self.wheel_urls, *self.local_wheels]
        for item in hashed:
            if item.hashes:
                found[item.name] = found.get(item.name, frozenset()) | frozenset(item.hashes)
        return found
