"""The exact artifacts that a manifest resolved to, as TOML that reads well in a `git diff`.

No host name stands in it: an index or a channel is recorded by its name, so that one lock builds
through any mirror of the same index.
"""

from __future__ import annotations

import hashlib
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mirror.core.artifact import Artifact, Json
from mirror.core.target import Target
from mirror.errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FORMAT = 1
_HEAD = """\
# Written by `mirror lock`. Commit it beside its manifest; do not edit it.
"""
#: Keys of an artifact's table that are not its origin.
_OWN = ("path", "size", "sha256", "executable")
#: Text and keys that stand in TOML as they are.
_PLAIN = re.compile(r'[^"\\\x00-\x1f\x7f]*')
_BARE = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)  # without slots: its bytes are kept once they are asked for
class Lock:
    """What one manifest resolved to.

    inputs: digest of everything the resolution read: manifest sections, target, named files.
    target: the complete target, with what the manifest left out taken from the builder.
    artifacts: sorted by kind and path.
    """

    inputs: str
    target: Target
    artifacts: tuple[Artifact, ...]

    def to_bytes(self) -> bytes:
        """The lock file's bytes."""
        return self._bytes

    @cached_property
    def _bytes(self) -> bytes:
        import tomli_w

        about = {"format": FORMAT, "inputs": self.inputs, "target": self.target.to_json()}
        tables = [_table(a) for a in sorted(self.artifacts, key=lambda a: (a.kind, a.path))]
        return "\n".join([_HEAD + tomli_w.dumps(about, indent=2), *tables]).encode()

    @cached_property
    def digest(self) -> str:
        """sha256 of the lock file's bytes."""
        return hashlib.sha256(self.to_bytes()).hexdigest()


def parse(data: bytes, source: str) -> Lock:
    """The lock that these bytes spell; `source` is its file's name, for messages.

    Raises UsageError when they spell none: the cure is always to lock again.
    """
    try:
        document: dict[str, Any] = tomllib.loads(data.decode("utf-8"))
        if document.pop("format", None) != FORMAT:
            raise ValueError(f"it is not a lock of format {FORMAT}")
        inputs, target = document.pop("inputs"), Target.from_json(document.pop("target"))
        artifacts = [
            _artifact(kind, table) for kind, tables in document.items() for table in tables
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{source} is not a lock that this mirror can read: {error}",
            hint="Remove it and run `mirror lock` again.",
        ) from None
    return Lock(inputs=str(inputs), target=target, artifacts=tuple(artifacts))


def _artifact(kind: str, table: Mapping[str, Json]) -> Artifact:
    size, executable = table["size"], table.get("executable", False)
    if not isinstance(size, int) or not isinstance(executable, bool):
        raise ValueError(f"{kind}: {table.get('path')} has a size or mode of the wrong type")
    return Artifact(
        kind=kind,
        path=str(table["path"]),
        size=size,
        sha256=str(table["sha256"]),
        executable=executable,
        origin={key: value for key, value in table.items() if key not in _OWN},
    )


def _table(artifact: Artifact) -> str:
    """An artifact's table as tomli_w writes it, which takes several times as long."""
    import tomli_w

    table: dict[str, Any] = {"path": artifact.path}
    table |= {"executable": True} if artifact.executable else {}
    table |= {key: _without_null(value) for key, value in sorted(artifact.origin.items())}
    table |= {"size": artifact.size, "sha256": artifact.sha256}
    lines = [f"[[{artifact.kind}]]\n"]
    for key, value in table.items():
        if isinstance(value, str) and _PLAIN.fullmatch(value) and _BARE.fullmatch(key):
            lines.append(f'{key} = "{value}"\n')
        elif isinstance(value, (bool, int)) and _BARE.fullmatch(key):
            lines.append(f"{key} = {str(value).lower()}\n")
        else:  # this line, or what has to stand after all lines
            return tomli_w.dumps({artifact.kind: [table]}, indent=2)
    return "".join(lines)


def _without_null(value: Json) -> Json:
    """TOML has no null; in every format that origins come from, null and absent mean the same."""
    if isinstance(value, Mapping):
        return {key: _without_null(item) for key, item in value.items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_without_null(item) for item in value if item is not None]
    return value
