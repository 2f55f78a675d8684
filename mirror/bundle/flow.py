"""Moving many bytes: a ring of buffers through a thread, and whole reads and writes.

hashlib, zlib.crc32, readv and writev let go of Python's lock. sha256 takes about as long as
reading, CRC32 and writing together, so one thread that hashes beside the main one keeps two cores
busy; more threads were no faster. The ring's buffers are the only large memory there is.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType
from typing import Generic, TypeVar

from mirror.core.text import human_size
from mirror.errors import MachineError

T = TypeVar("T")

#: Bytes after which written data is sent to the disk, beside what goes on.
SYNC_EVERY = 64 * 2**20


class Ring(Generic[T]):
    """Items that go round through a thread: `take` one, `put` it in, `take` it out again.

    The thread runs `stage` on each, in the order in which they were put. When it has raised, items
    go round untouched and the error comes out of the next `take` or of `drain`. Leaving the context
    ends the thread.
    """

    def __init__(self, items: Iterable[T], stage: Callable[[T], None]) -> None:
        self._stage = stage
        self._todo: SimpleQueue[T | None] = SimpleQueue()
        self._done: SimpleQueue[T | None] = SimpleQueue()
        for item in items:
            self._done.put(item)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Ring[T]:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._error = self._error or error
        self._todo.put(None)
        self._thread.join()

    def take(self) -> T:
        """The next item that is through (at first: a fresh one)."""
        item = self._done.get()
        if self._error or item is None:
            raise self._error or RuntimeError("the ring has been drained")
        return item

    def put(self, item: T) -> None:
        """Send an item round."""
        self._todo.put(item)

    def drain(self) -> Iterator[T]:
        """The items that are left, also those still fresh; nothing can be put any more."""
        self._todo.put(None)
        while (item := self._done.get()) is not None:
            if self._error:
                break
            yield item
        if self._error:
            raise self._error

    def _work(self) -> None:
        while (item := self._todo.get()) is not None:
            if not self._error:
                try:
                    self._stage(item)
                except BaseException as error:  # noqa: BLE001 - handed to the main thread
                    self._error = error
            self._done.put(item)
        self._done.put(None)


class Background:
    """Jobs done one after the other in a thread, at most a few behind those who order them.

    The first error of a job comes out of a later `submit` or of `finish`. Leaving the context drops
    the jobs not begun.
    """

    _DEPTH = 4

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._jobs: deque[Future[None]] = deque()

    def __enter__(self) -> Background:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop the jobs not begun, and wait for the one at work."""
        self._pool.shutdown(cancel_futures=True)

    def submit(self, job: Callable[[], None]) -> None:
        """Order a job; waits while too many are still to be done."""
        self._jobs.append(self._pool.submit(job))
        while self._jobs and (len(self._jobs) > self._DEPTH or self._jobs[0].done()):
            self._jobs.popleft().result()

    def finish(self) -> None:
        """Wait until all is done."""
        while self._jobs:
            self._jobs.popleft().result()


def read_into(file: int, views: Sequence[memoryview]) -> int:
    """Fill the views in order from a file descriptor; returns the bytes read, fewer at its end."""
    todo = [view for view in views if view]
    done = 0
    while todo and (count := _read(file, todo)):
        done += count
        todo = after(todo, count)
    return done


def write_from(file: int, views: Sequence[memoryview]) -> None:
    """Write all the views in order to a file descriptor."""
    todo = [view for view in views if view]
    while todo:
        todo = after(todo, _write(file, todo))


def after(views: list[memoryview], count: int) -> list[memoryview]:
    """What is left of the views behind their first `count` bytes."""
    for number, view in enumerate(views):
        if count < len(view):
            return [view[count:], *views[number + 1 :]]
        count -= len(view)
    return []


def _read(file: int, views: list[memoryview]) -> int:
    if hasattr(os, "readv"):
        return os.readv(file, views)
    data = os.read(file, len(views[0]))  # Windows
    views[0][: len(data)] = data
    return len(data)


def _write(file: int, views: list[memoryview]) -> int:
    if hasattr(os, "writev"):
        return os.writev(file, views)
    return os.write(file, b"".join(views))  # Windows


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Turns what the operating system refuses while `place` is written into a MachineError."""
    try:
        yield
    except OSError as error:
        raise unwritable(place, error) from None


def unwritable(place: Path, error: OSError) -> MachineError:
    """What to tell a person when the operating system refuses to write `place`."""
    return MachineError(
        f"{place} cannot be written: {error.strerror}",
        hint="Nothing half-made was left behind. Mend that, then run this again.",
    )


def require_space(folder: Path, needed: int) -> None:
    """Raises MachineError unless the file system of `folder` has `needed` bytes free."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise MachineError(
            f"{folder} has {human_size(free)} free; {human_size(needed)} are needed",
            hint="Free some space there, or choose a folder on another file system.",
        )
