"""The threads that share the work of one fetch: files side by side, large files in pieces."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import requests

from mirror.core.progress import Advance
from mirror.core.text import counted
from mirror.fetch import exchange
from mirror.fetch.exchange import FetchError
from mirror.fetch.http import Fetched, Fetcher, Request, unwritable
from mirror.fetch.parts import LARGE, PIECE, Part, Piece
from mirror.store.blobs import CHUNK

#: After Ctrl-C, seconds in which the threads may end by themselves; then the process leaves them.
_GRACE = 1.0
#: What a killed process loses is at most what came in so many seconds.
_SAVE_SECONDS = 0.2


@dataclass(eq=False, slots=True)
class Download:
    """One file on its way: in the end it has an outcome or a failure."""

    request: Request
    part: Part
    outcome: Fetched | None = None
    failure: FetchError | None = None
    restarted: bool = False

    @property
    def settled(self) -> bool:
        """Whether nothing more will be done for it."""
        return self.outcome is not None or self.failure is not None


class Transfer:
    """One call of `Fetcher.fetch`: all its threads, until every file is settled."""

    def __init__(self, fetcher: Fetcher, wanted: Sequence[Request]) -> None:
        self._fetcher = fetcher
        self._wanted = wanted
        self._waiting: deque[Download] = deque()
        self._started: list[Download] = []
        self._changed = threading.Condition()  # guards both lists; announces that there is work
        self._over = threading.Event()  # all is settled, or nothing more can be done
        self._stop = threading.Event()
        self._broken: BaseException | None = None  # why all must stop: this machine, or a bug
        self._dead: dict[tuple[str, str, int], FetchError] = {}  # origins that cannot be reached

    def run(self, label: str) -> list[Download]:
        """Settle every download. Raises MachineError when the bytes cannot be written."""
        sizes = [request.size for request in self._wanted]
        known = sum(size for size in sizes if size is not None)
        in_bytes = None not in sizes
        bar = self._fetcher.progress.bar(
            f"{label} {counted(len(sizes), 'file')}",
            known if in_bytes else len(sizes),
            "B" if in_bytes else "files",
        )
        with bar as advance:
            self._settled_one: Advance = (lambda n: None) if in_bytes else advance
            downloads = [
                self._download(request, advance if in_bytes else lambda n: None)
                for request in self._wanted
            ]
            self._waiting.extend(downloads)
            self._work_together()
        if self._broken:
            raise self._broken
        self._fetcher.blobs.sync({d.outcome.sha256 for d in downloads if d.outcome})
        return downloads

    def _download(self, request: Request, advance: Advance) -> Download:
        part = Part(
            self._fetcher.blobs.folder / "partial" / request.key,
            request.size,
            digested=request.digest is not None,
            advance=advance,
        )
        advance(part.present)
        return Download(request, part)

    def _work_together(self) -> None:
        sizes = [LARGE if r.size is None else r.size for r in self._wanted]
        pieces = sum(-(-size // PIECE) if size >= LARGE else 1 for size in sizes)
        threads = [
            threading.Thread(target=self._work, name=f"download-{number}", daemon=True)
            for number in range(min(self._fetcher.connections, pieces))
        ]
        for thread in threads:
            thread.start()
        try:
            # The bound also lets Ctrl-C through on Windows.
            while not self._over.wait(_SAVE_SECONDS):
                self._save()
        finally:
            self._stop.set()
            with self._changed:
                self._changed.notify_all()
            deadline = time.monotonic() + _GRACE
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))
            self._save()

    def _save(self) -> None:
        with self._changed:
            started = list(self._started)
        for download in started:
            download.part.save()

    def _work(self) -> None:
        """One thread: take what there is to do, until all is settled."""
        try:
            with exchange.session() as session:
                while claimed := self._claim():
                    self._do(session, *claimed)
        except OSError as error:
            self._break(unwritable(self._fetcher.blobs, error))
        except BaseException as error:  # noqa: BLE001 -- a bug: it is raised again by run()
            self._break(error)

    def _break(self, error: BaseException) -> None:
        self._broken = self._broken or error
        self._over.set()

    def _claim(self) -> tuple[Download, Piece | None] | None:
        """A piece to fetch, or a file that is whole and wants to be published; waits for one."""
        with self._changed:
            while not self._stop.is_set() and not self._over.is_set():
                for download in self._started:
                    if download.part.seal():
                        return download, None
                    if piece := download.part.claim():
                        return download, piece
                if self._waiting:
                    self._started.append(self._waiting.popleft())
                elif self._started:
                    self._changed.wait()
                else:
                    self._over.set()
            return None

    def _do(self, session: requests.Session, download: Download, piece: Piece | None) -> None:
        """Work on a download, and note how it ended if it did."""
        try:
            if piece:
                self._fill(session, download, piece)
            else:
                download.outcome = self._published(download)
        except FetchError as failure:
            download.failure = download.failure or failure
        finally:
            with self._changed:
                if piece:
                    download.part.release(piece)
                if download.settled and download in self._started:
                    download.part.save()
                    self._started.remove(download)
                    self._settled_one(1)
                self._changed.notify_all()

    def _fill(self, session: requests.Session, download: Download, piece: Piece) -> None:
        """Fetch a piece, trying again as patience has it. Raises FetchError in the end."""
        origin = exchange.origin(download.request.url)
        failures = 0
        while not self._stop.is_set() and not download.settled:
            if origin in self._dead:
                raise self._dead[origin]
            before = piece.position
            try:
                self._stream(session, download, piece)
                return
            except FetchError as failure:
                if failure.stale and download.part.doubt(piece):
                    continue
                failures = 1 if piece.position > before else failures + 1
                pause = self._fetcher.patience.pause(failures, failure.after)
                if not failure.again or pause is None:
                    if failure.unreachable:
                        self._dead[origin] = failure
                    raise
                self._stop.wait(pause)

    def _stream(self, session: requests.Session, download: Download, piece: Piece) -> None:
        """One request, its bytes written as they come. Raises FetchError."""
        request, part = download.request, download.part
        headers = part.headers(piece)
        with exchange.ask(session, request, self._fetcher.patience, headers=headers) as answer:
            if not part.accept(piece, answer):
                return
            with self._changed:
                self._changed.notify_all()  # further pieces may be had now
            with part.open() as file:
                for chunk in answer.chunks():
                    full = part.write(file, piece, chunk)
                    if full or self._stop.is_set() or download.settled:
                        break
                else:
                    part.ended(piece)
        part.hash_ahead()

    def _published(self, download: Download) -> Fetched | None:
        """Move a whole file into the store if its bytes are right.

        If not, it starts again from nothing, and this returns None; the second time it raises
        FetchError.
        """
        request, part = download.request, download.part
        sha256 = part.digest()
        found = f"sha256:{sha256}"
        if request.digest and request.digest.startswith("git-sha1:"):
            found = f"git-sha1:{_object_id(part)}"
        if request.digest not in (None, found):
            part.restart()
            if not download.restarted:
                download.restarted = True
                return None
            raise FetchError(
                f"the bytes that came are not the right ones: {found} instead of"
                f" {request.digest} ({exchange.public(request.url)})",
                hint="A proxy may answer with a page of its own, or the mirror is damaged.",
            )
        size = part.size or 0
        self._fetcher.blobs.admit(part.file, sha256)
        part.discard()
        if found.startswith("git-sha1:"):
            self._fetcher.note_alias(found.removeprefix("git-sha1:"), sha256)
        return Fetched(sha256, size)


def _object_id(part: Part) -> str:
    """The id that git gives to a blob of these bytes."""
    digest = hashlib.sha1(b"blob %d\0" % (part.size or 0), usedforsecurity=False)
    with open(part.file, "rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()
