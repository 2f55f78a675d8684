"""The NCCL ladder on real processes whose collectives fail unless a setting is there."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from mirror.verify import ladder
from mirror.verify.ladder import Rung
from mirror.verify.launch import Job, Limits
from tests import shims

#: Enough for a busy machine of two cores to go on with something.
LIMITS = Limits(start=120, stall=15)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "LARGEST", 2**20)
    monkeypatch.setattr(ladder, "SECONDS", 0.5)


def job(folder: Path, *faults: dict[str, Any]) -> Job:
    python = shims.interpreter(folder / "shim", *faults) if faults else Path(sys.executable)
    return Job(
        python=python,
        folder=folder,
        processes=2,
        gpu=False,
        arguments=("collectives",),
        environ=dict(os.environ),
    )


#: A fault a setting, of every kind that has been met; what the machine as it is comes to.
FAULTS: list[tuple[str, dict[str, Any], str, str]] = [
    (
        "p2p-off",
        {"fault": "raise", "ops": ["all_reduce"], "text": "CUDA error: an illegal memory access"},
        "failed",
        "illegal memory access",
    ),
    ("shm-off", {"fault": "corrupt", "ops": ["all_gather"], "above": 2**19}, "wrong", "all_gather"),
    ("cumem-host-off", {"fault": "hang", "ops": ["broadcast"]}, "hung", "no rank has moved on"),
    ("p2p-nvl", {"fault": "nan", "ops": ["recv"]}, "wrong", "sendrecv"),
    (
        "nvls-off",
        {"fault": "crash", "signal": 11, "ops": ["all_reduce"], "ranks": [1]},
        "failed",
        "",
    ),
]


@pytest.mark.parametrize(("cure", "fault", "result", "said"), FAULTS)
def test_each_setting_is_found_to_cure_what_it_cures(
    tmp_path: Path, cure: str, fault: dict[str, Any], result: str, said: str
) -> None:
    sick = job(tmp_path, {**fault, "unless": dict(ladder.SETTINGS[cure])})
    plain = ladder.measure(sick, Rung(), tmp_path / "plain", LIMITS)
    assert plain.result == result, plain.problems
    assert said in "\n".join(plain.problems)
    assert plain.speed == 0
    cured = ladder.measure(sick, Rung((cure,)), tmp_path / "cured", LIMITS)
    assert cured.result == "right", cured.problems
    assert cured.speed > 0
    assert ladder.best([plain, cured]) is cured


def test_a_machine_that_is_right_and_slow_is_climbed_to_its_fastest_rung(tmp_path: Path) -> None:
    slow = {"fault": "slow", "bytes_per_second": 2e6, "unless": {"NCCL_SHM_DISABLE": "1"}}
    sick = job(tmp_path, slow)
    rungs = [Rung(), Rung(("cumem-host-off",)), Rung(("shm-off",))]
    found = ladder.climb(
        rungs, lambda rung: ladder.measure(sick, rung, tmp_path / str(len(str(rung))), LIMITS)
    )
    assert [m.result for m in found] == ["right"] * 3
    assert ladder.best(found) is found[2]
    assert ladder.check(found).verdict == "warn"
    assert "right and fastest: NCCL_SHM_DISABLE=1" in ladder.check(found).evidence
