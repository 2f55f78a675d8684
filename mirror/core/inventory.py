"""What a server has, as `mirror probe` writes it down there and a manifest's target takes it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from mirror.core import paths
from mirror.core.artifact import Json
from mirror.core.target import PLATFORMS
from mirror.errors import UsageError

FORMAT = 1


@dataclass(frozen=True, slots=True)
class Inventory:
    """Facts of a server. python: "3.11". packages: "name==version", sorted."""

    python: str
    platform: str
    glibc: str
    packages: tuple[str, ...]

    def to_json(self) -> dict[str, Json]:
        """The file's document."""
        return {
            "format": FORMAT,
            "python": self.python,
            "platform": self.platform,
            "glibc": self.glibc,
            "packages": list(self.packages),
        }


def parse(data: bytes, source: str) -> Inventory:
    """The inventory that these bytes spell. Raises UsageError when they spell none."""
    try:
        document = json.loads(data)
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ValueError(f"it is not an inventory of format {FORMAT}")
        texts = [document[key] for key in ("python", "platform", "glibc")]
        packages = document["packages"]
        if not all(isinstance(text, str) for text in (*texts, *packages)):
            raise ValueError("a value is not text")
        if document["platform"] not in PLATFORMS:
            raise ValueError(f"its platform is none of {', '.join(PLATFORMS)}")
        if odd := [item for item in packages if item.count("==") != 1]:
            raise ValueError(f"{odd[0]!r} is not NAME==VERSION")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(
            f"{source} is not an inventory: {paths.shown(str(error))}",
            hint="Write one on the server: mirror probe --env ENV -o FILE",
        ) from None
    return Inventory(texts[0], texts[1], texts[2], tuple(sorted(packages)))
