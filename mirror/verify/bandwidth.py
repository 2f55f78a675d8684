"""How fast data went between the ranks, read from what they report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from mirror.core.artifact import Json


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Bus bandwidth in bytes/s, by nccl-tests' definition.

    collectives: by name, then by bytes. pairs: from the first rank to the second, at the largest
    size.
    """

    collectives: Mapping[str, Mapping[int, float]] = field(default_factory=dict, hash=False)
    pairs: Mapping[tuple[int, int], float] = field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Json]]) -> Bandwidth:
        """What all ranks' rows say, as trainer/bench.py writes them; those without a bandwidth, or
        of another shape, say nothing.
        """
        collectives: dict[str, dict[int, float]] = {}
        pairs: dict[tuple[int, int], tuple[int, float]] = {}
        for name, pair, size, speed in _read(rows):
            if pair is None:
                # Each rank's row has the slowest rank's time: they say the same.
                collectives.setdefault(name, {})[size] = speed
            elif size >= pairs.get(pair, (0, 0.0))[0]:
                pairs[pair] = (size, speed)
        return cls(
            {name: dict(sorted(table.items())) for name, table in collectives.items()},
            {pair: speed for pair, (_, speed) in sorted(pairs.items())},
        )

    def at_largest(self) -> dict[str, tuple[int, float]]:
        """Of each collective: its largest size in bytes, and the bandwidth there."""
        return {name: max(table.items()) for name, table in self.collectives.items() if table}

    @property
    def all_reduce(self) -> float:
        """What training waits for: all_reduce at its largest size; 0 when it was not measured."""
        return self.at_largest().get("all_reduce", (0, 0.0))[1]

    def slowest_pair(self) -> tuple[tuple[int, int], float] | None:
        """The two ranks between which data goes slowest; None when no pair was measured."""
        return min(self.pairs.items(), key=lambda item: item[1], default=None)


def _read(
    rows: Iterable[Mapping[str, Json]],
) -> Iterator[tuple[str, tuple[int, int] | None, int, float]]:
    for row in rows:
        speed, size = row.get("bus_bandwidth"), row.get("bytes")
        if isinstance(speed, (int, float)) and speed > 0 and isinstance(size, int):
            yield str(row.get("name")), _pair(row.get("pair")), size, float(speed)


def _pair(value: Json) -> tuple[int, int] | None:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        return None
    first, second = value
    return (first, second) if isinstance(first, int) and isinstance(second, int) else None
