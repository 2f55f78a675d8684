"""What a TOML document holds, with its types checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from packaging.utils import canonicalize_name

from mirror.core.requirements.values import Refusal


def table(above: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """The table at that place, empty when it is missing. Raises Refusal when it is no table."""
    for key in keys:
        above = above.get(key, {})
        if not isinstance(above, dict):
            raise Refusal(f"{'.'.join(keys)} is no table")
    return above


def texts(found: object, what: str) -> Sequence[str]:
    """A list of text. Raises Refusal when it is something else."""
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise Refusal(f"{what} is not a list of text")
    return found


def by_name(tables: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The table with its keys in normal form. Raises Refusal when two become one."""
    names = [canonicalize_name(name) for name in tables]
    if len(set(names)) < len(names):
        raise Refusal(f"{what} holds one name in two spellings")
    return dict(zip(names, tables.values(), strict=True))
