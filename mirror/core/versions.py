"""Which of two versions of one bundle is the older, where that can be told."""

from __future__ import annotations

import re


def is_older(version: str, other: str) -> bool | None:
    """Whether `version` comes before `other`; None where the two have no order.

    Python's versions (PEP 440) have one: 1.9, 1.10rc1, 1.10. So have any two that differ in their
    numbers only: run7, run10; 2026-02-01, 2026-11-01. Words have none.
    """
    from packaging.version import InvalidVersion, Version

    try:
        return Version(version) < Version(other)
    except InvalidVersion:
        pass
    (words, numbers), (others, rest) = _parts(version), _parts(other)
    return numbers < rest if words == others else None


def _parts(version: str) -> tuple[list[str], list[int]]:
    """What is no number in it, and its numbers."""
    return re.split("[0-9]+", version), [int(number) for number in re.findall("[0-9]+", version)]
