"""The bundle's bill of materials: CycloneDX 1.6 in JSON, as a member of every bundle.

Promise: it follows from the lock, the manifest's name and version, and SOURCE_DATE_EPOCH alone; so
two builds of one lock have the same. It states what the lock records and nothing else: a licence
that nobody states is left out, and so are the needs of what has no metadata.
"""

from __future__ import annotations

import hashlib
import io
import json
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any

import mirror
from mirror.core import index as indexes
from mirror.core import licences, parts
from mirror.core.artifact import Artifact, Json
from mirror.core.parts import Part

if TYPE_CHECKING:
    from cyclonedx.model import ExternalReference, HashType
    from cyclonedx.model.component import Component
    from cyclonedx.model.license import License
    from packageurl import PackageURL

_LIBRARY = "cyclonedx-python-lib"
#: Raised when the same input gives another document: what was kept is made again.
_EDITION = 1


@dataclass(frozen=True, slots=True)
class Subject:
    """What a bill is of.

    lock: its digest. target: for people. artifacts: all that the lock lists, and mirror's own
    wheel. hub: the repositories, as (kind, name), that come from a Hub. time: seconds since 1970
    that it is to name as its own; None for none.
    """

    name: str
    version: str
    lock: str
    target: str
    artifacts: Sequence[Artifact]
    hub: frozenset[tuple[str, str]] = frozenset()
    time: int | None = None

    @property
    def digest(self) -> str:
        """Of all that its bill depends on, the programs that write it too."""
        own = [a.sha256 for a in self.artifacts if a.kind == "tool" and not a.origin]
        about: list[Any] = [self.name, self.version, self.lock, self.target, self.time, own]
        about += [sorted(map(list, self.hub)), mirror.__version__, _EDITION]
        about.append(metadata.version(_LIBRARY))
        return hashlib.sha256(indexes.canonical(about)).hexdigest()


def write(subject: Subject) -> bytes:
    """The bill: ASCII, keys sorted, a line feed at the end, so fit for any terminal."""
    from cyclonedx.model import Property
    from cyclonedx.model.bom import Bom
    from cyclonedx.model.component import Component, ComponentType
    from cyclonedx.model.tool import ToolRepository
    from cyclonedx.output import make_outputter
    from cyclonedx.schema import OutputFormat, SchemaVersion

    found = parts.of(subject.artifacts)
    packages = [part for part in found if part.kind != "files"]
    about = {"mirror:lock:sha256": subject.lock, "mirror:target": subject.target}
    bundle = Component(
        name=subject.name,
        version=subject.version,
        type=ComponentType.APPLICATION,
        bom_ref="bundle",
        properties=[Property(name=name, value=value) for name, value in about.items() if value],
    )
    components = {part.path: _component(part, subject.hub) for part in packages}
    seed = f"urn:mirror:{subject.name}:{subject.version}:{subject.lock}:{subject.time}"
    bom = Bom(components=components.values(), serial_number=uuid.uuid5(uuid.NAMESPACE_URL, seed))
    bom.metadata.component = bundle
    tool = Component(name="mirror", version=mirror.__version__, type=ComponentType.APPLICATION)
    bom.metadata.tools = ToolRepository(components=[tool])
    bom.register_dependency(bundle, components.values())
    for path, needs in _needs(packages).items():
        bom.register_dependency(components[path], [components[other] for other in needs])
    outputter = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6)
    document = json.loads(outputter.output_as_string())
    # The library takes it from the clock.
    document["metadata"].pop("timestamp", None)
    if subject.time is not None:
        document["metadata"]["timestamp"] = _written(subject.time)
    listed = {item["bom-ref"]: item for item in document.pop("components", [])}

    def text(part: Part) -> str:
        if part.kind == "files":
            return _file(part.artifacts[0], part.name)
        if part.kind in parts.REPOSITORIES:
            files = (_file(artifact, artifact.text("file")) for artifact in part.artifacts)
            return "".join(_with_components(listed[part.path], files))
        return _dumped(listed[part.path])

    ordered = sorted(found, key=lambda part: part.path)
    bill = io.BytesIO()
    for piece in _with_components(document, map(text, ordered)):
        bill.write(piece.encode("ascii"))
    bill.write(b"\n")
    return bill.getvalue()


def _component(part: Part, hub: frozenset[tuple[str, str]]) -> Component:
    from cyclonedx.model import Property
    from cyclonedx.model.component import Commit, Component, ComponentType, Pedigree

    kinds = {"models": ComponentType.MACHINE_LEARNING_MODEL, "datasets": ComponentType.DATA}
    kinds["spaces"] = ComponentType.APPLICATION
    first = part.artifacts[0]
    repository = part.kind in parts.REPOSITORIES
    group, _, name = part.name.rpartition("/") if repository else ("", "", part.name)
    commit = "" if repository else first.text("commit")
    return Component(
        name=name,
        group=group or None,
        version=part.version or None,
        type=kinds.get(part.kind, ComponentType.LIBRARY),
        bom_ref=part.path,
        purl=_purl(part, hub),
        licenses=_licenses(part.licence),
        hashes=[] if repository else [_sha256(first.sha256)],
        properties=[Property(name=f"mirror:{k}", value=v) for k, v in _properties(part)],
        external_references=_references(part),
        pedigree=Pedigree(commits=[Commit(uid=commit)]) if commit else None,
    )


def _dumped(item: Json) -> str:
    return json.dumps(item, sort_keys=True, indent=2)


def _with_components(item: Mapping[str, Json], components: Iterable[str]) -> Iterator[str]:
    """What `_dumped` makes of an item with these components, each as it makes it, in pieces."""
    start, key, end = _dumped({**item, "components": []}).partition('"components": [')
    yield start + key
    between, last = "\n    ", ""
    for component in components:
        yield between + component.replace("\n", "\n    ")
        between, last = ",\n    ", "\n  "
    yield last + end


def _file(artifact: Artifact, name: str) -> str:
    """A plain file, or one of a repository, as `_dumped` makes it.

    There may be a hundred thousand: for them the library would take minutes, and `_dumped` longer
    than all the rest of a build.
    """
    return f"""{{
  "bom-ref": {json.dumps(artifact.path)},
  "hashes": [
    {{
      "alg": "SHA-256",
      "content": {json.dumps(artifact.sha256)}
    }}
  ],
  "name": {json.dumps(name)},
  "type": "file"
}}"""


def _properties(part: Part) -> Iterator[tuple[str, str]]:
    """What CycloneDX has no place for, as far as it is known."""
    first = part.artifacts[0]
    yield "kind", part.kind
    yield "path", part.path
    yield "size", str(part.size)
    for key in ("index", "channel", "place", "revision", "gated", "wheel"):
        if value := first.origin.get(key):
            yield key, str(value).lower() if isinstance(value, bool) else str(value)
    tools = first.origin.get("tools")
    for tool in tools if isinstance(tools, (list, tuple)) else ():
        yield "built-with", str(tool)
    if any("pickle" in artifact.origin for artifact in part.artifacts):
        yield "pickle", "true"


def _references(part: Part) -> list[ExternalReference]:
    """The sdist that a wheel was built of; the card of a model, where the bundle has it."""
    from cyclonedx.model import ExternalReference, ExternalReferenceType, XsUri

    def reference(kind: ExternalReferenceType, url: str, sha256: str) -> ExternalReference:
        return ExternalReference(type=kind, url=XsUri(url), hashes=[_sha256(sha256)])

    first = part.artifacts[0]
    if sdist := first.text("sdist"):
        kind = ExternalReferenceType.SOURCE_DISTRIBUTION
        return [reference(kind, sdist, first.text("sdist_sha256"))]
    cards = [a for a in part.artifacts if part.kind == "models" and a.text("file") == "README.md"]
    return [reference(ExternalReferenceType.MODEL_CARD, a.path, a.sha256) for a in cards]


def _purl(part: Part, hub: frozenset[tuple[str, str]]) -> PackageURL | None:
    """Where everybody finds it; None for what is only here: a local file, a folder, a commit."""
    from packageurl import PackageURL

    first = part.artifacts[0]
    if part.kind in ("wheels", "tool") and first.text("index"):
        return PackageURL("pypi", None, part.name, part.version, {"file_name": first.text("file")})
    record = first.origin.get("record")
    if part.kind == "conda" and first.text("channel") and isinstance(record, Mapping):
        kind = "conda" if first.text("file").endswith(".conda") else "tar.bz2"
        about = {"build": str(record.get("build", "")), "channel": first.text("channel")}
        about |= {"subdir": first.text("subdir"), "type": kind}
        return PackageURL("conda", None, part.name, part.version, about)
    if part.kind == "models" and ("models", part.name) in hub:
        group, _, name = part.name.rpartition("/")
        return PackageURL("huggingface", group or None, name, part.version)
    return None


def _licenses(stated: str) -> list[License]:
    """As CycloneDX has it: an id that it knows, an expression, or a name."""
    from cyclonedx import spdx
    from cyclonedx.model.license import (
        DisjunctiveLicense,
        LicenseAcknowledgement,
        LicenseExpression,
    )

    if not stated:
        return []
    declared = LicenseAcknowledgement.DECLARED
    if spdx.is_supported_id(stated):
        return [DisjunctiveLicense(id=stated, acknowledgement=declared)]
    if licences.spdx(stated) == stated:
        return [LicenseExpression(stated, acknowledgement=declared)]
    return [DisjunctiveLicense(name=stated, acknowledgement=declared)]


def _needs(found: Sequence[Part]) -> dict[str, list[str]]:
    """By path, the paths of the parts that a part needs, as far as the lock says it."""
    names: dict[tuple[str, str], str] = {}
    for part in found:
        names[part.kind, part.name] = part.path
        for brought in _each(part.artifacts[0].origin.get("distributions")):
            if isinstance(brought, Mapping):
                names.setdefault(("wheels", str(brought.get("name"))), part.path)
    needs: dict[str, list[str]] = {}
    for part in found:
        origin = part.artifacts[0].origin
        wanted = [str(name) for name in _each(origin.get("requires"))]
        record = origin.get("record")
        if isinstance(record, Mapping):
            wanted = [str(text).split()[0] for text in _each(record.get("depends")) if text]
        paths = {names[part.kind, name] for name in wanted if (part.kind, name) in names}
        if paths - {part.path}:
            needs[part.path] = sorted(paths - {part.path})
    return needs


def _each(value: Any) -> Iterable[Any]:
    return value if isinstance(value, (list, tuple)) else ()


def _sha256(value: str) -> HashType:
    from cyclonedx.model import HashAlgorithm, HashType

    return HashType(alg=HashAlgorithm.SHA_256, content=value)


def _written(seconds: int) -> str:
    from datetime import datetime, timezone

    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
