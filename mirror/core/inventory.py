"""What a server has, as `mirror probe` writes it down there and a manifest's target takes it.

It is a JSON document, or its summary (mirror.core.summary): less of the same document, for a person
who may carry nothing out but a photo of the screen.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from typing import Any

from mirror.core import paths
from mirror.core import summary as summaries
from mirror.core.artifact import Json
from mirror.core.target import PLATFORMS
from mirror.errors import UsageError

FORMAT = 1
#: No summary is longer, in characters.
MAX_SUMMARY = 2000
_HINT = "Write one on the server: mirror probe --env ENV -o FILE"
#: What names, versions and builds of conda packages are made of.
_WORD = re.compile(r"[A-Za-z0-9_.+!-]+")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class CondaPackage:
    """A conda package in an environment.

    python: whether it is a Python, or brings packages for one.
    """

    name: str
    version: str
    build: str
    subdir: str
    python: bool


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU as its driver names it.

    memory: MiB, None when the driver does not say it. capability: "9.0"; empty when it does not.
    """

    name: str
    memory: int | None
    capability: str
    uuid: str

    @property
    def architecture(self) -> str:
        """As a target's `gpus` have it: "sm_90"; empty when it is not known."""
        return f"sm_{self.capability.replace('.', '')}" if self.capability else ""


@dataclass(frozen=True, slots=True)
class Inventory:
    """Facts of a server. What could not be found out is empty, or None.

    python: "3.11". packages: "name==version", sorted. conda: the conda packages of the environment,
    by name; none when conda did not make it.
    cpu: the model's name. level: the CPU's "x86-64-v3". memory: of the machine, in bytes.
    driver: of NVIDIA. cuda: the newest that it runs. gpus: None when the driver could not be asked.
    bundle: digest of the bundle in use in the root. bundles: of every generation there, newest
    first. held: sha256 of every artifact in its store, sorted. free: bytes free for the root.
    omitted: what a summary leaves out for want of room ("packages", "conda", "held").
    """

    python: str
    platform: str
    glibc: str
    packages: tuple[str, ...]
    conda: tuple[CondaPackage, ...] = ()
    cpu: str = ""
    level: str = ""
    memory: int | None = None
    driver: str = ""
    cuda: str = ""
    gpus: tuple[Gpu, ...] | None = None
    bundle: str | None = None
    bundles: tuple[str, ...] = ()
    held: tuple[str, ...] | None = None
    free: int | None = None
    omitted: tuple[str, ...] = ()

    @property
    def architectures(self) -> tuple[str, ...]:
        """Of the GPUs, as a target's `gpus` have them; without those that are not known."""
        return tuple(sorted({gpu.architecture for gpu in self.gpus or () if gpu.capability}))

    def to_json(self) -> dict[str, Json]:
        """The file's document: what is not known is not in it."""
        document: dict[str, Json] = {
            "format": FORMAT,
            "python": self.python,
            "platform": self.platform,
            "glibc": self.glibc,
            "packages": list(self.packages),
        }
        more: dict[str, Json] = {
            "conda": [asdict(item) for item in self.conda] or None,
            "cpu": self.cpu or None,
            "level": self.level or None,
            "memory": self.memory,
            "driver": self.driver or None,
            "cuda": self.cuda or None,
            "gpus": None if self.gpus is None else [asdict(gpu) for gpu in self.gpus],
            "bundle": self.bundle,
            "bundles": list(self.bundles) or None,
            "held": None if self.held is None else list(self.held),
            "free": self.free,
            "omitted": list(self.omitted) or None,
        }
        return document | {key: value for key, value in more.items() if value is not None}


def is_one(data: bytes) -> bool:
    """Whether these bytes are meant as an inventory or its summary, rightly spelled or not."""
    return _is_json(data) or summaries.begins(data)


def _is_json(data: bytes) -> bool:
    return data.decode(json.detect_encoding(data), "replace").lstrip().startswith("{")


def parse(data: bytes, source: str) -> Inventory:
    """The inventory that these bytes spell, or its summary. Raises UsageError when they do not."""
    if not _is_json(data) and summaries.begins(data):
        data = summaries.opened(data, source)
    try:
        try:
            document = json.loads(data)
        except ValueError as error:
            raise ValueError(f"it is no JSON, and no summary: {error}") from None
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ValueError(f"it is not an inventory of format {FORMAT}")
        return _from_document(document)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(
            f"{source} is not an inventory: {paths.shown(str(error))}", hint=_HINT
        ) from None


def _from_document(document: dict[str, Any]) -> Inventory:
    """Raises KeyError, TypeError or ValueError for anything else."""
    texts = [document[key] for key in ("python", "platform", "glibc")]
    packages = document["packages"]
    if not all(isinstance(text, str) for text in (*texts, *packages)):
        raise ValueError("a value is not text")
    if document["platform"] not in PLATFORMS:
        raise ValueError(f"its platform is none of {', '.join(PLATFORMS)}")
    if odd := [item for item in packages if item.count("==") != 1]:
        raise ValueError(f"{odd[0]!r} is not NAME==VERSION")
    held, gpus, bundle = document.get("held"), document.get("gpus"), document.get("bundle")
    return Inventory(
        python=texts[0],
        platform=texts[1],
        glibc=texts[2],
        packages=tuple(sorted(packages)),
        conda=tuple(_conda_package(item) for item in document.get("conda", [])),
        cpu=_text(document, "cpu"),
        level=_text(document, "level"),
        memory=_count(document, "memory"),
        driver=_version(document, "driver"),
        cuda=_version(document, "cuda"),
        gpus=None if gpus is None else tuple(_gpu(item) for item in gpus),
        bundle=None if bundle is None else _hash(bundle),
        bundles=tuple(map(_hash, document.get("bundles", []))),
        held=None if held is None else tuple(sorted(map(_hash, held))),
        free=_count(document, "free"),
        omitted=tuple(map(str, document.get("omitted", []))),
    )


def _conda_package(item: dict[str, Json]) -> CondaPackage:
    """Raises KeyError, TypeError or ValueError for anything else."""
    name, version, build, subdir = (
        str(item[key]) for key in ("name", "version", "build", "subdir")
    )
    if odd := [text for text in (name, version, build, subdir) if not _WORD.fullmatch(text)]:
        raise ValueError(f"{odd[0]!r} is no part of a conda package's name")
    return CondaPackage(name, version, build, subdir, python=item["python"] is True)


def _gpu(item: dict[str, Json]) -> Gpu:
    """Raises KeyError, TypeError or ValueError for anything else."""
    name, capability, uuid = (str(item[key]) for key in ("name", "capability", "uuid"))
    if not re.fullmatch(r"(\d+\.\d+)?", capability):
        raise ValueError(f"{capability!r} is no compute capability")
    return Gpu(name, _count(item, "memory"), capability, uuid)


def _text(document: dict[str, Any], key: str) -> str:
    value = document.get(key, "")
    if not isinstance(value, str):
        raise ValueError(f"{key} is not text")
    return value


def _version(document: dict[str, Any], key: str) -> str:
    value = _text(document, key)
    if not re.fullmatch(r"(\d+(\.\d+)*)?", value):
        raise ValueError(f"{key} is no version")
    return value


def _count(document: dict[str, Any], key: str) -> int | None:
    value = document.get(key)
    if value is not None and (type(value) is not int or value < 0):
        raise ValueError(f"{key} is not a number")
    return value


def _hash(value: object) -> str:
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise ValueError(f"{value!r:.80} is not a sha256")
    return value


def summary(inventory: Inventory) -> list[str]:
    """The inventory as words of capital letters and digits, of at most MAX_SUMMARY characters.

    Set apart by any white space they are the same. Hashes of artifacts are not in it: the digests
    of the bundles say as much to a builder that has these. Packages are, where there is room.
    Raises UsageError when nothing that may be left out makes it short enough.
    """
    short = replace(inventory, held=None)
    if inventory.held is not None:
        short = replace(short, omitted=(*short.omitted, "held"))
    for name in (None, "conda", "packages", "bundles"):
        if name and getattr(short, name):
            less: dict[str, Any] = {name: (), "omitted": (*short.omitted, name)}
            short = replace(short, **less)
        text = json.dumps(short.to_json(), separators=(",", ":"), ensure_ascii=False)
        words = summaries.words(text.encode())
        if sum(len(word) + 1 for word in words) <= MAX_SUMMARY:
            return words
    raise UsageError("this inventory has no summary that is short enough", hint=_HINT)
