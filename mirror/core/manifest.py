"""The YAML that a person writes: what is wanted, for which target.

These classes are its schema; `reading` turns a file's bytes into them.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)

from mirror.core import paths
from mirror.core.target import PLATFORMS

_NAME = r"^[A-Za-z0-9][A-Za-z0-9._+-]{0,99}$"
_VERSION = r"^\d+(\.\d+)*$"
_REPO = r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$"
_PYTHON = r"^3\.\d+$"
_GPU = r"^sm_\d+[a-z]?$"
_URL = r"^https?://"
_SHA256 = r"^[0-9a-f]{64}$"
_DATE = r"^\d{4}-\d\d-\d\d$"
#: What each pattern asks for, in words, for messages.
FORMS = {
    _NAME: "a name of letters, digits and . _ + -",
    _VERSION: "a version such as 12.8",
    _REPO: "a repository id such as org/name",
    _PYTHON: "a Python version such as 3.11",
    _GPU: "a GPU architecture such as sm_90",
    _URL: "an address that begins with https:// or http://",
    _SHA256: "64 lower-case hexadecimal digits",
    _DATE: "a date such as 2026-11-30",
}

Text: TypeAlias = Annotated[str, StringConstraints(min_length=1)]
Name: TypeAlias = Annotated[str, StringConstraints(pattern=_NAME)]
VersionText: TypeAlias = Annotated[str, StringConstraints(pattern=_VERSION)]


def _repository(text: str) -> str:
    if wrong := [run for run in ("--", "..") if run in text]:
        raise ValueError(f"{text!r} has {wrong[0]!r}, which no Hub client takes in an id")
    return text


RepoId: TypeAlias = Annotated[
    str, StringConstraints(pattern=_REPO, max_length=96), AfterValidator(_repository)
]


def _requirement(text: str) -> str:
    """A line as requirement files have them; docs/requirements.md lists the forms."""
    from mirror.core.requirements import lines, values
    from mirror.core.requirements import text as texts

    wrong: list[str] = []
    for line in texts.lines(text, lambda _: ""):
        found = [line] if isinstance(line, values.Mistake) else lines.entries(line)
        wrong += [entry.text for entry in found if isinstance(entry, values.Mistake)]
    if wrong:
        raise ValueError("; ".join(wrong))
    return text


def _without_credentials(url: str, elsewhere: str) -> str:
    if "@" in url.split("//", 1)[1].split("/", 1)[0]:
        raise ValueError(
            f"a manifest holds no credentials; they come from netrc, or from {elsewhere}"
        )
    return url


def _index(url: str) -> str:
    return _without_credentials(url, "UV_INDEX_NAME_USERNAME and UV_INDEX_NAME_PASSWORD")


def _endpoint(url: str) -> str:
    return _without_credentials(url, "HF_TOKEN")


def _pinned(indexes: dict[str, Any]) -> dict[str, Any]:
    for name, index in indexes.items():
        if name != "default" and not index.only:
            raise ValueError(
                f"{name} needs `only: [PACKAGE, ...]`: without it, any package could be taken from"
                " there in place of the one that was meant"
            )
        if name == "default" and index.only:
            raise ValueError("every package without an index of its own comes from `default`")
    return indexes


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


def _revision(text: str) -> str:
    if reason := paths.problem(text):
        raise ValueError(f"no revision is called so: it {reason}")
    return text


Revision: TypeAlias = Annotated[str, StringConstraints(min_length=1), AfterValidator(_revision)]
EndpointUrl: TypeAlias = Annotated[str, StringConstraints(pattern=_URL), AfterValidator(_endpoint)]
RequirementText: TypeAlias = Annotated[str, AfterValidator(_requirement)]
ProvidedText: TypeAlias = Annotated[str, AfterValidator(_provided)]


class Section(BaseModel):
    """A table of the manifest: unknown keys are mistakes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TargetSection(Section):
    """The machine the bundle is for. What is left out is taken from the machine that builds.

    provided: packages that it has, with or without a version: never carried.
    inventory: a file that `mirror probe` wrote on that machine: what stands beside it wins, and its
    packages are provided. carry: those of them that are carried all the same.
    """

    python: Annotated[str, StringConstraints(pattern=_PYTHON)] | None = None
    platform: Annotated[str, AfterValidator(_platform)] | None = None
    glibc: VersionText | None = None
    cuda: VersionText | None = None
    driver: VersionText | None = None
    gpus: list[Annotated[str, StringConstraints(pattern=_GPU)]] = []
    provided: list[ProvidedText] = []
    inventory: Text | None = None
    carry: list[Text] = []


class IndexSection(Section):
    """A package index, and the packages that come from it and from no other.

    only: left out for the index called `default` alone, which every other package comes from.
    flat: the address is a page of links to files (find-links).
    """

    url: Annotated[str, StringConstraints(pattern=_URL), AfterValidator(_index)]
    only: list[Text] = []
    flat: bool = False


class WheelsSection(Section):
    """Python packages, and how they are resolved.

    requirements: specifiers and whatever docs/requirements.md lists.
    resolver: which program resolves. sdists: whether a package that has no wheel may be built into
    one for any machine. build: packages that may be built for the builder's own platform.
    exclude-newer: files uploaded later than this date do not exist. installer: which program
    installs on the server. pip leaves uv out of the bundle, and is started for `--into` alone.
    """

    requirements: list[RequirementText] = Field(min_length=1)
    indexes: Annotated[dict[Name, IndexSection], AfterValidator(_pinned)] = {}
    resolver: Literal["uv", "pip-tools"] = "uv"
    sdists: Literal["pure", "never"] = "pure"
    build: list[Text] = []
    exclude_newer: Annotated[str, StringConstraints(pattern=_DATE)] | None = Field(
        default=None, alias="exclude-newer"
    )
    installer: Literal["uv", "pip"] = "uv"


class CondaSection(Section):
    """Conda packages, as match specs, from channels by URL, by name or in a folder.

    environment: an environment.yml, whose channels and packages come first; its pip part is added
        to the wheels. link-scripts: packages that may run scripts while they are installed.
    """

    channels: list[Text] = []
    packages: list[Text] = []
    environment: Text | None = None
    link_scripts: list[Text] = Field(default=[], alias="link-scripts")

    @model_validator(mode="after")
    def _asks_for_something(self) -> CondaSection:
        if not self.environment and not (self.channels and self.packages):
            raise ValueError("it needs `channels` and `packages`, or `environment`")
        return self


class Repository(Section):
    """What is carried of a repository's files, a model's, a dataset's or a space's.

    include, exclude: patterns; `*` stands for any text, a folder's name with / at the end for all
        that is in it. What both match is left out.
    weights: safetensors: other formats are left out where safetensors stand beside them; none: no
        weights at all. Left out, it is safetensors for a model without `include`, else all.
    pickles: patterns of the pickles that are carried although the scan finds them dangerous.
    trust_remote_code: whether the repository's Python code is carried.
    """

    include: list[Text] = []
    exclude: list[Text] = []
    weights: Literal["safetensors", "all", "none"] | None = None
    pickles: list[Text] = []
    trust_remote_code: bool = False


class HubRepository(Repository):
    """A repository of a Hub.

    revision: a branch, a tag or a commit, resolved once. default: whether it is the one that loads
    without a revision, where several are carried. from_cache: whether this machine's own cache of
    the Hub is looked into first.
    """

    repo: RepoId
    revision: Revision = "main"
    default: bool = False
    from_cache: bool = False

    @property
    def id(self) -> str:
        """What it is loaded by."""
        return self.repo


class FolderRepository(Repository):
    """A folder on this machine, such as a checkpoint, given a repository id of its own."""

    path: Text
    name: RepoId
    revision: ClassVar[str] = "main"
    default: ClassVar[bool] = True

    @property
    def id(self) -> str:
        """What it is loaded by."""
        return self.name


class WheelRepository(Repository):
    """A folder inside a wheel of the package index, given a repository id of its own.

    wheel: NAME or NAME==VERSION. folder: inside the wheel; left out, the one folder there that
    describes a model.
    """

    wheel: ProvidedText
    name: RepoId
    folder: Text | None = None
    revision: ClassVar[str] = "main"
    default: ClassVar[bool] = True

    @property
    def id(self) -> str:
        """What it is loaded by."""
        return self.name


#: What an item of `models`, `datasets` and `spaces` can be, when it is not an id alone.
REPOSITORIES = (HubRepository, FolderRepository, WheelRepository)


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
    checks: further ones, of programs that the environment has: whether Ray runs a task a GPU,
        whether vLLM generates with the model.
    """

    model: RepoId | None = None
    imports: list[Text] = []
    steps: int = Field(default=40, ge=10, le=10_000)
    precision: Literal["no", "fp16", "bf16"] = "no"
    checks: list[Literal["ray", "vllm"]] = []


def _shape(value: Any) -> str:
    if isinstance(value, str):
        return ".text"
    keys = value if isinstance(value, dict) else type(value).model_fields
    return ".wheel" if "wheel" in keys else ".folder" if "path" in keys else ".hub"


# Tags begin with a dot, which no key does: in the place of a mistake they are not the manifest's.
RepositoryItem: TypeAlias = Annotated[
    Annotated[RepoId, Tag(".text")]
    | Annotated[FolderRepository, Tag(".folder")]
    | Annotated[WheelRepository, Tag(".wheel")]
    | Annotated[HubRepository, Tag(".hub")],
    Discriminator(_shape),
]
FileItem: TypeAlias = Annotated[
    Annotated[LocalFile, Tag(".local")] | Annotated[RemoteFile, Tag(".remote")],
    Discriminator(lambda value: ".remote" if "url" in _keys(value) else ".local"),
]


def _keys(value: Any) -> Any:
    return value if isinstance(value, dict) else getattr(value, "model_fields_set", ())


class Manifest(Section):
    """What one project needs.

    endpoint: address of the Hub; left out, HF_ENDPOINT's, else the Hub client's own.
    """

    name: Name
    version: Name
    target: TargetSection = TargetSection()
    endpoint: EndpointUrl | None = None
    wheels: WheelsSection | None = None
    conda: CondaSection | None = None
    models: list[RepositoryItem] = []
    datasets: list[RepositoryItem] = []
    spaces: list[RepositoryItem] = []
    files: list[FileItem] = []
    verify: VerifySection = VerifySection()


def json_schema() -> dict[str, Any]:
    """The manifest's JSON Schema, for editors."""
    return Manifest.model_json_schema()
