"""A conda environment.yml -> the lines of its pip part."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

from mirror.core.requirements.text import quoted
from mirror.core.requirements.values import Entry, Include, Line, Mistake, Note


def environment(text: str, name: str, asked: Include) -> Iterator[Line | Entry]:
    """The lines of an environment.yml's pip part, and a note of what its conda part holds."""
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        yield Mistake("is no YAML", f"{name}:{mark.line + 1}" if mark else name)
        return
    parts = _members(root).get("dependencies")
    if not isinstance(parts, yaml.SequenceNode):
        yield Mistake(f"{name} has no list of dependencies: it is no environment", asked.where)
        return
    conda: list[str] = []
    pip: list[yaml.Node] = []
    for part in parts.value:
        if isinstance(part, yaml.ScalarNode):
            conda.append(part.value)
        elif isinstance(inner := _members(part).get("pip"), yaml.SequenceNode):
            pip += inner.value
        else:
            yield Mistake("is neither a conda package nor a list pip:", _at(name, part))
    carried = [spec for spec in conda if not re.match(r"(\S+::)?pip\b", spec)]
    if not pip:
        yield Mistake(
            f"{name} has no pip part: its packages belong under conda.packages: "
            f"{quoted(', '.join(carried))}",
            asked.where,
        )
    elif carried:
        yield Note(
            "its conda part is not carried by wheels.requirements; list what is needed of it under "
            f"conda.packages: {quoted(', '.join(carried))}",
            _at(name, parts),
        )
    if variables := _members(root).get("variables"):
        yield Note("its variables are not set on the server", _at(name, variables))
    for node in pip:
        if isinstance(node, yaml.ScalarNode):
            yield Line(node.value.strip(), _at(name, node))
        else:
            yield Mistake("is no line of text", _at(name, node))


def _members(node: yaml.Node | None) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {str(key.value): value for key, value in node.value}


def _at(name: str, node: yaml.Node) -> str:
    return f"{name}:{node.start_mark.line + 1}"
