"""A bundle in volumes: plain ranges of its bytes, and a list by which each can be checked alone.

Docs: docs/format.md. `cat NAME.0*` is the bundle. The list says what was sent, so that a missing or
damaged volume has a name; what may be believed of the bundle is the reader's to decide all the
same, byte by byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mirror.core import paths, strict_json
from mirror.core.artifact import Json
from mirror.core.index import canonical
from mirror.errors import BundleError, TargetError

FORMAT = 1
LIST_SUFFIX = ".volumes.json"
#: No list is longer, and no bundle has more volumes.
MAX_LIST_BYTES = 16 * 2**20
MAX_VOLUMES = 9_999
_SHA256 = re.compile(r"[0-9a-f]{64}")
#: A volume's, or that of a file with recovery data (as par2 names them), or of a list's signature.
_PART_NAME = re.compile(r"(.+?)(\.[0-9]{3,4}|(\.vol[0-9]+\+[0-9]+)?\.par2|\.volumes\.json\.sig)")


@dataclass(frozen=True, slots=True)
class Part:
    """A file of the set: a volume, or one of the files with recovery data."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class VolumeList:
    """What NAME.volumes.json says.

    bundle: digest of the index. size: of the whole, in bytes. volumes: in order.
    recovery: files from which lost volumes can be made again, in PAR2's format.
    """

    bundle: str
    size: int
    volumes: tuple[Part, ...]
    recovery: tuple[Part, ...] = ()

    @property
    def name(self) -> str:
        """Of the bundle: what its volumes' names begin with."""
        return self.volumes[0].name.rpartition(".")[0]

    def to_bytes(self) -> bytes:
        """The one canonical spelling."""
        document: dict[str, Json] = {
            "format": FORMAT,
            "bundle": self.bundle,
            "bytes": self.size,
            "volumes": [asdict(part) for part in self.volumes],
            "recovery": [asdict(part) for part in self.recovery],
        }
        return canonical(document) + b"\n"


def list_path(target: Path) -> Path:
    """Where the list of a bundle's volumes is; target: where the bundle itself would be."""
    return target.with_name(target.name + LIST_SUFFIX)


def bundle_name(file: str) -> str | None:
    """Of which bundle's volumes a file of this name is a part; None when it is of none."""
    if file.endswith(LIST_SUFFIX):
        return file[: -len(LIST_SUFFIX)] or None
    found = _PART_NAME.fullmatch(file)
    return found[1] if found else None


def read_list(path: Path) -> VolumeList:
    """The list in a file. Raises BundleError for a wrong one, TargetError for one of the future."""
    try:
        data = read_bytes(path)
    except OSError as error:
        raise BundleError(f"{path} cannot be read: {error.strerror}") from None
    return parse_list(data, path)


def read_bytes(path: Path) -> bytes:
    """A list's bytes, of one that is too long as many as show it. Raises OSError."""
    with open(path, "rb") as file:
        return file.read(MAX_LIST_BYTES + 1)


def parse_list(data: bytes, path: Path) -> VolumeList:
    """The list that these bytes of a file spell. Raises as `read_list` does."""
    hint = "Send it again; it is small."
    try:
        document = strict_json.loads(data) if len(data) <= MAX_LIST_BYTES else None
        number = document.get("format") if isinstance(document, dict) else None
        if type(number) is int and number > FORMAT:
            raise TargetError(
                f"{path} has format {number}; this mirror reads format {FORMAT}",
                hint="Join the volumes and install the bundle with the mirror that it carries.",
            )
        found = _parse(document)
        if found.to_bytes() != data:
            raise ValueError("it is not in canonical form")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = paths.named(str(error))
        raise BundleError(f"{path} is no list of volumes: {reason}", hint=hint) from None
    return found


def _parse(document: Any) -> VolumeList:
    if not isinstance(document, dict) or not _SHA256.fullmatch(str(document["bundle"])):
        raise ValueError("bundle is not a digest")
    made = VolumeList(
        bundle=document["bundle"],
        size=document["bytes"],
        volumes=tuple(map(_part, document["volumes"])),
        recovery=tuple(map(_part, document["recovery"])),
    )
    if not 0 < len(made.volumes) <= MAX_VOLUMES or len(made.recovery) > MAX_VOLUMES:
        raise ValueError("it has no volumes, or too many")
    if [v.name for v in made.volumes] != list(names(made.name, len(made.volumes))):
        raise ValueError("the volumes' names do not count up from 1")
    if made.size != sum(v.size for v in made.volumes):
        raise ValueError("the volumes' sizes do not add up")
    found = list(paths.problems(p.name for p in (*made.volumes, *made.recovery)))
    if odd := [p.name for p in made.recovery if not p.name.startswith(f"{made.name}.")]:
        found.append(f"{odd[0]!r} is another bundle's")
    if found:
        raise ValueError(found[0])
    return made


def _part(item: Any) -> Part:
    name, size, sha256 = item["name"], item["size"], item["sha256"]
    if not isinstance(name, str) or "/" in name:
        raise ValueError(f"{name!r:.300} is no file's name")
    if type(size) is not int or size < 0 or not _SHA256.fullmatch(sha256):
        raise ValueError(f"{name!r:.300} is not described as a volume is")
    return Part(name, size, sha256)


def names(name: str, count: int) -> Iterator[str]:
    """What the volumes of a bundle are called: NAME.001 and on."""
    width = max(3, len(str(count)))
    return (f"{name}.{number:0{width}}" for number in range(1, count + 1))
