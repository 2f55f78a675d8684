"""Opens the files that `wheels.requirements` names, and gathers what all of them ask for."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias, TypeVar

from packaging.utils import canonicalize_name

from mirror.core.requirements import indexes as declared
from mirror.core.requirements import text
from mirror.core.requirements.environment import environment
from mirror.core.requirements.lines import entries
from mirror.core.requirements.pyproject import pyproject
from mirror.core.requirements.values import (
    Constraint,
    Entry,
    Flag,
    GitUrl,
    Include,
    Index,
    Line,
    LocalProject,
    LocalWheel,
    Mistake,
    Note,
    Python,
    Requirements,
    Specifier,
    WheelsOnly,
    WheelUrl,
    Workspace,
)
from mirror.ecosystems.source import LocalHashes
from mirror.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

T = TypeVar("T")
#: What is read once: a file's real path, its kind, extras and groups.
_Key: TypeAlias = tuple[str, str, tuple[str, ...], tuple[str, ...]]


def read(items: Sequence[str], folder: Path, indexes: Collection[str]) -> Requirements:
    """What the items of `wheels.requirements` ask for, with all files that they name.

    folder: the manifest's; paths start there. indexes: addresses that the manifest declares, and
    of the default index.
    Raises UsageError that lists every mistake with FILE:LINE.
    """
    reader = _Reader(Path(os.path.abspath(folder)))
    for number, item in enumerate(items):
        reader.take(_item(item, f"wheels.requirements.{number}"), reader.folder)
    return reader.gathered(indexes)


def inputs(requirements: Requirements, folder: Path, hashes: LocalHashes) -> dict[str, str]:
    """sha256 of every file that was read, and of every local wheel: path -> digest.

    Local projects are not among them: what of a folder goes into its wheel, its build decides.
    Raises UsageError when a wheel cannot be read.
    """
    digests = dict(requirements.files)
    problems = []
    for wheel in requirements.local_wheels:
        try:
            digests[wheel.path] = hashes.of(folder / wheel.path)[1]
        except OSError as error:
            problems.append(f"{wheel.where}: {wheel.path}: {error.strerror}")
    if problems:
        raise UsageError("local wheels cannot be read", problems=problems)
    return digests


class _Reader:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._found: list[Entry] = []
        self._files: dict[str, str] = {}
        self._done: set[_Key] = set()
        self._open: list[_Key] = []

    def take(
        self, found: Iterable[Line | Entry], folder: Path, *, constraint: bool = False
    ) -> None:
        """Keep what was found in a file of `folder`, and follow what it names."""
        for entry in found:
            match entry:
                case Line():
                    self.take(entries(entry, constraint=constraint), folder)
                case Include():
                    self._include(entry, folder)
                case LocalWheel() | LocalProject():
                    self._found.append(self._local(entry, folder))
                case Workspace():
                    self._found.append(self._member(entry, folder))
                case _:
                    self._found.append(entry)

    def gathered(self, indexes: Collection[str]) -> Requirements:
        """Everything found. Raises UsageError with all mistakes among it."""
        from pypi_simple import PYPI_SIMPLE_ENDPOINT

        only_wheels = [name for entry in self._of(WheelsOnly) for name in entry.names]
        flags = {flag.name for flag in self._of(Flag)}
        found = Requirements(
            specifiers=self._of(Specifier),
            constraints=self._of(Constraint),
            wheel_urls=self._of(WheelUrl),
            git_urls=self._of(GitUrl),
            local_wheels=self._of(LocalWheel),
            local_projects=self._of(LocalProject),
            prereleases="prereleases" in flags,
            require_hashes="require_hashes" in flags,
            wheels_only=frozenset(only_wheels),
            pythons=self._of(Python),
            notes=tuple(dict.fromkeys(map(str, self._of(Note)))),
            files=self._files,
        )
        undeclared = declared.undeclared(
            self._of(Index),
            (*indexes, PYPI_SIMPLE_ENDPOINT),
            {specifier.name for specifier in found.specifiers},
        )
        judged = (undeclared.get(e) if isinstance(e, Index) else e for e in self._found)
        mistakes = [entry for entry in judged if isinstance(entry, Mistake)]
        mistakes += _unhashed(found) if found.require_hashes else ()
        if mistakes:
            count = f"{len(mistakes)} mistakes" if len(mistakes) > 1 else "a mistake"
            raise UsageError(
                f"the requirements have {count}",
                problems=dict.fromkeys(map(str, mistakes)),
                hint="docs/requirements.md says what may stand there, and what each form does.",
            )
        return found

    def _of(self, kind: type[T]) -> tuple[T, ...]:
        return tuple(entry for entry in self._found if isinstance(entry, kind))

    def _include(self, include: Include, folder: Path) -> None:
        path = _normal(folder / include.path)
        key = (os.path.realpath(path), include.kind, include.extras, include.groups)
        name, shown = self._name(path), text.quoted(self._name(path))
        if key in self._open:
            circle = [self._name(Path(one[0])) for one in self._open[self._open.index(key) :]]
            chain = text.quoted(" -> ".join((*circle, name)))
            self._found.append(Mistake(f"files name each other: {chain}", include.where))
        if key in self._done:
            return
        self._done.add(key)
        try:
            data = path.read_bytes()
            content = text.decode(data)
        except (OSError, UnicodeError, LookupError) as error:
            self._found.append(Mistake(f"{shown} {_unreadable(error)}", include.where))
            return
        self._files[name] = hashlib.sha256(data).hexdigest()
        self._open.append(key)
        self.take(
            self._content(include, content, name),
            path.parent,
            constraint=include.kind == "constraints",
        )
        self._open.pop()

    def _content(self, include: Include, content: str, name: str) -> Iterator[Line | Entry]:
        match include.kind:
            case "pyproject":
                return pyproject(content, name, include)
            case "environment":
                return environment(content, name, include)
            case _:
                return text.lines(content, lambda number: f"{name}:{number}")

    def _local(
        self, entry: LocalWheel | LocalProject, folder: Path
    ) -> LocalWheel | LocalProject | Mistake:
        """The entry with its path from the manifest's folder.

        pip starts a path in the folder that it is run in, which people take for the manifest's or
        for that of the file.
        """
        shown = text.quoted(entry.path)
        starts = dict.fromkeys((folder, self.folder))
        places = list(dict.fromkeys(_normal(start / entry.path) for start in starts))
        there = [place for place in places if _is_there(entry, place)]
        if len(there) > 1:
            names = text.quoted(" and ".join(map(self._name, there)))
            return Mistake(
                f"{shown} can mean {names}: take it out, and list the one that is meant in "
                "the manifest",
                entry.where,
            )
        if not there:
            what = "wheel" if isinstance(entry, LocalWheel) else "pyproject.toml or setup.py"
            names = text.quoted(" or ".join(map(self._name, places)))
            return Mistake(f"{shown}: there is no {what} at {names}", entry.where)
        path = entry.path if os.path.isabs(entry.path) else self._name(there[0])
        if isinstance(entry, LocalWheel):
            return replace(entry, path=path)
        own = self._project_name(there[0])
        if entry.name and own and entry.name != own:
            return Mistake(f"the project at {shown} is {own}, not {entry.name}", entry.where)
        return replace(entry, path=path, name=entry.name or own)

    def _member(self, workspace: Workspace, folder: Path) -> LocalProject | Mistake:
        patterns = [pattern for pattern in workspace.members if pattern.strip("./")]
        for place in (folder, *(p for pattern in patterns for p in sorted(folder.glob(pattern)))):
            if (place / "pyproject.toml").is_file() and self._project_name(place) == workspace.name:
                path = self._name(place)
                return LocalProject(workspace.name, path, workspace.where, marker=workspace.marker)
        return Mistake(
            f"{workspace.name} is no member of the workspace ({', '.join(workspace.members)})",
            workspace.where,
        )

    def _project_name(self, folder: Path) -> str | None:
        """The name that a project's pyproject.toml states; None when it states none."""
        try:
            data = (folder / "pyproject.toml").read_bytes()
            name = tomllib.loads(data.decode("utf-8"))["project"]["name"]
            own = canonicalize_name(name)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        self._files[self._name(folder / "pyproject.toml")] = hashlib.sha256(data).hexdigest()
        return own

    def _name(self, path: Path) -> str:
        """A path as messages and digests name it: from the manifest's folder, with /."""
        try:
            return Path(os.path.relpath(path, self.folder)).as_posix()
        except ValueError:  # another drive
            return path.as_posix()


def _item(item: str, where: str) -> list[Line | Mistake]:
    return list(text.lines(item, lambda _: where)) or [Mistake("is empty", where)]


def _normal(path: Path) -> Path:
    return Path(os.path.normpath(path))


def _is_there(entry: LocalWheel | LocalProject, place: Path) -> bool:
    if isinstance(entry, LocalWheel):
        return place.is_file()
    return any((place / file).is_file() for file in ("pyproject.toml", "setup.py"))


def _unreadable(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror}"
    if isinstance(error, UnicodeDecodeError):
        line = len(re.findall(rb"\n", error.object[: error.start])) + 1
        return f"is no {error.encoding} text (line {line}): save it as UTF-8"
    return f"has an encoding that is not known: {error}"


def _unhashed(found: Requirements) -> Iterator[Mistake]:
    """What --require-hashes forbids."""
    hashed = found.hashes
    asked: list[Specifier | WheelUrl | LocalWheel]
    asked = [*found.specifiers, *found.wheel_urls, *found.local_wheels]
    for item in asked:
        if item.name not in hashed:
            yield Mistake(f"{item.name} has no --hash; --require-hashes asks for it", item.where)
    built: list[GitUrl | LocalProject] = [*found.git_urls, *found.local_projects]
    for place in built:
        yield Mistake(
            "is built from source and has no hash yet; --require-hashes asks for it: build a wheel "
            "of it and name that: ./dist/NAME.whl --hash=sha256:...",
            place.where,
        )
