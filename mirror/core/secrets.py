"""Which variables of an environment are a person's secrets: programs that need none get none."""

from __future__ import annotations

import re
from collections.abc import Mapping

_NAME = re.compile(
    r"TOKEN(?!IZERS)|SECRET|PASSW|CREDENTIAL|(API|ACCESS|PRIVATE)_?KEY|^UV_INDEX_\w+_USERNAME$",
    re.I,
)
_LOGIN = re.compile(r"://[^/\s]*@")


def is_secret(name: str) -> bool:
    """Whether a variable is one, by its name."""
    return _NAME.search(name) is not None


def without(environ: Mapping[str, str], prefixes: tuple[str, ...] = ()) -> dict[str, str]:
    """The variables that are no secret, and hold no address with a user or password in it.

    prefixes: nor those whose names begin with one of these.
    """
    return {
        name: value
        for name, value in environ.items()
        if not (name.startswith(prefixes) or is_secret(name) or _LOGIN.search(value))
    }
