"""The bundle's first member: canonical JSON that lists every artifact.

Docs: docs/format.md. Parsing is strict: bytes that this module would not itself write are refused,
so an index has exactly one spelling and its sha256 (`Index.digest`) names the whole bundle.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice

from mirror.core import paths, strict_json
from mirror.core.artifact import Artifact, Json
from mirror.core.target import Target
from mirror.errors import BundleError, TargetError

FORMAT = 1
INDEX_NAME = "mirror-bundle.json"
SIGNATURE_NAME = "mirror-bundle.json.sig"
#: The bill of materials, among the artifacts.
SBOM_NAME = "sbom.cdx.json"
#: No index is longer, nor has more artifacts.
MAX_INDEX_BYTES = 256 * 2**20
MAX_ARTIFACTS = 1_000_000
MAX_SIGNATURE_BYTES = 64 * 2**10
#: No artifact is larger: 2**53 is what every JSON reader keeps exactly.
MAX_SIZE = 2**53
_SHA256 = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._+-]{0,99})")
_KIND = re.compile(r"[a-z][a-z0-9-]{0,31}")


@dataclass(frozen=True, slots=True)
class Entry:
    """An artifact of the index, and whether this bundle ships its bytes."""

    artifact: Artifact
    shipped: bool = True


@dataclass(frozen=True, slots=True)
class Provenance:
    """What a bundle was made from, besides its lock.

    manifest: sha256 of the manifest's bytes. time: seconds since 1970 that whoever built it has
    given it (SOURCE_DATE_EPOCH), never the builder's clock; None when nobody did.
    """

    manifest: str
    time: int | None = None


@dataclass(frozen=True)  # without slots: its bytes are kept once they are asked for
class Index:
    """What a bundle holds.

    name, version: as in the manifest.
    tool: version of mirror that packed it.
    lock: sha256 of the lock it was packed from.
    target: the machine it is for; None when everything in it fits any machine.
    verify: the manifest's `verify` section, for `mirror verify` on the server.
    entries: every artifact of the complete set, in the order of their bytes in the bundle.
    base: digest of the bundle that an incremental one builds on, else None.
    provenance: None for a bundle of a mirror that did not record it.
    """

    name: str
    version: str
    tool: str
    lock: str
    target: Target | None
    entries: tuple[Entry, ...]
    verify: Mapping[str, Json] = field(default_factory=dict, hash=False)
    base: str | None = None
    provenance: Provenance | None = None

    @property
    def artifacts(self) -> list[Artifact]:
        """Every artifact of the set, shipped or not."""
        return [entry.artifact for entry in self.entries]

    @property
    def shipped(self) -> list[Artifact]:
        """The artifacts whose bytes follow the index, in the order in which they follow."""
        return [entry.artifact for entry in self.entries if entry.shipped]

    @cached_property
    def digest(self) -> str:
        """sha256 of the canonical bytes: the name of the bundle."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def of_kind(self, kind: str) -> list[Artifact]:
        """The artifacts of one ecosystem."""
        return [artifact for artifact in self.artifacts if artifact.kind == kind]

    def to_bytes(self) -> bytes:
        """The one canonical spelling: sorted keys, no spaces, ASCII, a line feed at the end."""
        return self._bytes

    @cached_property
    def _bytes(self) -> bytes:
        document: dict[str, Json] = {
            "format": FORMAT,
            "name": self.name,
            "version": self.version,
            "tool": self.tool,
            "lock": self.lock,
            "target": self.target.to_json() if self.target else None,
            "verify": self.verify,
            "base": self.base,
            "artifacts": [_entry_to_json(entry) for entry in self.entries],
        }
        if made := self.provenance:
            document["provenance"] = {"manifest": made.manifest, "time": made.time}
        return canonical(document) + b"\n"


_ENCODER = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
)


def canonical(value: Json) -> bytes:
    """JSON with sorted keys, no spaces, ASCII only: equal values give equal bytes."""
    return _ENCODER.encode(value).encode("ascii")


def parse(data: bytes) -> Index:
    """The index that these bytes spell.

    Raises BundleError for anything that `Index.to_bytes` would not write, and TargetError for a
    format that is newer than this program.
    """
    if len(data) > MAX_INDEX_BYTES:
        raise BundleError(
            f"the index is {len(data)} bytes long; at most {MAX_INDEX_BYTES} are read"
        )
    try:
        document = strict_json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"the index is not JSON: {paths.named(str(error))}") from None
    number = document.get("format") if isinstance(document, dict) else None
    if type(number) is int and number > FORMAT:
        raise TargetError(
            f"the bundle has format {number}; this mirror reads format {FORMAT}",
            hint="Install the mirror that the bundle carries: tar -xzf BUNDLE install.sh tool"
            " && sh install.sh BUNDLE",
        )
    try:
        index = _from_document(document)
    except (ValueError, RecursionError) as error:
        raise BundleError(f"the index is malformed: {paths.named(str(error))}") from None
    names = [INDEX_NAME, SIGNATURE_NAME, *(a.path for a in index.artifacts)]
    if found := list(islice(paths.problems(names), 20)):
        raise BundleError("the index names files that no bundle may hold", problems=found)
    # Every key and type in it has been looked at, so this is what `to_bytes` makes of the index.
    if canonical(document) + b"\n" != data:
        raise BundleError("the index is not in canonical form")
    return index


_KEYS = {"format", "name", "version", "tool", "lock", "target", "verify", "base", "artifacts"}
_OPTIONAL = {"provenance"}
#: The end of the year 9999: later times cannot be written as dates.
MAX_TIME = 253_402_300_799
_ENTRY_KEYS = {"kind", "path", "size", "sha256"}
_ENTRY_OPTIONAL = {"executable", "origin", "held"}


def _entry_to_json(entry: Entry) -> dict[str, Json]:
    artifact = entry.artifact
    table: dict[str, Json] = {
        "kind": artifact.kind,
        "path": artifact.path,
        "size": artifact.size,
        "sha256": artifact.sha256,
    }
    if artifact.executable:
        table["executable"] = True
    if artifact.origin:
        table["origin"] = artifact.origin
    if not entry.shipped:
        table["held"] = True
    return table


def _from_document(document: Json) -> Index:
    if not isinstance(document, dict) or set(document) - _OPTIONAL != _KEYS:
        raise ValueError("its keys are not those of format 1")
    if type(document["format"]) is not int or document["format"] != FORMAT:
        raise ValueError("its format is not 1")
    for key in ("name", "version"):
        _require(_NAME.fullmatch(_text(document[key])), f"{key} is not a plain name")
    _require(_NAME.fullmatch(_text(document["tool"])), "tool is not a version")
    _require(_SHA256.fullmatch(_text(document["lock"])), "lock is not a sha256")
    base = document["base"]
    _require(base is None or _SHA256.fullmatch(_text(base)), "base is not a sha256")
    verify, target, artifacts = document["verify"], document["target"], document["artifacts"]
    _require(isinstance(verify, dict), "verify is not a table")
    _require(target is None or isinstance(target, dict), "target is not a table")
    _require(isinstance(artifacts, list), "artifacts is not a list")
    _require(len(artifacts) <= MAX_ARTIFACTS, f"it has more than {MAX_ARTIFACTS:,} artifacts")
    return Index(
        name=document["name"],
        version=document["version"],
        tool=document["tool"],
        lock=document["lock"],
        target=_target(target),
        verify=verify,
        base=base,
        entries=tuple(_entry(item) for item in artifacts),
        provenance=_provenance(document["provenance"]) if "provenance" in document else None,
    )


def _target(table: Json) -> Target | None:
    if not isinstance(table, dict):
        return None
    target = Target.from_json(table)
    _require(canonical(target.to_json()) == canonical(table), "target is not as it is written")
    return target


def _provenance(table: Json) -> Provenance:
    if not isinstance(table, dict) or set(table) != {"manifest", "time"}:
        raise ValueError("the keys of provenance are not those of format 1")
    manifest, time = _text(table["manifest"]), table["time"]
    _require(_SHA256.fullmatch(manifest), "provenance.manifest is not a sha256")
    sound = time is None or (type(time) is int and 0 <= time <= MAX_TIME)
    _require(sound, "provenance.time is not seconds since 1970")
    return Provenance(manifest, time)


def _entry(item: Json) -> Entry:
    if not isinstance(item, dict):
        raise ValueError("an artifact is not a table")
    keys = set(item)
    _require(
        _ENTRY_KEYS <= keys <= _ENTRY_KEYS | _ENTRY_OPTIONAL,
        "an artifact's keys are not those of format 1",
    )
    path, size = _text(item["path"]), item["size"]
    _require(_KIND.fullmatch(_text(item["kind"])), "kind is not a plain word", path)
    _require(type(size) is int and 0 <= size <= MAX_SIZE, "size is not a byte count", path)
    _require(_SHA256.fullmatch(_text(item["sha256"])), "sha256 is not one", path)
    _require(item.get("executable", True) is True, "executable is not true", path)
    _require(item.get("held", True) is True, "held is not true", path)
    origin = item.get("origin", {})
    _require(isinstance(origin, dict), "origin is not a table", path)
    _require(origin or "origin" not in item, "origin is empty", path)
    return Entry(
        Artifact(
            kind=item["kind"],
            path=path,
            size=size,
            sha256=item["sha256"],
            executable="executable" in item,
            origin=origin,
        ),
        shipped="held" not in item,
    )


def _text(value: Json) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.40} is not text")
    return value


def _require(condition: object, reason: str, path: str | None = None) -> None:
    """path: of the artifact it is about; named only when it is needed, since there are many."""
    if not condition:
        raise ValueError(reason if path is None else f"{path!r:.300}: {reason}")


def total_size(artifacts: Sequence[Artifact]) -> int:
    """The bytes of all these artifacts together."""
    return sum(artifact.size for artifact in artifacts)
