"""The threads that share the work of one fetch: files side by side, large files in pieces."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import requests

from mirror.core.paths import shown
from mirror.core.progress import Advance, Progress
from mirror.core.text import counted
from mirror.fetch import beside, exchange
from mirror.fetch.exchange import Answer, Origin
from mirror.fetch.failures import FetchError, impostor, public
from mirror.fetch.origins import Origins
from mirror.fetch.parts import LARGE, Part
from mirror.fetch.pieces import Piece
from mirror.fetch.request import Fetched, Patience, Request
from mirror.store import git
from mirror.store.blobs import Blobs

#: After Ctrl-C, seconds in which the threads may end by themselves; then the process leaves them.
_GRACE = 1.0
#: What a killed process loses is at most what came in so many seconds.
_SAVE_SECONDS = 0.2
#: How often what has come is hashed, and an idle thread looks whether another has become slow.
_FOLLOW_SECONDS = 0.05
_LOOK_SECONDS = 0.5
#: So many bytes are progress: a server that brings less is as good as one that brings none.
_ENOUGH = 64 * 2**10
#: A thread more is worth its while for so many bytes, or for a file.
_WORTH_A_THREAD = 2 * 2**20


@dataclass(eq=False, slots=True)
class Download:
    """One file on its way: in the end it has an outcome or a failure.

    elsewhere: where the last answer came from, if the request's own server has sent us there.
    """

    request: Request
    part: Part
    outcome: Fetched | None = None
    failure: FetchError | None = None
    restarted: bool = False
    elsewhere: str | None = None

    @property
    def settled(self) -> bool:
        """Whether nothing more will be done for it."""
        return self.outcome is not None or self.failure is not None


class Transfer:
    """One call of `Fetcher.fetch`: all its threads, until every file is settled."""

    def __init__(
        self, blobs: Blobs, progress: Progress, patience: Patience, connections: int
    ) -> None:
        self._blobs = blobs
        self._progress = progress
        self._patience = patience
        self._connections = connections
        self._waiting: deque[Download] = deque()
        self._started: list[Download] = []
        self._changed = threading.Condition()  # guards both lists; announces that there is work
        self._over = threading.Event()  # all is settled, or nothing more can be done
        self._stop = threading.Event()
        self._broken: BaseException | None = None  # why all must stop: this machine, or a bug
        self._count_bytes: Advance = lambda amount: None
        self._count_file: Advance = lambda amount: None
        self._origins = Origins(patience, self._stop, progress.step)

    def run(self, wanted: Sequence[Request], label: str) -> list[Download]:
        """Settle every download. Raises MachineError when the bytes cannot be written."""
        try:
            beside.tidy(self._blobs, {request.key for request in wanted})
            downloads = self._run(wanted, label)
            if self._broken:
                raise self._broken
            self._blobs.sync({d.outcome.sha256 for d in downloads if d.outcome})
        except OSError as error:
            raise beside.unwritable(self._blobs, error) from None
        return downloads

    def _run(self, wanted: Sequence[Request], label: str) -> list[Download]:
        downloads = [self._download(request) for request in wanted]
        sizes = [request.size for request in wanted]
        known = sum(size for size in sizes if size is not None)
        present = sum(download.part.present for download in downloads)
        beside.check_room(self._blobs, known - present)
        in_bytes = None not in sizes
        bar = self._progress.bar(
            f"{label} {counted(len(sizes), 'file')}",
            known if in_bytes else len(sizes),
            "B" if in_bytes else "files",
            done=present if in_bytes else 0,
            names=lambda: [shown(download.request.label) for download in list(self._started)],
        )
        with bar as advance:
            if in_bytes:
                self._count_bytes = advance
            else:
                self._count_file = advance
            # The largest first: small ones fill the gaps, and all connections end together.
            self._waiting.extend(sorted(downloads, key=_expected_size, reverse=True))
            self._work_together(sum(1 + _expected_size(d) // _WORTH_A_THREAD for d in downloads))
        return downloads

    def _download(self, request: Request) -> Download:
        part = Part(
            beside.partial(self._blobs) / request.key,
            request.size,
            digested=request.digest is not None,
            advance=lambda amount: self._count_bytes(amount),
        )
        return Download(request, part)

    def _work_together(self, useful: int) -> None:
        """Let at most so many threads work until all is settled."""
        workers = [self._follow, *[self._work] * min(self._connections, useful)]
        threads = [
            threading.Thread(target=self._guarded, args=(worker,), name="download", daemon=True)
            for worker in workers
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
            for download in list(self._started):
                download.part.close()
            deadline = time.monotonic() + _GRACE
            for thread in threads:
                thread.join(max(0.0, deadline - time.monotonic()))
            for download in list(self._started):
                download.part.leave()

    def _save(self) -> None:
        for download in list(self._started):
            download.part.save()

    def _follow(self) -> None:
        """One thread: hash and sync what the others have brought."""
        while not self._stop.wait(_FOLLOW_SECONDS):
            for download in list(self._started):
                download.part.follow()

    def _work(self) -> None:
        """One thread: take what there is to do, until all is settled."""
        with exchange.session() as session:
            while claimed := self._claim():
                self._do(session, *claimed)

    def _guarded(self, work: Callable[[], None]) -> None:
        """If it fails, all is over: run() raises what it was."""
        try:
            work()
        except BaseException as error:  # noqa: BLE001 -- a bug, or this machine
            self._broken = self._broken or error
            self._over.set()

    def _claim(self) -> tuple[Download, Piece | None] | None:
        """A piece to fetch, or a file that is whole and wants to be published; waits for one."""
        with self._changed:
            while not self._stop.is_set() and not self._over.is_set():
                for download in self._started:
                    if download.part.seal():
                        return download, None
                for download in self._started:
                    if piece := download.part.claim(self._connections):
                        return download, piece
                if self._waiting:
                    self._started.append(self._waiting.popleft())
                    continue
                if not self._started:
                    self._over.set()
                    return None
                for download in self._started:
                    if piece := download.part.share():
                        return download, piece
                self._changed.wait(_LOOK_SECONDS)
            return None

    def _do(self, session: requests.Session, download: Download, piece: Piece | None) -> None:
        """Work on a download, and note how it ended if it did."""
        part = download.part
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
                    part.release(piece)
                if download.settled and download in self._started:
                    part.save()
                    part.close()
                    self._started.remove(download)
                    self._count_file(1)
                self._changed.notify_all()

    def _fill(self, session: requests.Session, download: Download, piece: Piece) -> None:
        """Fetch a piece, trying again as patience has it. Raises FetchError in the end."""
        failures, mark, since = 0, piece.position, time.monotonic()
        while not (self._stop.is_set() or download.settled or piece.full):
            elsewhere = download.elsewhere
            try:
                self._stream(session, download, piece, elsewhere)
                return
            except FetchError as failure:
                if piece.full:
                    return  # another connection has taken over what was missing
                if failure.stale and download.part.doubt(piece):
                    continue
                if failure.after is not None:
                    continue  # the origin decides when, and whether
                if elsewhere:
                    # Such an address may hold for a while only: ask where it is now.
                    download.elsewhere = None
                    continue
                if piece.position - mark >= _ENOUGH:
                    failures = 0
                if failures == 0 or piece.position < mark:
                    mark, since = piece.position, time.monotonic()
                failures += 1
                pause = self._patience.pause(failures, None)
                if not failure.again or pause is None:
                    self._origins.give_up(failure, since)
                    raise
                self._stop.wait(pause)

    def _stream(
        self, session: requests.Session, download: Download, piece: Piece, elsewhere: str | None
    ) -> None:
        """One request, its bytes written as they come. Raises FetchError."""
        part, asked, answered, sent = download.part, list[Origin](), False, 0.0

        def enter(origin: Origin) -> None:
            nonlocal sent
            if asked:  # it has sent us on
                self._origins.leave(asked.pop(), answered=True)
            self._origins.enter(origin)
            asked.append(origin)
            sent = time.monotonic()

        try:
            with exchange.ask(
                session,
                download.request,
                self._patience,
                headers=part.headers(piece),
                elsewhere=elsewhere,
                before=enter,
            ) as answer:
                answered = True
                if part.accept(piece, answer):
                    download.elsewhere = answer.elsewhere
                    piece.interrupt = answer.interrupt
                    with self._changed:
                        self._changed.notify_all()  # further pieces may be had now
                    self._receive(download, piece, answer)
        except FetchError as failure:
            if failure.status in (429, 503):
                self._origins.turned_away(failure, sent)
            raise
        finally:
            for origin in asked:
                self._origins.leave(origin, answered=answered)

    def _receive(self, download: Download, piece: Piece, answer: Answer) -> None:
        for chunk in self._lively(answer):
            if download.part.write(piece, chunk) or self._stop.is_set() or download.settled:
                return
        download.part.ended(piece)

    def _lively(self, answer: Answer) -> Iterator[bytes]:
        """The body's chunks. Raises FetchError when they come, but next to nothing is in them."""
        since, gained = time.monotonic(), 0
        for chunk in answer.chunks():
            yield chunk
            gained += len(chunk)
            if gained >= _ENOUGH:
                since, gained = time.monotonic(), 0
            elif time.monotonic() - since > self._patience.crawl:
                raise FetchError(f"the server sends next to nothing ({answer.url})", again=True)

    def _published(self, download: Download) -> Fetched | None:
        """Move a whole file into the store if its bytes are right.

        If not, it starts again from nothing, and this returns None; the second time it raises
        FetchError.
        """
        request, part = download.request, download.part
        sha256 = part.digest()
        found = f"sha256:{sha256}"
        if request.digest and request.digest.startswith("git-sha1:"):
            found = f"git-sha1:{git.object_id(part.file, part.size or 0)}"
        if request.digest not in (None, found):
            came = impostor(part.beginning())
            part.restart()
            if not download.restarted:
                download.restarted = True
                return None
            raise FetchError(
                f"the bytes that came are not the right ones: {found} instead of"
                f" {request.digest}{came} ({public(request.url)})",
                hint="A proxy may answer with a page of its own, or the mirror is damaged.",
            )
        size = part.size or 0
        self._blobs.admit(part.file, sha256)
        part.discard()
        if found.startswith("git-sha1:"):
            beside.note_alias(self._blobs, found.removeprefix("git-sha1:"), sha256)
        return Fetched(sha256, size)


def _expected_size(download: Download) -> int:
    """Of a file whose size nobody has told: large, to be on the safe side."""
    return LARGE if download.request.size is None else download.request.size
