"""`--slurm` under a real Slurm: slurmctld, and a slurmd on each of two hosts.

That it trains there is in test_verify_nodes.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mirror.verify import ranks
from tests import hosts as machines
from tests import slurm
from tests.slurm import Slurm

pytestmark = pytest.mark.skipif(bool(slurm.reason()), reason=slurm.reason() or "-")

REPOSITORY = Path(__file__).resolve().parents[2]
LONG = 400.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with (
        machines.two_hosts() as hosts,
        slurm.cluster(tmp_path_factory.mktemp("slurm"), hosts) as found,
    ):
        yield found


def node(folder: Path, **asked: Any) -> list[str]:
    """What each task runs."""
    table = {"slurm": True, "folder": str(folder), **asked}
    return [f"--chdir={REPOSITORY}", sys.executable, "-m", "tests.node", json.dumps(table)]


def outcome(folder: Path, name: str) -> dict[str, Any]:
    return dict(json.loads((folder / name / "outcome.json").read_text()))


def test_several_tasks_a_node_are_refused_with_the_right_command(
    cluster: Slurm, tmp_path: Path
) -> None:
    cluster.srun("-N2", "-n4", *node(tmp_path), timeout=LONG)
    for task in ("node0-0", "node0-1", "node1-0", "node1-1"):
        said = outcome(tmp_path, task)["error"]
        assert "one task a node is needed, and Slurm says 2(x2)" in said
        assert "srun --nodes=2 --ntasks-per-node=1" in said


def test_a_cancelled_job_leaves_no_rank_on_any_node(cluster: Slurm, tmp_path: Path) -> None:
    asked = node(tmp_path, steps=1_000_000)
    started = subprocess.Popen(
        cluster.command(0, "srun", "-N2", "--ntasks-per-node=1", *asked),
        env=cluster.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    folder = tmp_path / "node1-0" / "multi"
    deadline = time.monotonic() + LONG
    while (phase := ranks.read_phase(folder, 1)) is None or (phase.step or 0) < 3:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    subprocess.run(cluster.command(0, "scancel", "--user=root"), env=cluster.environ, check=True)
    started.communicate(timeout=LONG)

    def left() -> list[str]:
        lines = [line for host in cluster.hosts for line in host.processes()]
        return [line for line in lines if "trainer" in line or "tests.node" in line]

    while left():
        assert time.monotonic() < deadline, left()
        time.sleep(0.1)
    assert outcome(tmp_path, "node0-0") == {"error": "interrupted"}
