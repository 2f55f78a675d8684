"""Bytes of a requirements file -> its logical lines, each with the place it begins at.

The format is pip's ("Requirements File Format" in its reference): comments, continuations, byte
order marks, PEP 263. Where pip would drop text without a word, or read what an editor does not show
as a line, there is a mistake instead.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from mirror.core.paths import shown
from mirror.core.requirements.values import Line, Mistake

# UTF-32's mark begins with UTF-16's: the longer one is looked for first.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_CODING = re.compile(rb"(?:[^\n]*\n)?[ \t\f]*#[^\n]*?coding[:=][ \t]*([-\w.]+)")
_COMMENT = re.compile(r"(^|\s+)#.*$")
#: Characters that end a line for Python and not for an editor, and other control characters.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f\x85\u2028\u2029]")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/*[^\s\"']+")
_LOGIN = re.compile(r"[^\s/@:+]+:[^\s/@]+@|(?<=git\+)(?!git@)[^\s/@:]+@")


def decode(data: bytes) -> str:
    """The text of a requirements file: UTF-8 unless a mark or a PEP 263 comment says otherwise.

    Raises UnicodeDecodeError when it is not what it says, LookupError for an unknown encoding.
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return data[len(mark) :].decode(encoding)
    declared = _CODING.match(data)
    encoding = declared[1].decode("ascii") if declared else "utf-8"
    text = data.decode(encoding)
    if (at := data.find(b"\0")) >= 0:  # UTF-16 without its mark, or no text at all
        raise UnicodeDecodeError(encoding, data, at, at + 1, "a zero byte")
    return text


def lines(text: str, where: Callable[[int], str]) -> Iterator[Line | Mistake]:
    """The logical lines, without those that are empty. `where` makes a place of a line number."""
    joined, first = "", 0
    physical = re.split(r"\r\n|\r|\n", text)
    for number, raw in enumerate(physical, 1):
        first = first or number
        if hidden := _HIDDEN.search(raw):
            character = f"U+{ord(hidden[0]):04X}"
            yield Mistake(
                f"holds the control character {character}: remove it (pip may take what stands "
                "after it for a line of its own)",
                where(number),
            )
            joined, first = "", 0
            continue
        comment = raw.lstrip().startswith("#")
        continued = raw.endswith("\\") and not comment and number < len(physical)
        if continued and _COMMENT.search(raw):
            yield Mistake(
                "a comment ends with \\ and so swallows the next line: remove the \\", where(number)
            )
        if continued:
            joined += raw[:-1]
            continue
        joined += "" if comment else raw
        if stripped := _COMMENT.sub("", joined).strip():
            yield Line(stripped, where(first))
        joined, first = "", 0


def shown_url(url: str) -> str:
    """A URL for messages: without credentials, query and fragment, any of which may be secret."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # a password with a / or # in it shows as a port that is no number
    except ValueError:
        return url.partition(":")[0] + "://****"
    if not parts.netloc or "@" in parts.query + parts.fragment:
        return url.partition(":")[0] + ":****"
    host, path = parts.netloc.rpartition("@")[2], _LOGIN.sub("****@", parts.path)
    return shown(f"{parts.scheme}://{host}{path}" + ("?****" if parts.query else ""))


def quoted(text: str) -> str:
    """What a person wrote, for messages: one line, no secrets, nothing that moves a cursor."""
    safe = _URL.sub(lambda match: _shown_part(match[0]), text)
    return shown(_LOGIN.sub("****@", safe))


def _shown_part(part: str) -> str:
    return shown_url(part) if re.match(r"[^:]*://", part) else _LOGIN.sub("****@", part)
