"""The card of a repository: its README.md, whose front matter says under which license it is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from mirror.core.paths import shown
from mirror.ecosystems.models.repository import File

#: Cards of models that were measured often have front matter of some 100 kB; nothing more is read.
_FRONT = 2**20
#: An entry that is read, and what is recorded of it, are no longer than this.
_ENTRY, _LICENSE = 2**10, 100
_FRONT_MATTER = re.compile(r"\ufeff?\s*---[ \t]*\r?\n(.*?)^---[ \t]*\r?$", re.DOTALL | re.MULTILINE)


def facts(files: Sequence[File]) -> dict[str, str]:
    """{"license": ...} when a README.md that is on this machine states one, else nothing.

    Several licenses stand with commas between; one that is called "other" by its name.
    """
    place = next((file.place for file in files if file.path == "README.md"), None)
    front = _front_matter(place) if place else ""
    stated = _entry(front, "license")
    if stated == "other":
        stated = _entry(front, "license_name") or stated
    return {"license": shown(stated)[:_LICENSE]} if stated else {}


def _front_matter(readme: Path) -> str:
    try:
        with open(readme, "rb") as file:
            text = file.read(_FRONT).decode("utf-8", "replace")
    except OSError:
        return ""  # whoever carries the file will say so
    found = _FRONT_MATTER.match(text)
    return found[1] if found else ""


def _entry(front: str, key: str) -> str:
    """The text or texts that stand under a key; empty where it has none, or is no YAML.

    The rest is not parsed: it may be large, and is of no interest.
    """
    import yaml

    # The key at the left edge, with the lines that belong to it: indented ones, and a list's.
    lines = rf"^([\"']?){key}\1[ \t]*:.*\n?(?:(?:[ \t#-].*)?\n)*"
    found = re.search(lines, front, re.MULTILINE)
    if found is None or len(found[0]) > _ENTRY:
        return ""
    try:
        # Composed, not constructed: a text stays the text that it is, whatever it looks like.
        node = yaml.compose(found[0], Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError):
        return ""
    assert isinstance(node, yaml.MappingNode)  # noqa: S101 -- it begins with a key
    value = node.value[0][1]
    stated = value.value if isinstance(value, yaml.SequenceNode) else [value]
    texts = (item.value for item in stated if isinstance(item, yaml.ScalarNode))
    return ", ".join(" ".join(text.split()) for text in texts if text)
