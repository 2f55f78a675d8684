"""What the chosen wheels state of themselves, their licences and needs, for the lock.

Read from wheels that are on this machine; else from the ends of those on an index, where METADATA
stands, at the cost of a request or two each. An index that gives no part of a file gives the whole
wheel, which a build would fetch anyway. What was read is kept in the builder's cache.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from mirror.core.artifact import Json
from mirror.ecosystems.source import Context
from mirror.ecosystems.wheels import inspection
from mirror.ecosystems.wheels.inspection import Metadata
from mirror.fetch.http import PATIENCE, Request
from mirror.store import atomic

if TYPE_CHECKING:
    from requests import Session

_AT_ONCE = 8
#: Bytes that one request brings: METADATA and the archive's directory lie in the last so many of
#: nine wheels in ten.
_PIECE = 64 * 2**10
#: A METADATA file is cut after so many bytes; its headers are far shorter.
_LONGEST = 2**20


@dataclass(frozen=True, slots=True)
class Wheel:
    """One that was chosen. place: its file on this machine, or where it is on its index."""

    file: str
    sha256: str
    place: Path | Request


def read(wheels: Sequence[Wheel], context: Context) -> dict[str, Metadata]:
    """File name -> what the wheel states; without those that state nothing that can be read.

    Raises DownloadError for wheels that their index does not give.
    """
    from mirror.fetch import exchange

    found = {w.file: text for w in wheels if (text := _known(w, context)) is not None}
    missing = [(w, w.place) for w in wheels if w.file not in found and isinstance(w.place, Request)]
    with (
        context.progress.bar("reading metadata", len(missing), "wheels") as advance,
        exchange.session() as session,
        ThreadPoolExecutor(_AT_ONCE) as pool,
    ):

        def look(request: Request) -> str | None:
            text = _text_at(session, request)
            advance(1)
            return text

        texts = list(pool.map(look, (place for _, place in missing)))
    whole = [item for item, text in zip(missing, texts, strict=True) if text is None]
    context.fetcher.fetch([place for _, place in whole])
    for (wheel, _), text in zip(missing, texts, strict=True):
        text = text if text is not None else _text_in(context.blobs.path(wheel.sha256))
        if text is not None:
            found[wheel.file] = text
            _keep(_note(wheel, context), text)
    return {file: inspection.parsed(text) for file, text in found.items()}


def origins(
    stated: Mapping[str, Metadata], asked: Iterable[str], environment: Mapping[str, str]
) -> dict[str, dict[str, Json]]:
    """By package, what a lock records: `license` where it is stated, `requires` where there is any.

    stated: by package. asked: the requirement lines that were resolved: of which packages extras
    are wanted. environment: markers of the target. requires: names of packages, sorted.
    """
    extras: dict[str, set[str]] = {}
    for line in asked:
        with suppress(InvalidRequirement):
            wanted = Requirement(line)
            extras.setdefault(canonicalize_name(wanted.name), set()).update(wanted.extras)
    needs: dict[str, set[str]] = {name: set() for name in stated}
    todo = list(stated)
    while todo:
        name = todo.pop()
        for need in _needs(stated[name], extras.get(name, set()), environment):
            other = canonicalize_name(need.name)
            needs[name].add(other)
            known = extras.setdefault(other, set())
            if other in stated and not need.extras <= known:
                known |= need.extras
                todo.append(other)
    return {
        name: {
            **({"license": metadata.licence} if metadata.licence else {}),
            **({"requires": sorted(needs[name])} if needs[name] else {}),
        }
        for name, metadata in stated.items()
    }


def _needs(
    metadata: Metadata, extras: set[str], environment: Mapping[str, str]
) -> Iterable[Requirement]:
    """What a package needs on the target, with these extras of it."""
    for text in metadata.requires:
        try:
            need = Requirement(text)
        except InvalidRequirement:
            continue  # the resolver has taken it, or has said so
        marker = need.marker
        if not marker or any(marker.evaluate({**environment, "extra": e}) for e in ("", *extras)):
            yield need


def _known(wheel: Wheel, context: Context) -> str | None:
    """What can be read on this machine."""
    if isinstance(wheel.place, Path):
        return _text_in(wheel.place)
    with suppress(OSError, UnicodeDecodeError):
        return _note(wheel, context).read_text(encoding="utf-8")
    if context.blobs.has(wheel.sha256):
        return _text_in(context.blobs.path(wheel.sha256))
    return None


def _text_in(path: Path) -> str | None:
    """The wheel's METADATA; None when none can be read: who opens it before it ships says why."""
    try:
        with open(path, "rb") as file:
            return _headers(file)
    except OSError:
        return None


def _text_at(session: Session, request: Request) -> str | None:
    """The same of a wheel elsewhere; None when the server gives no part of it."""
    from mirror.fetch.failures import FetchError

    if not request.size:
        return None
    try:
        return _headers(cast("IO[bytes]", _Remote(session, request, request.size)))
    except FetchError:
        return None  # who fetches the whole tells why, and tries longer


def _headers(file: IO[bytes]) -> str | None:
    """METADATA without its description. Raises OSError and FetchError as the file does."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
            [name] = [n for n in names if n.count("/") == 1]
            with archive.open(name) as member:
                data = member.read(_LONGEST)
    except (zipfile.BadZipFile, RuntimeError, ValueError, EOFError, zlib.error):
        return None
    return data.decode("utf-8", "replace").replace("\r\n", "\n").partition("\n\n")[0] + "\n"


def _note(wheel: Wheel, context: Context) -> Path:
    return context.blobs.folder / "metadata" / wheel.sha256


def _keep(note: Path, text: str) -> None:
    note.parent.mkdir(parents=True, exist_ok=True)
    atomic.write(note, text.encode())


class _Remote(io.BufferedIOBase):
    """A file on a server, read by its parts; each is asked for once, and kept.

    Raises FetchError where the server does not give the part that it was asked for.
    """

    def __init__(self, session: Session, request: Request, size: int) -> None:
        self._session, self._request, self._size = session, request, size
        self._at = 0
        self._parts: list[tuple[int, bytes]] = []

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """As files do."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(start + offset, 0)
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        """As files do."""
        end = self._size if size is None or size < 0 else min(self._at + size, self._size)
        if end <= self._at:
            return b""
        start, data = next((p for p in self._parts if self._holds(p, end)), (-1, b""))
        if start < 0:
            start = min(self._at, max(self._size - _PIECE, 0))
            data = self._ask(start, max(end, min(start + _PIECE, self._size)))
            self._parts.append((start, data))
        found = data[self._at - start : end - start]
        self._at = end
        return found

    def _holds(self, part: tuple[int, bytes], end: int) -> bool:
        start, data = part
        return start <= self._at and end <= start + len(data)

    def _ask(self, start: int, stop: int) -> bytes:
        from mirror.fetch import exchange
        from mirror.fetch.failures import FetchError

        headers = {"Range": f"bytes={start}-{stop - 1}"}
        with exchange.ask(self._session, self._request, PATIENCE, headers=headers) as answer:
            if not answer.partial or answer.start != start or answer.encoding:
                raise FetchError("the server gives no parts of files")
            data = b""
            for chunk in answer.chunks():
                data += chunk
                if len(data) >= stop - start:
                    break
        if len(data) != stop - start:
            raise FetchError("the server gave another part than it was asked for")
        return data
