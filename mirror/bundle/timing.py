"""Where the time of a long work goes, for -v."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from mirror.core.text import human_size, human_time


class Times:
    """Seconds by kind of work. Each kind is measured by one thread only."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._main: dict[str, float] = {}
        self._beside: dict[str, float] = {}

    @contextmanager
    def main(self, work: str) -> Iterator[None]:
        """Measure some work that all the rest waits for."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._main[work] = self._main.get(work, 0.0) + time.perf_counter() - start

    @contextmanager
    def beside(self, work: str) -> Iterator[None]:
        """Measure some work in a thread of its own."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._beside[work] = self._beside.get(work, 0.0) + time.perf_counter() - start

    def summary(self, size: int) -> str:
        """ "1.23 GB in 2.00 s, 615 MB/s: reading 0.80 s, writing 1.10 s; beside: hashing 1.9 s" """
        seconds = time.perf_counter() - self._start
        rate = human_size(round(size / max(seconds, 1e-6)))
        text = f"{human_size(size)} in {human_time(seconds)}, {rate}/s: {_list(self._main)}"
        return f"{text}; beside them {_list(self._beside)}" if self._beside else text


def _list(spent: dict[str, float]) -> str:
    return ", ".join(f"{work} {human_time(seconds)}" for work, seconds in spent.items())
