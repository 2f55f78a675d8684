"""A manifest's bytes -> a Manifest, or every mistake in them with its place.

Every scalar is read as text and converted by the schema, so that `3.10`, `1e-3` and `no` mean what
was written. All mistakes are reported in one go, each with its line and column.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from typing import Any

import yaml
from pydantic import ValidationError

from mirror.core.manifest import (
    FORMS,
    REPOSITORIES,
    CondaSection,
    LocalFile,
    Manifest,
    RemoteFile,
    Section,
    TargetSection,
    VerifySection,
    WheelsSection,
)
from mirror.core.paths import shown
from mirror.errors import UsageError


def parse(data: bytes, source: str) -> Manifest:
    """The manifest that these bytes spell; `source` is its file's name, for messages.

    Raises UsageError that lists every mistake as FILE:LINE:COLUMN.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{source}:{line}: the manifest is not UTF-8 text") from None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
        raise UsageError(
            f"{where}: {shown(str(error.problem))}", hint=_tab_hint(text, mark.line if mark else 0)
        ) from None
    except yaml.YAMLError as error:
        raise UsageError(f"{source}: {shown(str(error))}") from None
    if not isinstance(node, yaml.MappingNode):
        raise UsageError(
            f"{source}: a manifest is a table",
            hint="It begins with `name: ...` and `version: ...`; manifests/demo.yaml shows all.",
        )
    places: dict[tuple[str | int, ...], tuple[int, int]] = {}
    mistakes: list[tuple[tuple[int, int], str]] = []
    plain = _plain(node, (), places, mistakes, ())
    try:
        manifest = Manifest.model_validate(plain)
        mistakes += _unfitting(manifest, places)
    except ValidationError as error:
        mistakes += _explained(error, places)
    if mistakes:
        count = f"{len(mistakes)} mistakes" if len(mistakes) > 1 else "a mistake"
        lines = [f"{source}:{at[0]}:{at[1]}: {shown(text)}" for at, text in sorted(mistakes)]
        raise UsageError(f"the manifest {source} has {count}", problems=lines)
    return manifest


def _unfitting(
    manifest: Manifest, places: dict[tuple[str | int, ...], tuple[int, int]]
) -> Iterator[tuple[tuple[int, int], str]]:
    """What is right by itself and wrong beside the rest."""
    repositories = (*manifest.models, *manifest.datasets, *manifest.spaces)
    if not (manifest.wheels or manifest.conda or repositories or manifest.files):
        yield (1, 1), "it asks for nothing: list wheels, conda, models, datasets, spaces or files"
    models = [item if isinstance(item, str) else item.id for item in manifest.models]
    wanted = manifest.verify.model
    if wanted and wanted not in models:
        near = difflib.get_close_matches(wanted, models, 1)
        meant = f"; did you mean {near[0]}?" if near else ""
        yield (
            _where(places, ("verify", "model")),
            f"verify.model: {wanted} is not among the models{meant}",
        )


def _plain(
    node: yaml.Node,
    at: tuple[str | int, ...],
    places: dict[tuple[str | int, ...], tuple[int, int]],
    mistakes: list[tuple[tuple[int, int], str]],
    above: tuple[yaml.Node, ...],
) -> Any:
    """The node as dicts, lists and text, with the place of each noted in `places`."""
    places.setdefault(at, (node.start_mark.line + 1, node.start_mark.column + 1))
    if node in above:
        mistakes.append((places[at], "an alias holds itself"))
        return None
    if isinstance(node, yaml.ScalarNode):
        empty = node.style is None and node.value in ("", "~", "null")
        return None if empty else node.value
    if isinstance(node, yaml.SequenceNode):
        return [
            _plain(item, (*at, number), places, mistakes, (*above, node))
            for number, item in enumerate(node.value)
        ]
    table: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = key_node.value if isinstance(key_node, yaml.ScalarNode) else "?"
        line, column = key_node.start_mark.line + 1, key_node.start_mark.column + 1
        if key in table:
            mistakes.append(((line, column), f"the key {key} is here twice"))
        places[(*at, key)] = (line, column)
        value = _plain(value_node, (*at, key), places, mistakes, (*above, node))
        if value is not None:
            table[key] = value
    return table


def _explained(
    error: ValidationError, places: dict[tuple[str | int, ...], tuple[int, int]]
) -> Iterator[tuple[tuple[int, int], str]]:
    for item in error.errors(include_url=False):
        # A tagged union puts the tag of the chosen shape into the location; places has none.
        at = item["loc"]
        if len(at) > 2 and isinstance(at[1], int) and str(at[2]).startswith("."):
            at = (*at[:2], *at[3:])
        name = ".".join(str(part) for part in at)
        match item["type"]:
            case "extra_forbidden":
                known = _known_keys(at[:-1])
                near = difflib.get_close_matches(str(at[-1]), known, 1)
                text = f"unknown key {name}" + (f"; did you mean {near[0]}?" if near else "")
                if at[-1] in known:
                    text = f"the key {name} does not belong here"
            case "missing":
                text = f"{name} is missing"
            case "string_pattern_mismatch" | "string_too_short" | "string_too_long":
                text = f"{name}: {item['input']!r} is not {_form(item)}"
            case "model_type" | "model_attributes_type" | "dict_type":
                text = f"{name} must be a table (key: value)"
            case "list_type":
                text = f"{name} must be a list"
            case "string_type":
                text = f"{name} must be text"
            case "bool_type" | "bool_parsing":
                text = f"{name}: {item['input']!r} is neither true nor false"
            case "value_error":
                text = f"{name}: {item['ctx']['error']}"
            case "too_short":
                text = f"{name} is empty"
            case "literal_error":
                text = f"{name}: {item['input']!r} is not {item['ctx']['expected']}"
            case _:
                text = f"{name}: {item['msg'][0].lower()}{item['msg'][1:]}"
        yield _where(places, at), text


def _form(item: Any) -> str:
    context = item.get("ctx", {})
    if "pattern" in context:
        return FORMS[context["pattern"]]
    if "min_length" in context:
        return "something to be left empty"
    return f"at most {context['max_length']} letters long"


def _known_keys(at: tuple[str | int, ...]) -> list[str]:
    sections: dict[str, Sequence[type[Section]]] = {
        "target": [TargetSection],
        "wheels": [WheelsSection],
        "conda": [CondaSection],
        "models": REPOSITORIES,
        "datasets": REPOSITORIES,
        "spaces": REPOSITORIES,
        "files": [LocalFile, RemoteFile],
        "verify": [VerifySection],
    }
    classes = sections.get(str(at[0]), []) if at else [Manifest]
    return [key for section in classes for key in section.model_fields]


def _where(
    places: dict[tuple[str | int, ...], tuple[int, int]], at: tuple[str | int, ...]
) -> tuple[int, int]:
    """Line and column of the thing named, or of the nearest table around it."""
    while at not in places and at:
        at = at[:-1]
    return places.get(at, (1, 1))


def _tab_hint(text: str, line: int) -> str | None:
    lines = text.splitlines()
    if line < len(lines) and "\t" in lines[line]:
        return "The line holds a tab; YAML is indented with spaces."
    return None
