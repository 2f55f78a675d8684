"""Credentials that this machine keeps for the servers of channels.

Two places, looked at in this order: the file of rattler's and pixi's `auth login`
($RATTLER_AUTH_FILE, else ~/.rattler/credentials.json), and netrc. Nothing of them is ever written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mirror.fetch.request import basic


class Token(str):
    """A token that stands in the path of a channel's address: https://HOST/t/TOKEN/CHANNEL."""

    __slots__ = ()


def of(url: str) -> Mapping[str, str] | Token | None:
    """The headers or the token that this machine keeps for a URL's server; None for none."""
    from requests.utils import get_netrc_auth

    host = urlsplit(url).hostname or ""
    table = _table()
    for key in _keys(host):
        if found := _entry(table.get(key)):
            return found
    login = get_netrc_auth(url)
    return basic(*login) if login else None


def _table() -> Mapping[str, Any]:
    named = os.environ.get("RATTLER_AUTH_FILE")
    path = Path(named) if named else Path("~/.rattler/credentials.json").expanduser()
    try:
        table = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return table if isinstance(table, dict) else {}


def _keys(host: str) -> Iterator[str]:
    """ "a.b.c", "*.a.b.c", "*.b.c", "*.c": what the file may call a server, nearest first."""
    yield host
    parts = host.split(".")
    for first in range(len(parts)):
        yield "*." + ".".join(parts[first:])


def _entry(entry: Any) -> Mapping[str, str] | Token | None:
    match entry:
        case {"BearerToken": str(token)}:
            return {"Authorization": f"Bearer {token}"}
        case {"BasicHTTP": {"username": str(user), "password": str(password)}}:
            return basic(user, password)
        case {"CondaToken": str(token)}:
            return Token(token)
        case _:
            return None
