"""One file to carry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"


@dataclass(frozen=True, slots=True)
class Artifact:
    """One file to carry: what it is, where it goes, exactly which bytes, and where they come from.

    kind: the ecosystem that resolved it and will deploy it ("wheels", "conda", "models", ...).
    path: its place in the bundle, relative, with forward slashes.
    size: in bytes.
    sha256: of its bytes, 64 lower-case hexadecimal digits.
    executable: whether it is unpacked with mode 0755 rather than 0644.
    origin: what its ecosystem needs to fetch and to deploy it (index and file name, repository and
        commit, a conda record). Never a host name and never a secret: it is written to the lock and
        into every bundle.
    """

    kind: str
    path: str
    size: int
    sha256: str
    executable: bool = False
    origin: Mapping[str, Json] = field(default_factory=dict, hash=False)

    @property
    def mode(self) -> int:
        """The file mode in the bundle: 0755 or 0644, nothing else exists."""
        return 0o755 if self.executable else 0o644

    def text(self, key: str, default: str = "") -> str:
        """The origin's `key` as text, `default` where it is absent or no text."""
        value = self.origin.get(key, default)
        return value if isinstance(value, str) else default
