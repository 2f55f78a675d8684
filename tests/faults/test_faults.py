"""Some points of each scene, the same ones each time; `make faults` walks them all."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import ptrace
from tests.faults.walks import sample

CHECKOUT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(bool(ptrace.LACKING), reason=ptrace.LACKING)


def figures(*arguments: str) -> list[tuple[int, int]]:
    """What was tried and what held, of each part; a process of its own, which forks."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.run", *arguments],
        cwd=CHECKOUT,
        env=os.environ | {"PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [(int(a), int(b)) for a, b in re.findall(r": (\d+), .*: (\d+)$", done.stdout, re.M)]


@pytest.mark.parametrize("scene", ["first", "increment"])
def test_an_install_under_every_fault(scene: str) -> None:
    (kills, errors, rivals, cuts, order) = figures("--only", scene, "--points", "10")
    assert kills == errors == rivals == cuts == (10, 10)
    assert order[0] == order[1] > 100


def test_keeping_house_under_every_fault() -> None:
    scenes = [word for name in ("gc", "pin", "rollback") for word in ("--only", name)]
    kills, errors, _, cuts, order = figures(*scenes, "--points", "6")
    assert kills == errors == cuts == (18, 18)
    assert order[0] == order[1] > 50


@pytest.mark.parametrize("scene", ["build", "volumes"])
def test_a_build_under_every_fault(scene: str) -> None:
    kills, errors, _, cuts, order = figures("--only", scene, "--points", "3")
    assert kills == errors == cuts == (3, 3)
    assert order[0] == order[1] > 50


def test_an_environment_under_some_faults() -> None:
    kills, errors, *_ = figures("--only", "environment", "--points", "3")
    assert kills == errors == (3, 3)


def test_points_are_spread_and_the_same_each_time() -> None:
    assert sample(5, None) == sample(5, 9) == [0, 1, 2, 3, 4]
    found = sample(1000, 10)
    assert found == sample(1000, 10)
    assert all(100 * number <= at < 100 * (number + 1) for number, at in enumerate(found))
