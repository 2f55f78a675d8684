"""The YAML that a person writes: what is wanted, for which target.

Every scalar is read as text and converted by the schema, so that `3.10`, `1e-3` and `no` mean what
was written. All mistakes are reported in one go, each with its line and column.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeAlias

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    ValidationError,
)

from mirror.core.target import PLATFORMS
from mirror.errors import UsageError

Text: TypeAlias = Annotated[str, StringConstraints(min_length=1)]
Name: TypeAlias = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,99}$")]
VersionText: TypeAlias = Annotated[str, StringConstraints(pattern=r"^\d+(\.\d+)*$")]
RepoId: TypeAlias = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$", max_length=96)
]


class Section(BaseModel):
    """A table of the manifest: unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TargetSection(Section):
    """The machine the bundle is for. What is left out is taken from the machine that builds."""

    python: Annotated[str, StringConstraints(pattern=r"^3\.\d+$")] | None = None
    platform: Literal["linux-x86_64", "linux-aarch64", "win-amd64", "macos-arm64"] | None = None
    glibc: VersionText | None = None
    cuda: VersionText | None = None
    driver: VersionText | None = None
    gpus: list[Annotated[str, StringConstraints(pattern=r"^sm_\d+[a-z]?$")]] = []
    provided: list[Text] = []


class WheelsSection(Section):
    """Python packages, as requirement specifiers."""

    requirements: list[Text] = Field(min_length=1)


class CondaSection(Section):
    """Conda packages, as match specs, from channels by URL, by name or in a folder."""

    channels: list[Text] = Field(min_length=1)
    packages: list[Text] = Field(min_length=1)


class HubModel(Section):
    """A model from a Hub."""

    repo: RepoId
    revision: Text = "main"


class LocalModel(Section):
    """A model in a folder beside the manifest, given a repository id of its own."""

    path: Text
    name: RepoId


class LocalFile(Section):
    """A file, or all files of a folder."""

    path: Text
    to: Text


class RemoteFile(Section):
    """A file from a URL, its bytes fixed by their hash."""

    url: Annotated[str, StringConstraints(pattern=r"^https?://")]
    sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
    to: Text


class VerifySection(Section):
    """What `mirror verify` shall prove on the server.

    model: id of the bundled model that the trainer trains; the first one when left out.
    imports: modules that must import; a `?` at the end makes one optional.
    steps: optimizer steps of the training run.
    precision: of the training run.
    """

    model: RepoId | None = None
    imports: list[Text] = []
    steps: int = Field(default=40, ge=10, le=10_000)
    precision: Literal["no", "fp16", "bf16"] = "no"


def _shape(value: Any) -> str:
    if isinstance(value, str):
        return "text"
    keys = value if isinstance(value, dict) else value.model_fields_set
    return "local" if "path" in keys else "remote"


ModelItem: TypeAlias = Annotated[
    Annotated[RepoId, Tag("text")]
    | Annotated[LocalModel, Tag("local")]
    | Annotated[HubModel, Tag("remote")],
    Discriminator(_shape),
]
FileItem: TypeAlias = Annotated[
    Annotated[LocalFile, Tag("local")] | Annotated[RemoteFile, Tag("remote")],
    Discriminator(lambda value: "remote" if "url" in _keys(value) else "local"),
]


def _keys(value: Any) -> Any:
    return value if isinstance(value, dict) else getattr(value, "model_fields_set", ())


class Manifest(Section):
    """What one project needs."""

    name: Name
    version: Name
    target: TargetSection = TargetSection()
    wheels: WheelsSection | None = None
    conda: CondaSection | None = None
    models: list[ModelItem] = []
    files: list[FileItem] = []
    verify: VerifySection = VerifySection()


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
            f"{where}: {error.problem}", hint=_tab_hint(text, mark.line if mark else 0)
        ) from None
    except yaml.YAMLError as error:
        raise UsageError(f"{source}: {error}") from None
    if not isinstance(node, yaml.MappingNode):
        raise UsageError(
            f"{source}: a manifest is a table",
            hint="It begins with `name: ...` and `version: ...`; manifests/demo.yaml shows all.",
        )
    places: dict[tuple[str | int, ...], tuple[int, int]] = {}
    mistakes: list[str] = []
    plain = _plain(node, (), places, mistakes, source, ())
    try:
        manifest = Manifest.model_validate(plain)
    except ValidationError as error:
        mistakes += list(_explained(error, places, source))
    if mistakes:
        count = f"{len(mistakes)} mistakes" if len(mistakes) > 1 else "a mistake"
        raise UsageError(f"the manifest {source} has {count}", problems=mistakes)
    return manifest


def _plain(
    node: yaml.Node,
    at: tuple[str | int, ...],
    places: dict[tuple[str | int, ...], tuple[int, int]],
    mistakes: list[str],
    source: str,
    above: tuple[yaml.Node, ...],
) -> Any:
    """The node as dicts, lists and text, with the place of each noted in `places`."""
    places.setdefault(at, (node.start_mark.line + 1, node.start_mark.column + 1))
    if node in above:
        mistakes.append(f"{_where(places, at, source)}: an alias holds itself")
        return None
    if isinstance(node, yaml.ScalarNode):
        empty = node.style is None and node.value in ("", "~", "null")
        return None if empty else node.value
    if isinstance(node, yaml.SequenceNode):
        return [
            _plain(item, (*at, number), places, mistakes, source, (*above, node))
            for number, item in enumerate(node.value)
        ]
    table: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = key_node.value if isinstance(key_node, yaml.ScalarNode) else "?"
        line, column = key_node.start_mark.line + 1, key_node.start_mark.column + 1
        if key in table:
            mistakes.append(f"{source}:{line}:{column}: the key {key} is here twice")
        places[(*at, key)] = (line, column)
        value = _plain(value_node, (*at, key), places, mistakes, source, (*above, node))
        if value is not None:
            table[key] = value
    return table


def _explained(
    error: ValidationError, places: dict[tuple[str | int, ...], tuple[int, int]], source: str
) -> Iterator[str]:
    for item in error.errors(include_url=False):
        # A tagged union puts the tag of the chosen shape into the location; places has none.
        at = tuple(part for part in item["loc"] if part not in ("text", "local", "remote"))
        where, name = _where(places, at, source), ".".join(str(part) for part in at)
        match item["type"]:
            case "extra_forbidden":
                near = difflib.get_close_matches(str(at[-1]), _known_keys(at[:-1]), 1)
                meant = f"; did you mean {near[0]}?" if near else ""
                yield f"{where}: unknown key {name}{meant}"
            case "missing":
                yield f"{where}: {name} is missing"
            case "string_pattern_mismatch" | "string_too_short" | "string_too_long":
                yield f"{where}: {name}: {item['input']!r} is not of the form {_form(item)}"
            case "model_type" | "model_attributes_type" | "dict_type":
                yield f"{where}: {name} must be a table (key: value)"
            case "list_type":
                yield f"{where}: {name} must be a list"
            case "string_type":
                yield f"{where}: {name} must be text"
            case _:
                yield f"{where}: {name}: {item['msg'][0].lower()}{item['msg'][1:]}"


def _form(item: Any) -> str:
    context = item.get("ctx", {})
    if "pattern" in context:
        return str(context["pattern"])
    return f"{context.get('min_length', 0)} to {context.get('max_length', 'any number of')} letters"


def _known_keys(at: tuple[str | int, ...]) -> list[str]:
    sections: dict[str, list[type[Section]]] = {
        "target": [TargetSection],
        "wheels": [WheelsSection],
        "conda": [CondaSection],
        "models": [HubModel, LocalModel],
        "files": [LocalFile, RemoteFile],
        "verify": [VerifySection],
    }
    classes = sections.get(str(at[0]), []) if at else [Manifest]
    return [key for section in classes for key in section.model_fields]


def _where(
    places: dict[tuple[str | int, ...], tuple[int, int]], at: tuple[str | int, ...], source: str
) -> str:
    """The place of the thing named, or of the nearest table around it."""
    while at not in places and at:
        at = at[:-1]
    line, column = places.get(at, (1, 1))
    return f"{source}:{line}:{column}"


def _tab_hint(text: str, line: int) -> str | None:
    lines = text.splitlines()
    if line < len(lines) and "\t" in lines[line]:
        return "The line holds a tab; YAML is indented with spaces."
    return None


def json_schema() -> dict[str, Any]:
    """The manifest's JSON Schema, for editors."""
    return Manifest.model_json_schema()


assert set(PLATFORMS) == set(TargetSection.model_fields["platform"].annotation.__args__[0].__args__)  # type: ignore[union-attr]  # noqa: S101
