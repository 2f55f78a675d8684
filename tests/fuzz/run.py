"""Feeds nearly right bytes to every reader that gets some from strangers.

    python -m tests.fuzz.run --seconds N [--seed S] [--only NAME] [--into FOLDER]

What no reader may do (another exception than its own, a message that is not fit to be printed,
taking what no writer makes, more than SLOW seconds) is a finding: it is printed, its input is
written to FOLDER, and the exit code is 1. One seed gives one order of inputs.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import re
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mirror.bundle import layout
from tests.fuzz.mutation import mutated
from tests.fuzz.targets import TARGETS, Surface, expected, small_blocks

#: Seconds that an input of at most 400 kB may take.
SLOW = 10.0
_ROUND = 0.25
_KEPT = 400  # inputs of a corpus


@dataclass
class Worker:
    """One reader, and the inputs that brought it somewhere new.

    findings: what it did and may not do: kind -> message and input; each kind once.
    """

    surface: Surface
    choose: random.Random
    corpus: list[bytes] = field(default_factory=list)
    executions: int = 0
    findings: dict[str, tuple[str, bytes]] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)

    def begin(self) -> None:
        """Its seeds, all of which have to be taken."""
        for seed in self.surface.seeds():
            if self._try(seed) != "taken":
                self.findings.setdefault("a seed is not taken", ("", seed))
            self.corpus.append(seed)

    def work(self, seconds: float) -> None:
        """Try inputs for so long; one at least."""
        end = time.monotonic() + seconds
        while True:
            base, other = self.choose.choice(self.corpus), self.choose.choice(self.corpus)
            data = mutated(base, other, self.choose)
            outcome = self._try(data)
            if outcome not in self._seen:  # nothing here knows which lines ran; messages do
                self._seen.add(outcome)
                if len(self.corpus) < _KEPT:
                    self.corpus.append(data)
            if time.monotonic() >= end:
                return

    def _try(self, data: bytes) -> str:
        """What became of an input, without its numbers."""
        self.executions += 1
        begin = time.monotonic()
        try:
            outcome = "taken" if self.surface.read(data) else "passed by"
        except Exception as error:  # noqa: BLE001 -- which ones are a finding is the question
            outcome = f"{type(error).__name__}: {re.sub(r'[0-9]+', '0', str(error))[:120]}"
            if not expected(error, self.surface):
                place = traceback.extract_tb(error.__traceback__)[-1]
                kind = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
                self.findings.setdefault(kind, (str(error)[:300], data))
        if (took := time.monotonic() - begin) > SLOW:
            self.findings.setdefault("slow", (f"it took {took:.0f} seconds", data))
        return outcome


@contextmanager
def _small() -> Iterator[None]:
    """The framing of bundles in small blocks, and as it was after that."""
    before = {name: getattr(layout, name) for name in small_blocks()}
    for name, size in small_blocks().items():
        setattr(layout, name, size)
    try:
        yield
    finally:
        for name, size in before.items():
            setattr(layout, name, size)


def fuzz(seconds: float, seed: int = 0, only: Sequence[str] = ()) -> list[Worker]:
    """Every reader in turn until the time is up. The same seed gives each the same inputs."""
    workers = [
        Worker(surface, random.Random(f"{seed} {surface.name}"))
        for surface in TARGETS
        if not only or surface.name in only
    ]
    end = time.monotonic() + seconds
    with _small():
        for worker in workers:
            worker.begin()
        while True:
            for worker in workers:
                worker.work(min(_ROUND, seconds / len(workers) / 4))
            if time.monotonic() >= end:
                return workers


def main(seconds: float) -> tuple[int, int]:
    """Executions and findings of so many seconds."""
    workers = fuzz(seconds)
    return sum(w.executions for w in workers), sum(len(w.findings) for w in workers)


def _report(worker: Worker, folder: Path) -> None:
    print(
        f"{worker.surface.name:10} {worker.executions:>9,} executions,"
        f" {len(worker.corpus):>3} kinds of outcome, {len(worker.findings)} findings"
    )
    for kind, (what, data) in worker.findings.items():
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{worker.surface.name}-{hashlib.sha256(data).hexdigest()[:12]}"
        path.write_bytes(data)
        print(f"  {kind}: {what!r}\n  its input is in {path}")


def command() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=[s.name for s in TARGETS])
    parser.add_argument("--into", type=Path, default=Path("fuzz-findings"), help="for findings")
    options = parser.parse_args()
    workers = fuzz(options.seconds, options.seed, options.only or ())
    for worker in workers:
        _report(worker, options.into)
    found = sum(len(worker.findings) for worker in workers)
    print(f"{sum(w.executions for w in workers):,} executions, {found} findings")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(command())
