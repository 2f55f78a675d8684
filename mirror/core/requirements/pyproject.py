"""A pyproject.toml -> what it asks for."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from mirror.core.requirements.lines import requirement
from mirror.core.requirements.tables import by_name, table, texts
from mirror.core.requirements.text import quoted
from mirror.core.requirements.uv import Sources
from mirror.core.requirements.values import Entry, Include, Line, Mistake, Python, Refusal

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def pyproject(text: str, name: str, asked: Include) -> Iterator[Entry]:
    """What a pyproject.toml asks for: its project's dependencies and those of the extras asked.

    With groups asked: what those hold, and nothing of the project. name: the file's, for places.
    """
    try:
        document = tomllib.loads(text)
    except ValueError as error:  # TOMLDecodeError, or a number that is too long
        yield Mistake(f"is no TOML: {error}", name)
        return
    yield from _Project(document, text, name, asked).entries()


@dataclass
class _Project:
    document: Mapping[str, Any]
    text: str
    name: str
    asked: Include
    _seen: set[tuple[str, str]] = field(default_factory=set)

    def entries(self) -> Iterator[Entry]:
        try:
            sources = Sources(self.document, self._where)
            found = self._groups() if self.asked.groups else self._project()
            for entry in found:
                if isinstance(entry, Line):
                    yield from self._requirement(entry, sources)
                else:
                    yield entry
            yield from sources.settings()
        except Refusal as refusal:
            yield Mistake(f"{quoted(self.name)}: {refusal}", self.asked.where)

    def _requirement(self, line: Line, sources: Sources) -> Iterator[Entry]:
        try:
            yield requirement(line.text, line.where)
            chosen = (*self.asked.extras, *self.asked.groups)
            yield from sources.of(Requirement(line.text), line.where, chosen)
        except Refusal as refusal:
            yield Mistake(str(refusal), line.where)

    def _project(self) -> Iterator[Line | Entry]:
        project = table(self.document, "project")
        dynamic = texts(project.get("dynamic", []), "project.dynamic")
        if "dependencies" not in (*project, *dynamic):
            if table(self.document, "tool", "poetry", "dependencies"):
                raise Refusal(
                    "the dependencies are under tool.poetry: name the project itself, whose build "
                    "knows them: write its folder, ./"
                )
            if not project:
                raise Refusal("there is no [project] table: is it the right file?")
        if allowed := project.get("requires-python"):
            try:
                yield Python(str(SpecifierSet(str(allowed))), self._where(str(allowed)))
            except InvalidSpecifier:
                yield Mistake(
                    f"requires-python: {quoted(str(allowed))} names no versions",
                    self._where(str(allowed)),
                )
        if "dependencies" in dynamic:
            yield from self._dynamic("dependencies", ())
        for item in texts(project.get("dependencies", []), "project.dependencies"):
            yield Line(item, self._where(item))
        for extra in self.asked.extras:
            yield from self._extra(extra, "")

    def _extra(self, extra: str, marker: str) -> Iterator[Line | Entry]:
        """An extra's requirements. Where it asks for the project itself, that one's extras."""
        if (extra, marker) in self._seen:
            return
        self._seen.add((extra, marker))
        project = table(self.document, "project")
        known = by_name(table(project, "optional-dependencies"), "optional-dependencies")
        if "optional-dependencies" in texts(project.get("dynamic", []), "project.dynamic"):
            yield from self._dynamic("optional-dependencies", (extra,))
            return
        if extra not in known:
            raise Refusal(f"there is no extra {extra}{_near(extra, known)}")
        own = canonicalize_name(str(project.get("name", "")))
        for item in texts(known[extra], f"optional-dependencies.{extra}"):
            try:
                asked = Requirement(item)
            except InvalidRequirement:
                yield Line(item, self._where(item))  # named where all requirements are read
                continue
            both = " and ".join(f"({m})" for m in (marker, str(asked.marker or "")) if m)
            if canonicalize_name(asked.name) == own and not asked.url:
                for inner in sorted(asked.extras):
                    yield from self._extra(canonicalize_name(inner), both)
                continue
            asked.marker = Marker(both) if both else None
            yield Line(str(asked), self._where(item))

    def _groups(self) -> Iterator[Line]:
        known = by_name(table(self.document, "dependency-groups"), "dependency-groups")
        for group in self.asked.groups:
            yield from self._group(group, known, ())

    def _group(
        self, group: str, known: Mapping[str, Any], above: tuple[str, ...]
    ) -> Iterator[Line]:
        if group in above:
            raise Refusal(f"groups hold each other: {' -> '.join((*above, group))}")
        if group not in known:
            raise Refusal(f"there is no dependency group {group}{_near(group, known)}")
        if not isinstance(known[group], list):
            raise Refusal(f"dependency-groups.{group} is not a list")
        for item in known[group]:
            if isinstance(item, str):
                yield Line(item, self._where(item))
            elif isinstance(item, dict) and list(item) == ["include-group"]:
                inner = canonicalize_name(str(item["include-group"]))
                yield from self._group(inner, known, (*above, group))
            else:
                raise Refusal(
                    f"dependency-groups.{group} holds {quoted(str(item))}, which is "
                    "neither a requirement nor include-group"
                )

    def _dynamic(self, key: str, at: tuple[str, ...]) -> Iterator[Entry]:
        """Files that setuptools would read a dynamic field from."""
        files = table(self.document, "tool", "setuptools", "dynamic", key, *at).get("file")
        if not files:
            raise Refusal(
                f"{key} is left to the build (dynamic): name the project itself: write its "
                "folder, ./"
            )
        files = [files] if isinstance(files, str) else files
        for file in texts(files, f"tool.setuptools.dynamic.{key}"):
            yield Include("requirements", file, self._where(file))

    def _where(self, item: str) -> str:
        """The first line that holds the text in quotes: TOML's reader tells no places."""
        for quote in "\"'":
            at = self.text.find(f"{quote}{item}{quote}")
            if at >= 0:
                return f"{self.name}:{self.text.count(chr(10), 0, at) + 1}"
        return self.name


def _near(name: str, known: Mapping[str, Any]) -> str:
    if near := difflib.get_close_matches(name, known, 1):
        return f"; did you mean {near[0]}?"
    return f"; it has {', '.join(sorted(known))}" if known else ""
