"""When the ladder is climbed, and what follows from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from mirror.verify import ladder, remedy
from mirror.verify.ladder import Measured, Rung
from mirror.verify.report import Check, Training

from .test_verify_baseline import measured as trained
from .test_verify_ladder import measured

PROMISED = {(0, 1): 478e9, (1, 0): 478e9}
CURE = {"NCCL_P2P_DISABLE": "1"}
GOOD = [Check("collectives", "pass", "every value checked")]
BAD = [Check("run", "fail", "rank 1 died")]


def settle(
    train: Callable[[Mapping[str, str]], tuple[list[Check], Training | None]],
    measure: Callable[[Rung], Measured],
    *,
    always: bool = False,
) -> remedy.Settled:
    return remedy.settle(
        train, measure, lambda: ladder.rungs(peers=True), promised=PROMISED, always=always
    )


def never(rung: Rung) -> Measured:
    raise AssertionError(f"{rung} was measured")


def test_a_plain_run_that_is_right_and_fast_is_all() -> None:
    found = settle(lambda env: (GOOD, trained()), never)
    assert (found.checks, found.env, found.rungs) == (tuple(GOOD), {}, ())


def test_a_failure_is_overcome_by_the_fastest_right_rung_under_which_training_passes() -> None:
    tried: list[Mapping[str, str]] = []

    def train(env: Mapping[str, str]) -> tuple[list[Check], Training | None]:
        tried.append(env)
        return (GOOD, trained(0.1)) if env else (BAD, None)

    def measure(rung: Rung) -> Measured:
        if "NCCL_P2P_DISABLE" not in rung.env:
            return measured(*rung.names, result="failed")
        return measured(*rung.names, speed=27 if rung.env == CURE else 3)

    found = settle(train, measure)
    assert tried == [{}, CURE]
    assert (found.env, found.training) == (CURE, trained(0.1))
    verdicts = {check.name: check.verdict for check in found.checks}
    assert verdicts == {"plain: run": "warn", "ladder": "warn", "collectives": "pass"}
    assert len(found.rungs) == 5


def test_a_failure_that_no_setting_cures_stays_one() -> None:
    found = settle(lambda env: (BAD, None), lambda rung: measured(*rung.names, result="hung"))
    assert [check.verdict for check in found.checks] == ["fail", "fail"]
    assert (found.env, found.training) == ({}, None)


def test_nccl_is_not_blamed_for_what_fails_beside_it() -> None:
    count: list[Rung] = []

    def measure(rung: Rung) -> Measured:
        count.append(rung)
        return measured(*rung.names, speed=294)

    found = settle(lambda env: (BAD, None), measure)
    assert len(count) == 1
    assert [check.verdict for check in found.checks] == ["fail", "pass"]
    assert "no setting of NCCL's is to blame" in found.checks[-1].evidence


def test_a_rung_under_which_training_fails_is_not_proposed() -> None:
    def measure(rung: Rung) -> Measured:
        return measured(*rung.names, speed=27) if rung.env else measured(result="wrong")

    found = settle(lambda env: (BAD, None), measure)
    assert found.env == {}
    assert "fail" in {check.verdict for check in found.checks}
    assert "nothing was set" in next(c for c in found.checks if c.name == "ladder").advice


def test_a_plain_pass_far_below_the_links_promise_is_a_finding_and_the_faster_rung_proposed() -> (
    None
):
    def measure(rung: Rung) -> Measured:
        return measured(*rung.names, speed=22 if rung.env == CURE else 2)

    found = settle(lambda env: (GOOD, trained(0.008 if not env else 0.08)), measure)
    assert found.env == CURE
    told = {check.name: check for check in found.checks}
    assert "where the slowest link promises 478 GB/s" in told["plain: bandwidth"].evidence
    assert "all_reduce 2.00 GB/s -> 22.0 GB/s" in told["ladder"].evidence
    assert {check.verdict for check in found.checks} == {"pass", "warn"}


def test_every_rung_is_measured_when_that_is_asked_for() -> None:
    speeds = iter((294, 290, 27, 20, 2.9))
    found = settle(
        lambda env: (GOOD, trained()),
        lambda rung: measured(*rung.names, speed=next(speeds)),
        always=True,
    )
    assert (len(found.rungs), found.env) == (5, {})
    assert found.checks[-1].verdict == "pass"
    assert "NCCL_P2P_DISABLE=1: 27.0 GB/s" in found.checks[-1].evidence
