"""The sha256 of many files at once: each is read once, by several threads."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from mirror.core.progress import Advance, Progress
from mirror.store.blobs import CHUNK

_THREADS = 8
#: So many small files are one task of a thread: handing each over alone would cost as much again.
_TOGETHER = 64
_SMALL = 2**18
_NOFOLLOW: int = getattr(os, "O_NOFOLLOW", 0)


def hash_all(files: Sequence[tuple[str, int]], label: str, progress: Progress) -> list[str]:
    """The sha256 of each of these files, (path, size in bytes); links are not followed.

    Where a file cannot be read, why: `failed` tells which it is. Under a bar with this label.
    """
    found = [""] * len(files)
    stop, local = threading.Event(), threading.local()

    def work(numbers: Sequence[int]) -> None:
        if not hasattr(local, "buffer"):
            local.buffer = memoryview(bytearray(CHUNK))
        for number in numbers:
            if stop.is_set():
                return
            try:
                found[number] = _hash(files[number][0], local.buffer, advance, stop)
            except OSError as error:
                found[number] = f"cannot be read: {error.strerror}"

    with (
        progress.bar(label, sum(size for _, size in files)) as advance,
        ThreadPoolExecutor(min(_THREADS, os.cpu_count() or 1)) as pool,
    ):
        try:
            for _ in pool.map(work, _tasks(files)):
                pass
        except BaseException:
            stop.set()  # leaving the pool waits for its threads
            raise
    return found


def failed(answer: str) -> bool:
    """Whether an answer of `hash_all` is no hash but the reason why there is none."""
    return len(answer) != 64


def _tasks(files: Sequence[tuple[str, int]]) -> list[list[int]]:
    """Numbers of files to take together, the largest first: so all threads end at one time."""
    order = sorted(range(len(files)), key=lambda number: -files[number][1])
    large = sum(size >= _SMALL for _, size in files)
    small = order[large:]
    batches = [small[at : at + _TOGETHER] for at in range(0, len(small), _TOGETHER)]
    return [[number] for number in order[:large]] + batches


def _hash(path: str, buffer: memoryview, advance: Advance, stop: threading.Event) -> str:
    digest = hashlib.sha256()
    file = os.open(path, os.O_RDONLY | _NOFOLLOW)
    try:
        while not stop.is_set() and (count := os.readv(file, [buffer])):
            digest.update(buffer[:count])
            advance(count)
    finally:
        os.close(file)
    return digest.hexdigest()
