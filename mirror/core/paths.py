"""Which names a bundle may hold: those that every system unpacks to the same, single place."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator

# Names that Windows gives to devices, in any folder and with any ending.
_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³])(\..*)?$", re.I)
_FORBIDDEN = re.compile(r'[\x00-\x1f\x7f-\x9f\\:*?"<>|\ud800-\udfff]')


def shown(text: str) -> str:
    """`text` with every character that could move a cursor or hide escaped, for messages."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def named(text: str, limit: int = 300) -> str:
    """The same for names from strangers: no more than its first `limit` characters."""
    return shown(text if len(text) <= limit else f"{text[:limit]}...")


def masked(text: str) -> str:
    """`text` without the users and passwords of the addresses in it, for messages."""
    return re.sub(r"://[^/\s]+@", "://", text)


def problem(path: str) -> str | None:
    """Why `path` may not stand in a bundle, or None when it may."""
    if not path:
        return "is empty"
    if path.startswith("/"):
        return "is absolute"
    if len(path.encode("utf-8", "surrogatepass")) > 4000:
        return "is longer than 4,000 bytes"
    if _FORBIDDEN.search(path):
        return 'has a character that is a control character or one of \\ : * ? " < > |'
    if unicodedata.normalize("NFC", path) != path:
        return "is not in Unicode's NFC form"
    for part in path.split("/"):
        if part in ("", ".", ".."):
            return f"has the component {part!r}"
        if len(part.encode()) > 255:
            return "has a component longer than 255 bytes"
        if part[-1] in ". ":
            return "has a component that ends with a dot or a space"
        if _RESERVED.match(part):
            return f"has a component that Windows reserves: {part}"
    return None


def problems(paths: Iterable[str]) -> Iterator[str]:
    """Every reason why these paths cannot stand in one bundle together, a line each."""
    files: dict[str, str] = {}
    for path in paths:
        reason = problem(path)
        if reason:
            yield f"{named(path)!r} {reason}"
            continue
        key = _folded(path)
        if key in files:
            yield f"{path!r} and {files[key]!r} are one file on some systems"
        files[key] = path
    # With / before every other character, what is in a folder follows the folder at once.
    above: str | None = None
    for key in sorted(files, key=lambda key: key.replace("/", "\0")):
        if above is not None and key.startswith(f"{above}/"):
            yield f"{files[above]!r} is a file and also a folder of {files[key]!r}"
        else:
            above = key


def _folded(path: str) -> str:
    """What systems make of a name that tell neither case nor forms of Unicode apart."""
    if path.isascii():
        return path.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", path).casefold())
