"""A conda environment.yml: its channels, its conda packages, and the lines of its pip part."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import yaml

from mirror.core.requirements.text import quoted
from mirror.core.requirements.values import Entry, Include, Line, Mistake, Note
from mirror.core.target import PLATFORMS

_SUBDIRS = frozenset(PLATFORMS.values())
_LINUX, _WIN, _OSX = frozenset({"linux-64", "linux-aarch64"}), {"win-64"}, {"osx-arm64"}
#: The words of platform selectors (`- pywin32  # [win]`), as conda-lock and conda-build have them.
_SELECTORS: Mapping[str, frozenset[str]] = {
    "linux": _LINUX,
    "linux64": frozenset({"linux-64"}),
    "aarch64": frozenset({"linux-aarch64"}),
    "win": frozenset(_WIN),
    "win64": frozenset(_WIN),
    "osx": frozenset(_OSX),
    "arm64": frozenset(_OSX),
    "osx64": frozenset(),
    "unix": _LINUX | _OSX,
    "x86_64": frozenset({"linux-64", "win-64"}),
}
_SELECTOR = re.compile(r"#\s*\[([^\[\]]+)\]\s*$")
#: What no part of an environment is, and nobody misses.
_IGNORED = ("name", "prefix", "platforms", "category")
_KNOWN = ("channels", "dependencies", "variables")


@dataclass(frozen=True, slots=True)
class Package:
    """A conda package that is asked for. subdirs: on which it is meant; None: on every one."""

    text: str
    where: str
    subdirs: frozenset[str] | None = None


Stated: TypeAlias = Line | Note | Mistake


@dataclass(frozen=True, slots=True)
class Environment:
    """What an environment.yml states, in its order, each with the place where it stands.

    pip: the lines of its pip part, None when it has none. notes: what is not followed.
    mistakes: what cannot be taken as it is written.
    """

    channels: tuple[Line, ...] = ()
    packages: tuple[Package, ...] = ()
    pip: tuple[Stated, ...] | None = None
    notes: tuple[Note, ...] = ()
    mistakes: tuple[Mistake, ...] = ()


def parse(text: str, name: str) -> Environment:
    """The environment that a file of this name states."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        where = f"{name}:{mark.line + 1}" if mark else name
        return Environment(mistakes=(Mistake("is no YAML", where),))
    return _Reader(name, text).read(_members(root))


def environment(text: str, name: str, asked: Include) -> Iterator[Line | Entry]:
    """The lines of its pip part, and a note of what its conda part holds.

    With `asked.groups` the conda part is carried elsewhere, and no word is lost on it.
    """
    found = parse(text, name)
    yield from found.mistakes
    if not found.mistakes and found.pip is None:
        carried = quoted(", ".join(_carried(found.packages)))
        yield Mistake(
            f"{name} has no pip part: its packages belong under conda.packages: {carried}",
            asked.where,
        )
    if not asked.groups:
        carried = quoted(", ".join(_carried(found.packages)))
        if found.pip is not None and carried:
            yield Note(
                "its conda part is not carried by wheels.requirements; name the file under "
                f"conda.environment, or list what is needed under conda.packages: {carried}",
                found.packages[0].where,
            )
        yield from found.notes
    yield from found.pip or ()


class _Reader:
    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._lines = re.split(r"\r\n|\r|\n", text)
        self._notes: list[Note] = []
        self._mistakes: list[Mistake] = []

    def read(self, members: Mapping[str, yaml.Node]) -> Environment:
        parts = members.get("dependencies")
        if not isinstance(parts, yaml.SequenceNode):
            text = "has no list of dependencies: it is no environment"
            return Environment(mistakes=(Mistake(text, self._name),))
        channels = self._channels(members.get("channels"))
        packages: list[Package] = []
        pip: list[Stated] | None = None
        for part in parts.value:
            if isinstance(part, yaml.ScalarNode) and part.value.strip():
                packages.append(self._package(part))
            elif isinstance(inner := _members(part).get("pip"), yaml.SequenceNode):
                pip = [*(pip or ()), *self._pip(inner.value)]
            elif list(_members(part)) == ["pip"]:
                pip = pip or []  # `- pip:` with nothing below it
            else:
                self._mistake("is neither a conda package nor a list pip:", part)
        if variables := members.get("variables"):
            self._note("its variables are not set on the server", variables)
        for key in sorted(members.keys() - {*_IGNORED, *_KNOWN}):
            self._note(
                f"{quoted(key)} is no part of an environment that mirror knows", members[key]
            )
        return Environment(
            channels=tuple(channels),
            packages=tuple(packages),
            pip=None if pip is None else tuple(pip),
            notes=tuple(self._notes),
            mistakes=tuple(self._mistakes),
        )

    def _channels(self, node: yaml.Node | None) -> Iterator[Line]:
        if node is None or node.value in ("", "null", "~"):
            return
        if not isinstance(node, yaml.SequenceNode):
            self._mistake("channels is no list", node)
            return
        for item in node.value:
            if isinstance(item, yaml.ScalarNode) and item.value.strip():
                yield Line(item.value.strip(), self._at(item))
            else:
                self._mistake("is no channel", item)

    def _package(self, node: yaml.ScalarNode) -> Package:
        subdirs = None
        if selector := self._selector(node):
            subdirs = _subdirs(selector)
            if subdirs is None:
                words = quoted(selector)
                self._note(f"[{words}] is no selector that mirror knows: the line holds", node)
        return Package(node.value.strip(), self._at(node), subdirs)

    def _pip(self, nodes: Sequence[yaml.Node]) -> Iterator[Stated]:
        for node in nodes:
            if not isinstance(node, yaml.ScalarNode):
                yield Mistake("is no line of text", self._at(node))
                continue
            selector = self._selector(node)
            if selector and _subdirs(selector) is not None:
                text = f"[{selector}] is not followed in a pip part: a marker is, ; sys_platform =="
                yield Note(f"{text} 'linux'", self._at(node))
            yield Line(node.value.strip(), self._at(node))

    def _selector(self, node: yaml.Node) -> str:
        """The words of the platform selector in the comment behind a node; empty for none."""
        mark = node.end_mark
        rest = self._lines[mark.line][mark.column :] if mark.line < len(self._lines) else ""
        found = _SELECTOR.search(rest)
        return found[1].strip() if found else ""

    def _note(self, text: str, node: yaml.Node) -> None:
        self._notes.append(Note(text, self._at(node)))

    def _mistake(self, text: str, node: yaml.Node) -> None:
        self._mistakes.append(Mistake(text, self._at(node)))

    def _at(self, node: yaml.Node) -> str:
        return f"{self._name}:{node.start_mark.line + 1}"


def _subdirs(selector: str) -> frozenset[str] | None:
    """The subdirs that `linux`, `not win` or `linux or osx` mean; None when it means none."""
    chosen: frozenset[str] = frozenset()
    for part in selector.split(" or "):
        words = part.split()
        negated = words[:1] == ["not"]
        known = _SELECTORS.get(words[-1]) if len(words) == 1 + negated else None
        if known is None:
            return None
        chosen |= _SUBDIRS - known if negated else known
    return chosen


def _carried(packages: Sequence[Package]) -> list[str]:
    return [p.text for p in packages if not re.match(r"(\S+::)?pip\b", p.text)]


def _members(node: yaml.Node | None) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {str(key.value): value for key, value in node.value}
