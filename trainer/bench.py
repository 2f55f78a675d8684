"""Runs exchanges, checks every value that comes, and keeps a row of each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from trainer.agreement import Agreement
from trainer.exchanges import WIDTH, Buffers, Exchange
from trainer.patterns import Differences

#: Turns that are timed at most, after the first.
_MOST = 20
#: Turns that are timed anyhow, where the first took less than this many seconds.
_LEAST, _SHORT = 2, 0.2


class Bench:
    """One rank's rows, and where in the run it is.

    beat: hears of the step and of what is exchanged, before it is.

    A row: name; bytes (of the whole buffer, as asked for: what does not split evenly among the
    ranks is rounded up); right (None: the backend does not offer it); seconds (of the best turn; a
    turn takes as long as it takes the slowest rank); bus_bandwidth (bytes/s by nccl-tests'
    definition; None where others communicated at the same time); pair (None, or two ranks: of
    "sendrecv" the sender and the receiver, whose row it is); turns (all were checked; the first
    is timed only when it is the only one); fault (what was wrong, in words).
    """

    def __init__(self, device: torch.device, beat: Callable[[int, str], None]) -> None:
        self.device = device
        self._beat = beat
        self._turn = 0
        # With each row, what divided by its seconds is its bus bandwidth.
        self._rows: list[tuple[float, dict[str, Any]]] = []
        self._times: dict[str, list[float]] = {}
        #: Where in the run the rank is: who is behind the others keeps them waiting.
        self.step = 0

    def part(self, number: int) -> None:
        """Begin a part of the run: from here on all ranks count alike."""
        self.step = self._turn = 1000 * number

    def at(self, detail: str, step: int = 0) -> None:
        """Say what comes next; step: where in this part, if not one further."""
        self.step = self.step - self.step % 1000 + step if step else self.step + 1
        self._beat(self.step, detail)

    def measure(
        self,
        exchange: Exchange,
        size: int,
        repeats: Callable[[float], int],
        *,
        pair: tuple[int, int] | None = None,
        alone: bool = True,
    ) -> bool:
        """Run an exchange of `size` bytes once, then as often as `repeats` says, and keep its row.

        repeats: given the first turn's seconds, how many more; the same on every rank.
        Returns whether the backend offers it.
        """
        what = f"{_title(exchange.name, pair, exchange.place)} of {human(size)}"
        self.at(what)
        clock, differences = Clock(self.device), Differences(self.device)
        begin = time.perf_counter()
        try:
            self._one(exchange, clock, differences)
        except (RuntimeError, NotImplementedError) as error:
            if not _is_missing(error):
                raise
            row = _row(exchange.name, size, pair)
            self._rows.append((0.0, {**row, "fault": f"not offered by {dist.get_backend()}"}))
            return False
        clock.wait()
        first = time.perf_counter() - begin
        if wrong := differences.read():
            # Whoever did not take part goes on while the others wait: this is how it is known.
            self._beat(self.step, f"{what}: {wrong}")
        for _ in range(max(repeats(first), exchange.least - 1)):
            self._one(exchange, clock, differences)
        row = _row(exchange.name, size, pair)
        self._times[_key(row)] = clock.seconds()
        wrong = differences.read()
        if differences.compared:  # else it only sent: the receiver's row tells
            row["right"], row["fault"] = wrong is None, str(wrong or "")
            row["bus_bandwidth"] = 0.0 if alone else None
            self._rows.append((WIDTH * exchange.size * exchange.factor(), row))
        return True

    def rows(self, agreement: Agreement) -> list[dict[str, Any]]:
        """Every row, once all ranks have told how long their turns took."""
        everybody = [json.loads(text) for text in agreement.all("times", json.dumps(self._times))]
        for moved, row in self._rows:
            took = [times[_key(row)] for times in everybody if _key(row) in times]
            if not took:
                continue
            turns = [max(turn) for turn in zip(*took)]  # noqa: B905 -- not in Python 3.9
            row["turns"], row["seconds"] = len(turns), min(turns[1:] or turns)
            if row["bus_bandwidth"] is not None:
                row["bus_bandwidth"] = moved / max(row["seconds"], 1e-9)
        return [row for _, row in self._rows]

    def _one(self, exchange: Exchange, clock: Clock, differences: Differences) -> None:
        """One turn."""
        self._turn += 1
        differences.begin()
        exchange.prepare(self._turn)
        clock.start()
        exchange.run(self._turn)
        clock.stop()
        exchange.check(self._turn, differences)


@dataclass(frozen=True)
class Run:
    """One rank's part in it: sizes (bytes, ascending), and what it does it with."""

    rank: int
    world: int
    sizes: list[int]
    bench: Bench
    buffers: Buffers
    agreement: Agreement


class Clock:
    """Times turns on a device: on a GPU by events, so that no turn waits for the host."""

    def __init__(self, device: torch.device) -> None:
        self._cuda: Any = torch.cuda if device.type == "cuda" else None
        self._device = device
        self._marks: list[tuple[Any, Any]] = []
        self._begin: Any = None

    def start(self) -> None:
        """A turn begins."""
        self._begin = self._mark()

    def stop(self) -> None:
        """It has ended."""
        self._marks.append((self._begin, self._mark()))

    def wait(self) -> None:
        """Until the device has done all that it was given."""
        if self._cuda:
            self._cuda.synchronize(self._device)

    def seconds(self) -> list[float]:
        """Of every turn."""
        self.wait()
        if self._cuda:
            return [begin.elapsed_time(end) / 1000 for begin, end in self._marks]
        return [end - begin for begin, end in self._marks]

    def _mark(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event


def repeats(first: float, share: float) -> int:
    """How many more turns are worth `share` seconds when the first took `first` seconds."""
    return min(_MOST, max(int(share / first), _LEAST if first < _SHORT else 0))


def human(size: int) -> str:
    """Bytes in the largest binary unit that they fill."""
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:g} {unit}"


def _title(name: str, pair: tuple[int, int] | None, place: int) -> str:
    if pair is None:
        return name
    if name != "sendrecv":
        return f"{name} {pair[0]}-{pair[1]}"
    return f"{'send' if place == pair[0] else 'recv'} {pair[0]}->{pair[1]}"


def _row(name: str, size: int, pair: tuple[int, int] | None) -> dict[str, Any]:
    return {
        "name": name,
        "bytes": size,
        "right": None,
        "seconds": None,
        "bus_bandwidth": None,
        "pair": list(pair) if pair else None,
        "turns": 0,
        "fault": "",
    }


def _key(row: dict[str, Any]) -> str:
    return f"{row['name']} {row['bytes']} {row['pair']}"


def _is_missing(error: Exception) -> bool:
    """Whether the backend has no such collective: an old gloo has no reduce_scatter."""
    text = str(error).lower()
    return dist.get_backend() == "gloo" and ("support" in text or "not implement" in text)
