"""A document as words of capital letters and digits, to be carried as a photo of a screen.

Docs: docs/format.md. People and cameras misread letters: each word has a check of its own, so that
an error is named by its line, and the whole has a longer one. What is commonly taken for another
letter is put right where the checks agree that it was that.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from mirror.errors import UsageError

_MARK = "MIRROR"
#: Characters of a word, without those that check it; and how many those are, here and of the whole.
_LENGTH = 60
_CHECK = 2
_WHOLE = 8
#: No summary has more words, and none holds more bytes: many times what `words` is asked for.
_MAX_WORDS = 40
#: Nobody's text has more of what may be its beginning; each is read in a dozen ways.
_MAX_STARTS = 8
_MAX_DOCUMENT = 2**20
#: What is easily read for a letter of base32, which has none of these.
_MISREAD = str.maketrans("018|", "OIBI")
#: Letters and digits of base32 that are easily read for one another.
_ALIKE = str.maketrans("5S2Z6GILOQ", "S5Z2G6LIQO")
_ONE = str.maketrans("526LQ", "SZGIO")
#: Four letters more, so that no word of a language is one.
_START = re.compile(r"M[IL]RR[OQ]R(?=[A-Z2-7]{4})")
_FOREIGN = re.compile(r"[^A-Z2-7\s]")


def words(document: bytes) -> list[str]:
    """The document as words: the mark with a check of all, then the letters, each with its own."""
    data = zlib.compress(document, 9, wbits=-15)
    letters = base64.b32encode(data).decode().rstrip("=")
    parts = (letters[at : at + _LENGTH] for at in range(0, len(letters), _LENGTH))
    checked = [part + _check(str(number), part) for number, part in enumerate(parts, 1)]
    return [_MARK + _digest(data, _WHOLE), *checked]


def begins(data: bytes) -> bool:
    """Whether this is a summary, right or wrong: it has the mark somewhere."""
    return _START.search(_letters(data)) is not None


def opened(data: bytes, source: str) -> bytes:
    """The document in the words that stand somewhere in this text, in any order.

    Raises UsageError that names the words which were not copied as they stood, or are not there.
    """
    text = _letters(data)
    readings = [
        _Reading.of(head, found, mend=mend)
        for at in (start.start() for start in islice(_START.finditer(text), _MAX_STARTS))
        # What stands before it is something else, or was copied in another order.
        for part in (text[at:], f"{text[at:]}\n{text[:at]}")
        for head, found in _cut(part)
        for mend in (False, True)
    ]
    for reading in readings:
        if (content := reading.content()) is not None:
            return _unpacked(content, source)
    best = max(readings, key=lambda reading: len(reading.placed), default=_Reading(""))
    raise UsageError(
        f"{source} is a summary that was not copied as it stood",
        problems=best.problems(),
        hint="Compare it with what the server shows: `mirror probe --summary`.",
    )


def _letters(data: bytes) -> str:
    """The text in capitals, with nothing but letters of base32 and white space."""
    text = data.decode(json.detect_encoding(data), "replace")  # editors and shells may write UTF-16
    return _FOREIGN.sub("", text.upper().translate(_MISREAD))


def _cut(text: str) -> Iterator[tuple[str, list[str]]]:
    """First word and the others, as they may be meant: by white space, lines, or length alone."""
    spaced = text.split()
    lines = [joined for line in text.splitlines() if (joined := "".join(line.split()))]
    solid, front = "".join(spaced), len(_MARK) + _WHOLE
    step = _LENGTH + _CHECK
    for head, *rest in (spaced, lines):
        yield head, rest
    yield solid[:front], [solid[at : at + step] for at in range(front, len(solid), step)]


@dataclass(frozen=True, slots=True)
class _Reading:
    """Words as one way of cutting the text has them.

    placed: by their number. wrong: those whose check is, by the number that they should have.
    mended: those that are placed in another spelling, as they were found.
    """

    head: str
    placed: dict[int, str] = field(default_factory=dict)
    wrong: dict[int, str] = field(default_factory=dict)
    mended: dict[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, head: str, found: list[str], *, mend: bool) -> _Reading:
        """Give each word its place: the next one, if its check agrees; else the one that does.

        mend: also the next one if it agrees when one letter is taken for another that looks alike.
        """
        made = cls(head)
        last, several = 0, list[tuple[str, list[int]]]()
        for word in found[:_MAX_WORDS]:
            last += 1
            places = [number for number in range(1, _MAX_WORDS + 1) if _agrees(word, number)]
            right = (other for other in _alike(word) if mend and _agrees(other, last))
            if last not in places and (other := next(right, "")):
                made.mended[last] = word
                made.placed.setdefault(last, other)
            elif last in places or len(places) == 1:
                last = last if last in places else places[0]
                made.placed.setdefault(last, word)
            elif places:
                several.append((word, places))
            else:
                made.wrong.setdefault(last, word)
        for word, places in several:
            for number in [n for n in places if n not in made.placed][:1]:
                made.placed[number] = word
        return made

    def content(self) -> bytes | None:
        """The bytes that the words hold, None when the check of all is wrong."""
        letters = "".join(self.placed[n][:-_CHECK] for n in sorted(self.placed))
        try:
            data = base64.b32decode(letters + "=" * (-len(letters) % 8))
        except ValueError:
            return None
        right = _MARK + _digest(data, _WHOLE)
        return data if self.head.translate(_ONE) == right.translate(_ONE) else None

    def problems(self) -> list[str]:
        """A line for each word that is wrong or not there."""
        last = max(self.placed, default=0)
        lost = [n for n in range(1, max(last, *self.wrong, 0) + 1) if n not in self.placed]
        if not lost and len(self.placed.get(last, "")) in (0, _LENGTH + _CHECK):
            return [f"line {last + 2} and those after it are not there"]
        found = {
            n: f"is misread: {self.wrong[n]}" if n in self.wrong else "is not there" for n in lost
        }
        if not found:  # one of these, then
            found = {0: f"is misread: {self.head}"}
            found |= {n: f"may be misread: {word}" for n, word in self.mended.items()}
        return [f"line {n + 1} {says:.200}" for n, says in sorted(found.items())]


def _alike(word: str) -> Iterator[str]:
    """The word with one letter or digit as another that looks alike."""
    swapped = word.translate(_ALIKE)
    return (
        word[:at] + swapped[at] + word[at + 1 :]
        for at in range(len(word))
        if swapped[at] != word[at]
    )


def _agrees(word: str, number: int) -> bool:
    front, check = word[:-_CHECK], word[-_CHECK:]
    return 0 < len(front) <= _LENGTH and check == _check(str(number), front)


def _check(number: str, letters: str) -> str:
    return _digest((number + letters).encode(), _CHECK)


def _digest(data: bytes, length: int) -> str:
    return base64.b32encode(hashlib.sha256(data).digest())[:length].decode()


def _unpacked(content: bytes, source: str) -> bytes:
    unpacker = zlib.decompressobj(wbits=-15)
    try:
        return unpacker.decompress(content, _MAX_DOCUMENT)
    except zlib.error as error:
        raise UsageError(f"{source} is no summary of this mirror: {error}") from None
