"""The bill of materials as a reader takes it, and the table of licences; docs/record.md."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mirror.core import parts
from mirror.core.artifact import Artifact, Json
from mirror.core.index import SBOM_NAME, Index
from mirror.core.parts import Part
from mirror.core.paths import shown
from mirror.core.text import counted, human_size
from mirror.errors import BundleError, UsageError

#: No bill is larger: 256 MiB hold about half a million files.
MAX_BYTES = 256 * 2**20
_WIDTH, _LINES = 80, 8
_UNKNOWN = "unknown"


def find(index: Index, name: str) -> Artifact:
    """The bill among the artifacts of a bundle that is called `name`.

    Raises UsageError for a bundle that has none, BundleError for one that is too large to be read.
    """
    for artifact in index.of_kind("bundle"):
        if artifact.path == SBOM_NAME:
            if artifact.size > MAX_BYTES:
                raise BundleError(
                    f"the bill of materials of {name} is {human_size(artifact.size)} long; at most"
                    f" {human_size(MAX_BYTES)} are read"
                )
            return artifact
    raise UsageError(
        f"{name} has no bill of materials: mirror {shown(index.tool)} made none when it was built",
        hint="Build it again with this mirror. What it holds, and the licences that it states, are"
        " told all the same: --files, --licences",
    )


def parsed(data: bytes, name: str) -> tuple[str, Json]:
    """A bill's text and the document that it spells.

    Raises BundleError for what mirror would not write: no JSON, or what a
    terminal would obey.
    """
    try:
        text = data.decode("ascii")
        document: Json = json.loads(text)
    except (ValueError, RecursionError) as error:
        what = shown(str(error))
        raise BundleError(f"the bill of materials of {name} is no JSON in ASCII: {what}") from None
    if not all(line.isprintable() for line in text.split("\n")):
        raise BundleError(f"the bill of materials of {name} has control characters in it")
    return text, document


@dataclass(frozen=True, slots=True)
class Row:
    """What stands under one licence. licence: empty for what states none."""

    licence: str
    parts: Sequence[Part]

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(part.size for part in self.parts)


def rows(artifacts: Iterable[Artifact]) -> list[Row]:
    """A row a licence: those of most parts first, and at the very end what states none."""
    groups: dict[str, list[Part]] = {}
    for part in parts.of(artifacts):
        groups.setdefault(part.licence, []).append(part)
    found = [Row(licence, sorted(group, key=_order)) for licence, group in groups.items()]
    return sorted(found, key=lambda row: (not row.licence, -len(row.parts), row.licence))


def _order(part: Part) -> tuple[str, str, str]:
    return part.name.casefold(), part.version, part.path


def lines(found: Sequence[Row]) -> list[str]:
    """For people, in 80 columns; of very many names the first."""
    text: list[str] = []
    for row in found:
        title = shown(row.licence) if row.licence else f"{_UNKNOWN.upper()}: nothing states one"
        about = f"{counted(len(row.parts), 'part')}, {human_size(row.size)}"
        head = textwrap.wrap(title, _WIDTH - len(about) - 2) or [""]
        text.append(f"{head[0]:{_WIDTH - len(about) - 2}}  {about}")
        text += [f"  {line}" for line in head[1:]]
        names = ", ".join(dict.fromkeys(_name(part) for part in row.parts))
        wrapped = textwrap.wrap(
            names, _WIDTH, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False
        )
        text += wrapped[:_LINES]
        if wrapped[_LINES:]:
            text.append("    and more: --json names all of them")
    unknown = sum(len(row.parts) for row in found if not row.licence)
    total = sum(len(row.parts) for row in found)
    state = f"{unknown:,} of them without a known licence" if unknown else "every licence known"
    return [*text, f"{counted(total, 'part')}, {state}"]


def _name(part: Part) -> str:
    version = part.version[:12] if part.kind in parts.REPOSITORIES else part.version
    return shown(f"{part.name} {version}".strip())


def to_json(found: Sequence[Row]) -> Json:
    """For programs; `license` is null where none is stated, sizes are bytes."""
    return [
        {
            "license": row.licence or None,
            "count": len(row.parts),
            "bytes": row.size,
            "parts": [
                {
                    "kind": part.kind,
                    "name": part.name,
                    "version": part.version or None,
                    "path": part.path,
                    "bytes": part.size,
                }
                for part in row.parts
            ],
        }
        for row in found
    ]
