"""The collectives: every value checked, every fault found and named; real processes, on gloo."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from mirror.verify import child, launch
from tests import shims
from trainer import bench, collectives, pairs
from trainer.patterns import Differences, Pattern, Wrong, poison
from trainer.results import Heartbeat

CPU = torch.device("cpu")
KIB, MIB = 2**10, 2**20


# -- what is sent --------------------------------------------------------------------------------


def differences(
    got: torch.Tensor, base: torch.Tensor, times: int = 1, plus: int = 0
) -> Wrong | None:
    found = Differences(CPU)
    found.begin()
    found.add(got, base, times, plus)
    return found.read()


def sent(pattern: Pattern, turn: int, rank: int, size: int) -> torch.Tensor:
    values = torch.empty(size)
    pattern.fill(values, turn, rank)
    return values


def test_values_are_whole_numbers_whose_sums_are_exact() -> None:
    pattern = Pattern(5000, CPU)
    total = sum(sent(pattern, 3, rank, 5000).double() for rank in range(1000))
    floats = torch.zeros(5000)
    for rank in range(1000):
        floats += sent(pattern, 3, rank, 5000)
    assert torch.equal(floats.double(), torch.as_tensor(total))
    assert differences(floats, pattern.at(3, 5000), 1000, 1000 * 999 // 2) is None


@pytest.mark.parametrize("size", [2, 2**17, 2**18])
def test_data_of_another_turn_rank_or_place_is_found(size: int) -> None:
    pattern = Pattern(size + 2**20, CPU)
    base = pattern.at(5, size)
    assert differences(sent(pattern, 5, 2, size), base, plus=2) is None
    for turn in (4, 6, 5 + 60):
        found = differences(sent(pattern, turn, 2, size), base, plus=2)
        assert found is not None
        assert found.wrong == size, turn
    for rank in (0, 1, 3):
        assert differences(sent(pattern, 5, rank, size), base, plus=2) is not None
    for shift in (2**n for n in range(20)):
        moved = sent(pattern, 5, 2, size + shift)[shift:]
        assert differences(moved, base, plus=2) is not None, shift


def test_one_wrong_value_of_many_is_found_and_what_never_came_is_no_number() -> None:
    pattern = Pattern(2**23, CPU)
    values = sent(pattern, 1, 0, 2**23)
    values[2**23 - 1] += 1
    assert str(differences(values, pattern.at(1, 2**23))) == "1 of 8,388,608 values wrong"
    poison(values[:3])
    found = differences(values, pattern.at(1, 2**23))
    assert found == Wrong(turn=0, turns=1, wrong=4, none=3, numbers=2**23)
    assert str(found).endswith("4 of 8,388,608 values wrong, 3 of them not a number")


# -- what is planned -----------------------------------------------------------------------------


@pytest.mark.parametrize("world", range(2, 18))
def test_every_pair_has_its_round_and_no_rank_is_in_two_pairs_at_once(world: int) -> None:
    plan = pairs.rounds(world)
    assert sorted(pair for found in plan for pair in found) == sorted(
        itertools.combinations(range(world), 2)
    )
    assert len(plan) == world - 1 + world % 2
    for found in plan:
        ranks = [rank for pair in found for rank in pair]
        assert len(ranks) == len(set(ranks))


def test_sizes_are_those_where_faults_begin_and_the_largest() -> None:
    sizes = collectives.sizes_up_to(256 * MIB)
    assert sizes[0] == 8
    assert {512 * KIB, MIB, 256 * MIB} <= set(sizes)
    assert all(small < large <= 8 * small for small, large in itertools.pairwise(sizes))
    assert collectives.sizes_up_to(8) == [8]
    assert collectives.sizes_up_to(100) == [8, 64, 100]


def test_sizes_are_written_in_the_unit_that_they_fill() -> None:
    written = [bench.human(size) for size in (8, 512, 4096, 512 * KIB, MIB, 256 * MIB, 2**30, 100)]
    assert written == ["8 B", "512 B", "4 KiB", "512 KiB", "1 MiB", "256 MiB", "1 GiB", "100 B"]


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    """A process group of this process alone."""
    address = (tmp_path / "store").as_uri()
    dist.init_process_group("gloo", init_method=address, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_no_more_memory_is_taken_than_a_share_of_what_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collectives, "_available", lambda: 3 * MIB)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    rows = collectives.check(0, 1, CPU, seconds=0)
    assert max(row["bytes"] for row in rows) == 256 * KIB
    assert all(row["right"] for row in rows)


@pytest.mark.usefixtures("alone")
def test_a_heartbeat_says_what_is_exchanged(tmp_path: Path) -> None:
    seen: list[tuple[int, str]] = []

    class Listening(Heartbeat):
        def __call__(self, phase: str, step: int | None = None, detail: str = "") -> None:
            super().__call__(phase, step, detail)
            said = json.loads((tmp_path / "rank-0.phase").read_bytes())
            assert (said["phase"], said["pid"]) == ("collectives", os.getpid())
            seen.append((said["step"], said["detail"]))

    collectives.check(0, 1, CPU, Listening(tmp_path, 0), largest=512 * KIB, seconds=0)
    steps = [step for step, _ in seen]
    assert steps == sorted(set(steps))
    assert [detail for _, detail in seen][-4:] == [
        "all_reduce of 512 KiB",
        "all_gather of 512 KiB",
        "reduce_scatter of 512 KiB",
        "broadcast of 512 KiB",
    ]


# -- between processes ---------------------------------------------------------------------------


def run(
    folder: Path,
    count: int,
    *faults: dict[str, Any],
    environ: dict[str, str] | None = None,
    largest: int = MIB,
    stall: float = 120.0,
) -> launch.Outcome:
    """The command `collectives` on so many processes, on a machine with these faults."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    job = launch.Job(
        python=shims.interpreter(folder / "shim", *faults),
        folder=folder / "run",
        processes=count,
        gpu=False,
        arguments=("collectives", "--largest", str(largest), "--seconds", "1"),
        environ={**clean, **(environ or {})},
    )
    return launch.launch(job, limits=launch.Limits(start=300, stall=stall))


def rows(result: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = result["collectives"]
    return found


def phases(folder: Path, count: int) -> list[str]:
    """What each rank was at."""
    files = [folder / "run" / f"rank-{rank}.phase" for rank in range(count)]
    return [json.loads(file.read_bytes()).get("detail", "") for file in files]


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Three ranks, of which one adds wrongly from 512 KiB up and one hears another badly."""
    outcome = run(
        tmp_path_factory.mktemp("damaged"),
        3,
        {"fault": "corrupt", "ops": ["all_reduce"], "above": 512 * KIB, "ranks": [1], "world": 3},
        {"fault": "nan", "ops": ["recv"], "ranks": [2], "peers": [0], "above": 4096},
    )
    assert outcome.problems == ()
    return list(outcome.results)


def test_a_wrong_value_is_found_where_it_is_and_nowhere_else(damaged: list[Any]) -> None:
    wrong = {
        (result["rank"], row["name"], row["bytes"], tuple(row["pair"] or ()))
        for result in damaged
        for row in rows(result)
        if not row["right"]
    }
    large = [512 * KIB, MIB]
    heard = [4096, 32768, 262144, *large]
    assert wrong == {
        *((1, "all_reduce", size, ()) for size in large),
        *((2, "sendrecv", size, (0, 2)) for size in heard),
    }


def test_a_fault_is_told_in_words(damaged: list[Any]) -> None:
    said = {
        (row["name"], row["bytes"]): row["fault"]
        for result in damaged
        for row in rows(result)
        if row["fault"]
    }
    assert said["all_reduce", MIB].startswith("1 of 262,144 values wrong")
    assert "1 of 1,024 values wrong, 1 of them not a number" in said["sendrecv", 4096]
    assert all(bool(row["fault"]) is not row["right"] for r in damaged for row in rows(r))


def test_every_collective_size_and_pair_is_there_on_every_rank(damaged: list[Any]) -> None:
    sizes = collectives.sizes_up_to(MIB)
    names = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
    for result in damaged:
        rank = result["rank"]
        found = [(row["name"], row["bytes"], tuple(row["pair"] or ())) for row in rows(result)]
        others = [other for other in range(3) if other != rank]
        assert sorted(found) == sorted(
            [
                *((name, size, ()) for name in names for size in sizes),
                *(("sendrecv", size, (other, rank)) for other in others for size in sizes),
                *(
                    ("all_reduce", size, (min(rank, other), max(rank, other)))
                    for other in others
                    for size in sizes[:-1]
                ),
            ]
        )
        # A pair's collective is checked at the same time as other pairs', so it is not measured.
        measured = [row for row in rows(result) if row["bus_bandwidth"] is not None]
        assert len(measured) == (len(names) + len(others)) * len(sizes)


def test_pairs_come_before_all(damaged: list[Any]) -> None:
    order = [row["pair"] is None for row in rows(damaged[0])]
    assert order == sorted(order)


def test_bandwidths_are_those_of_nccl_tests_and_the_slowest_ranks(damaged: list[Any]) -> None:
    factors = {"all_reduce": 4 / 3, "all_gather": 2 / 3, "reduce_scatter": 2 / 3}
    for row in (row for result in damaged for row in rows(result)):
        assert row["seconds"] > 0
        if row["bus_bandwidth"] is None:
            continue
        moved = row["bytes"]
        if row["name"] in ("all_gather", "reduce_scatter"):
            moved = 12 * -(-moved // 12)  # three whole parts
        expected = moved / row["seconds"] * factors.get(row["name"], 1.0)
        assert row["bus_bandwidth"] == pytest.approx(expected)
    among = [
        [(row["turns"], row["seconds"]) for row in rows(result) if row["pair"] is None]
        for result in damaged
    ]
    assert among[0] == among[1] == among[2]


def test_who_the_ranks_are_is_told(damaged: list[Any]) -> None:
    assert [result["rank"] for result in damaged] == [0, 1, 2]
    assert {result["backend"] for result in damaged} == {"gloo"}
    assert {result["world_size"] for result in damaged} == {3}


def test_slowness_shows_a_cure_helps_and_a_missing_collective_is_no_failure(
    tmp_path: Path,
) -> None:
    cure = {"NCCL_P2P_DISABLE": "1"}
    outcome = run(
        tmp_path,
        2,
        {"fault": "slow", "ops": ["all_reduce"], "bytes_per_second": 2e7},
        {"fault": "hang", "unless": [{"NCCL_P2P_LEVEL": "NVL"}, cure]},
        {
            "fault": "raise",
            "ops": ["reduce_scatter"],
            "text": "ProcessGroupGloo does not support reduce_scatter",
        },
        environ=cure,
    )
    assert outcome.problems == ()
    for result in outcome.results:
        assert result["settings"]["NCCL_P2P_DISABLE"] == "1"  # type: ignore[call-overload, index]
        by_name = {(row["name"], row["bytes"]): row for row in rows(result)}
        assert by_name["all_reduce", MIB]["bus_bandwidth"] < 2e7
        assert by_name["sendrecv", MIB]["bus_bandwidth"] > 2e7
        missing = [row for row in rows(result) if row["name"] == "reduce_scatter"]
        assert [(row["right"], row["fault"]) for row in missing] == [(None, "not offered by gloo")]
        assert all(row["right"] for row in rows(result) if row["name"] != "reduce_scatter")


def test_a_rank_that_skips_a_collective_is_known_by_its_values(tmp_path: Path) -> None:
    skip = {"fault": "skip", "ops": ["all_gather"], "above": 512 * KIB, "ranks": [1]}
    outcome = run(tmp_path, 2, skip, stall=20)
    assert outcome.problems[0] == "no rank has moved on for 20 s"
    others, culprit = phases(tmp_path, 2)
    assert others == "all_gather of 512 KiB"
    assert culprit.startswith("all_gather of 512 KiB: 131,072 of 131,072 values wrong")


def test_a_send_that_hangs_is_named_with_its_pair_and_size(tmp_path: Path) -> None:
    hang = {"fault": "hang", "ops": ["send"], "above": 512 * KIB, "ranks": [0], "peers": [2]}
    outcome = run(tmp_path, 3, hang, stall=20)
    assert phases(tmp_path, 3) == [
        "send 0->2 of 512 KiB",
        "wait for the other pairs",
        "recv 0->2 of 512 KiB",
    ]
    blamed = [problem for problem in outcome.problems if " hangs " in problem]
    assert [problem[:6] for problem in blamed] == ["rank 0", "rank 2"]


def test_a_process_alone_is_told_that_it_is(tmp_path: Path) -> None:
    line = [sys.executable, child.trainer(), "collectives", "--out", str(tmp_path)]
    clean = {"ACCELERATE_USE_CPU": "true", "PATH": os.environ["PATH"]}
    done = subprocess.run(line, capture_output=True, text=True, check=False, env=clean)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith("this process is alone, and sends to nobody")
    assert not (tmp_path / "rank-0.json").exists()
