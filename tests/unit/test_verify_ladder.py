"""Which rungs are tried, which one is proposed, and what is said of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from mirror.verify import ladder
from mirror.verify.bandwidth import Bandwidth
from mirror.verify.ladder import Measured, Result, Rung
from mirror.verify.symptoms import TABLE


def names(rungs: Sequence[Rung]) -> list[str]:
    return [str(rung) for rung in rungs]


def measured(*rung: str, speed: float = 0.0, result: Result = "right") -> Measured:
    table = {"all_reduce": {8: 1e3, 2**26: speed * 1e9}} if result == "right" else {}
    problems = () if result == "right" else (f"it {result}\nand more",)
    bandwidth = Bandwidth(table, {(0, 1): speed * 1e9} if result == "right" else {})
    return Measured(Rung(rung), result, bandwidth, "P2P/CUMEM on 2 channels", problems, 1.0)


def test_peers_and_others_are_walked_in_their_own_order_after_the_plain_run() -> None:
    assert names(ladder.rungs(peers=True)) == [
        "plain",
        "NCCL_P2P_LEVEL=NVL",
        "NCCL_P2P_DISABLE=1",
        "NCCL_P2P_DISABLE=1 NCCL_CUMEM_HOST_ENABLE=0",
        "NCCL_P2P_DISABLE=1 NCCL_CUMEM_HOST_ENABLE=0 NCCL_SHM_DISABLE=1",
    ]
    assert names(ladder.rungs(peers=False)) == [
        "plain",
        "NCCL_CUMEM_HOST_ENABLE=0",
        "NCCL_SHM_DISABLE=1",
        "NCCL_CUMEM_HOST_ENABLE=0 NCCL_SHM_DISABLE=1",
    ]


def test_a_known_symptom_goes_to_its_setting_first_and_no_rung_is_tried_twice() -> None:
    found = names(ladder.rungs(peers=True, pointed=("nvls-off", "p2p-off", "of next year")))
    assert found[:3] == ["plain", "NCCL_NVLS_ENABLE=0", "NCCL_P2P_DISABLE=1"]
    assert len(found) == len(set(found)) == 6


def test_every_setting_that_a_symptom_points_at_is_known() -> None:
    assert {rung for entry in TABLE for rung in entry.rungs} <= set(ladder.SETTINGS)


def test_what_the_machine_has_set_already_is_no_rung() -> None:
    have = {"NCCL_P2P_DISABLE": "1", "NCCL_NVLS_ENABLE": "0"}
    found = names(ladder.rungs(peers=True, pointed=("nvls-off",), environ=have))
    assert "NCCL_NVLS_ENABLE=0" not in found
    assert "NCCL_P2P_DISABLE=1" not in found
    assert "NCCL_P2P_DISABLE=1 NCCL_CUMEM_HOST_ENABLE=0" in found


def test_the_fastest_right_rung_is_proposed_with_its_price() -> None:
    found = [
        measured(result="wrong"),
        measured("p2p-off", speed=27),
        measured("p2p-off", "shm-off", speed=2.9),
        measured("nvls-off", result="hung"),
    ]
    assert ladder.best(found) is found[1]
    check = ladder.check(found)
    assert check.verdict == "warn"
    assert "right and fastest: NCCL_P2P_DISABLE=1 (all_reduce wrong -> 27.0 GB/s)" in check.evidence
    assert "NCCL_NVLS_ENABLE=0: hung: it hung" in check.evidence
    assert "slowest pair 0-1 2.90 GB/s by P2P/CUMEM on 2 channels" in check.evidence


def test_fewer_settings_win_where_the_rest_is_about_as_fast() -> None:
    found = [measured(speed=290), measured("p2p-nvl", speed=295)]
    assert ladder.best(found) is found[0]
    assert ladder.check(found).verdict == "pass"
    slow = [measured(speed=2), measured("p2p-nvl", speed=21), measured("p2p-off", speed=22)]
    assert ladder.best(slow) is slow[2] or ladder.best(slow) is slow[1]
    assert "all_reduce 2.00 GB/s -> 2" in ladder.check(slow).evidence


def test_nothing_right_is_a_failure_that_says_so() -> None:
    check = ladder.check([measured(result="failed"), measured("p2p-off", result="hung")])
    assert (check.verdict, "under no setting" in check.evidence) == ("fail", True)


def test_climbing_goes_on_until_time_is_up_and_something_is_right() -> None:
    rungs = ladder.rungs(peers=True)
    clock = iter(range(0, 10_000, 100))
    found = ladder.climb(
        rungs,
        lambda rung: measured(*rung.names, speed=1) if rung.names else measured(result="hung"),
        clock=lambda: next(clock),
    )
    assert len(found) == 3
    clock = iter(range(0, 10_000, 100))
    found = ladder.climb(
        rungs, lambda rung: measured(*rung.names, result="hung"), clock=lambda: next(clock)
    )
    assert len(found) == len(rungs)


@pytest.mark.parametrize(
    ("speed", "said"),
    [
        (294e9, []),
        (
            27e9,
            [
                "rank 0 to 1: 27.0 GB/s, where the link promises 478 GB/s",
                "all_reduce: 27.0 GB/s, where the slowest link promises 478 GB/s",
            ],
        ),
    ],
)
def test_far_less_than_the_links_promise_is_told(speed: float, said: list[str]) -> None:
    bandwidth = Bandwidth({"all_reduce": {2**26: speed}}, {(0, 1): speed})
    assert ladder.slow(bandwidth, {(0, 1): 478e9, (1, 0): 478e9}) == said
    assert ladder.slow(bandwidth, {}) == []
