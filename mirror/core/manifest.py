"""The YAML that a person writes: what is wanted, for which target.

These classes are its schema; `reading` turns a file's bytes into them.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
)

from mirror.core.target import PLATFORMS

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,99}$"
_VERSION = r"^\d+(\.\d+)*$"
_REPO = r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$"
_PYTHON = r"^3\.\d+$"
_GPU = r"^sm_\d+[a-z]?$"
_URL = r"^https?://"
_SHA256 = r"^[0-9a-f]{64}$"
#: What each pattern asks for, in words, for messages.
FORMS = {
    _NAME: "a name of letters, digits and . _ + -",
    _VERSION: "a version such as 12.8",
    _REPO: "a repository id such as org/name",
    _PYTHON: "a Python version such as 3.11",
    _GPU: "a GPU architecture such as sm_90",
    _URL: "an address that begins with https:// or http://",
    _SHA256: "64 lower-case hexadecimal digits",
}

Text: TypeAlias = Annotated[str, StringConstraints(min_length=1)]
Name: TypeAlias = Annotated[str, StringConstraints(pattern=_NAME)]
VersionText: TypeAlias = Annotated[str, StringConstraints(pattern=_VERSION)]
RepoId: TypeAlias = Annotated[str, StringConstraints(pattern=_REPO, max_length=96)]


def _requirement(text: str) -> str:
    """A requirement specifier as pip writes it, with nothing that a lock could not pin."""
    from packaging.requirements import InvalidRequirement, Requirement

    if text.startswith("-"):
        raise ValueError(f"{text!r} is an option of pip; only requirement specifiers stand here")
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{text!r} is no requirement specifier: {reason}") from None
    if requirement.url:
        raise ValueError(f"{text!r} names an address; only packages of the index stand here")
    return text


def _platform(text: str) -> str:
    if text not in PLATFORMS:
        raise ValueError(f"{text!r} is none of {', '.join(PLATFORMS)}")
    return text


def _provided(text: str) -> str:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(text)
        operators = [s.operator for s in requirement.specifier]
        if requirement.extras or requirement.marker or requirement.url:
            raise ValueError
        if operators and (operators != ["=="] or "*" in text):
            raise ValueError
    except (InvalidRequirement, ValueError):
        raise ValueError(f"{text!r} is neither NAME nor NAME==VERSION") from None
    return text.replace(" ", "")


RequirementText: TypeAlias = Annotated[str, AfterValidator(_requirement)]
ProvidedText: TypeAlias = Annotated[str, AfterValidator(_provided)]


class Section(BaseModel):
    """A table of the manifest: unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TargetSection(Section):
    """The machine the bundle is for. What is left out is taken from the machine that builds."""

    python: Annotated[str, StringConstraints(pattern=_PYTHON)] | None = None
    platform: Annotated[str, AfterValidator(_platform)] | None = None
    glibc: VersionText | None = None
    cuda: VersionText | None = None
    driver: VersionText | None = None
    gpus: list[Annotated[str, StringConstraints(pattern=_GPU)]] = []
    provided: list[ProvidedText] = []


class WheelsSection(Section):
    """Python packages, as requirement specifiers."""

    requirements: list[RequirementText] = Field(min_length=1)


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

    url: Annotated[str, StringConstraints(pattern=_URL)]
    sha256: Annotated[str, StringConstraints(pattern=_SHA256)]
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


def json_schema() -> dict[str, Any]:
    """The manifest's JSON Schema, for editors."""
    return Manifest.model_json_schema()
