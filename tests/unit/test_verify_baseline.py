"""Bandwidth as the ranks report it, and figures that are held against earlier ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mirror.errors import MachineError
from mirror.verify import baseline
from mirror.verify.bandwidth import Bandwidth
from mirror.verify.report import Training
from tests.reports import group, rank


def row(name: str, size: int, speed: float | None, pair: list[int] | None = None) -> dict[str, Any]:
    return {"name": name, "bytes": size, "right": True, "bus_bandwidth": speed, "pair": pair}


def measured(speed: float = 1.0) -> Training:
    """Two ranks on GPUs that reduce, and send to each other; `speed` is a factor."""
    among = [row("all_reduce", 8, 1e6), row("all_reduce", 2**28, 294e9 * speed)]
    ranks = (
        rank(0, gpu=True, collectives=(*among, row("sendrecv", 2**28, 200e9 * speed, [1, 0]))),
        rank(
            1,
            gpu=True,
            collectives=(
                *among,
                row("sendrecv", 2**20, 5e9, [0, 1]),
                row("sendrecv", 2**28, 150e9 * speed, [0, 1]),
                row("exchange", 2**28, None, [0, 1]),
            ),
        ),
    )
    return Training(tuple(replace(r, tokens_per_second=1000 * speed) for r in ranks), 4.0)


def test_bandwidth_is_read_by_collective_size_and_pair() -> None:
    found = measured().bandwidth
    assert found.collectives == {"all_reduce": {8: 1e6, 2**28: 294e9}}
    assert found.pairs == {(0, 1): 150e9, (1, 0): 200e9}
    assert (found.all_reduce, found.slowest_pair()) == (294e9, ((0, 1), 150e9))
    nothing = group().bandwidth
    assert (nothing.all_reduce, nothing.slowest_pair()) == (0, None)


@pytest.mark.parametrize(
    "bad",
    [
        {"name": "all_reduce", "bytes": "8", "bus_bandwidth": 1.0},
        {"name": "all_reduce", "bytes": 8, "bus_bandwidth": float("nan")},
        {"name": "sendrecv", "bytes": 8, "bus_bandwidth": None, "pair": [0]},
    ],
)
def test_rows_of_another_shape_say_nothing(bad: dict[str, Any]) -> None:
    assert Bandwidth.of([bad]) == Bandwidth()


def kept(folder: Path, speed: float = 1.0) -> baseline.Baseline:
    saved = baseline.of(group(1, gpu=True), measured(speed), "2026-01-01T00:00:00+00:00")
    baseline.save(saved, folder / "baseline.json")
    again = baseline.load(folder / "baseline.json")
    assert again == saved
    return again


def test_what_falls_by_more_than_a_tenth_is_told_with_both_figures(tmp_path: Path) -> None:
    old = kept(tmp_path)
    assert baseline.compare(old, kept(tmp_path, 0.91)).verdict == "pass"
    assert baseline.compare(old, kept(tmp_path, 2.0)).verdict == "pass"
    check = baseline.compare(old, kept(tmp_path, 0.8))
    assert check.verdict == "warn"
    assert "all_reduce of 256 MiB: 294 GB/s -> 235 GB/s" in check.evidence
    assert "rank 0 to 1: 150 GB/s -> 120 GB/s" in check.evidence
    assert "all processes: 1,000 tokens/s -> 800 tokens/s" in check.evidence
    assert "one process" not in check.evidence
    assert "--save-baseline" in check.advice


def test_another_machine_or_number_of_processes_is_not_compared(tmp_path: Path) -> None:
    old = kept(tmp_path)
    other = replace(old, machine={**old.machine, "gpus": ["NVIDIA A100"] * 2})
    check = baseline.compare(old, other)
    assert (check.verdict, "NVIDIA H200" in check.evidence) == ("skip", True)


def test_there_may_be_no_baseline_or_a_damaged_one(tmp_path: Path) -> None:
    file = tmp_path / "baseline.json"
    assert baseline.load(file) is None
    for text in ("", "{", "[]", '{"format": 2}', '{"format": 1, "saved": "x", "machine": {}}'):
        file.write_text(text, encoding="utf-8")
        with pytest.raises(ValueError):  # noqa: PT011 -- whichever
            baseline.load(file)
    with pytest.raises(MachineError, match="cannot be written"):
        baseline.save(kept(tmp_path), tmp_path / "nowhere" / "baseline.json")
