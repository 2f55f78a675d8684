"""mirror verify itself on two machines, by hand and under a real Slurm."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from mirror.store.generations import Root
from tests import hosts as machines
from tests import slurm
from tests.environments import root_with_environment
from tests.hosts import ADDRESSES, Host

pytestmark = pytest.mark.skipif(bool(machines.reason()), reason=machines.reason() or "-")

REPOSITORY = Path(__file__).resolve().parents[2]
LONG = 800.0


@pytest.fixture(scope="module")
def hosts() -> Iterator[Sequence[Host]]:
    with machines.two_hosts() as found:
        yield found


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Root:
    return root_with_environment(tmp_path_factory.mktemp("nodes") / "root")


def verify(root: Root, report: Path, *more: str) -> list[str]:
    words = ["verify", "--root", str(root.path), "--report", str(report), *more]
    return [sys.executable, "-m", "mirror", *words]


def read(report: Path, node: int) -> dict[str, Any]:
    return dict(json.loads((report / f"node-{node}" / "report.json").read_text()))


def check_reports(report: Path) -> None:
    found = [read(report, node) for node in (0, 1)]
    for node, one in enumerate(found):
        verdicts = {stage["name"]: stage["verdict"] for stage in one["stages"]}
        assert one["verdict"] in ("pass", "warn"), one["stages"]
        assert verdicts["multi"] in ("pass", "warn")
        assert one["multi"]["world_size"] == 4
        assert [rank["rank"] for rank in one["multi"]["ranks"]] == [0, 1, 2, 3]
        (other,) = next(s["checks"] for s in one["stages"] if s["name"] == "nodes")
        assert other["name"].startswith(f"node {1 - node} (")
        assert "multi pass" in other["evidence"]
    assert found[0]["multi"]["losses"] == found[1]["multi"]["losses"]


def test_what_one_machine_lacks_ends_the_verification_of_all_and_is_in_each_report(
    hosts: Sequence[Host], root: Root, tmp_path: Path
) -> None:
    """There is a GPU on neither, and one of them is asked for one."""
    running = []
    for node, host in enumerate(hosts):
        asked = ["--nodes", "2", "--node-rank", str(node), "--master", ADDRESSES[0]]
        asked += ["--gpus", "1"] if node == 1 else []
        line = verify(root, tmp_path / "report", *asked)
        running.append(
            host.start(*line, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        )
    said = [process.communicate(timeout=LONG)[0] for process in running]
    assert [process.returncode for process in running] == [9, 9], said
    first = {stage["name"]: stage for stage in read(tmp_path / "report", 0)["stages"]}
    assert first["single"]["verdict"] == "pass"
    assert "is not there: environment" in first["multi"]["checks"][0]["evidence"]
    (other,) = first["nodes"]["checks"]
    assert other["verdict"] == "fail"
    assert "environment fail" in other["evidence"]
    assert "1 asked for" in other["evidence"]
    assert str(tmp_path / "report" / "node-1") in other["advice"]
    assert not [line for host in hosts for line in host.processes()]


@pytest.mark.skipif(bool(slurm.reason()), reason=slurm.reason() or "-")
def test_srun_starts_it_on_all_nodes(hosts: Sequence[Host], root: Root, tmp_path: Path) -> None:
    report = tmp_path / "report"
    (tmp_path / "slurm").mkdir()
    with slurm.cluster(tmp_path / "slurm", hosts) as cluster:
        words = [f"--chdir={REPOSITORY}", *verify(root, report, "--slurm")]
        done = cluster.srun("-N2", "--ntasks-per-node=1", *words, timeout=LONG)
    assert done.returncode == 0, done.stdout + done.stderr
    check_reports(report)
    settings = json.loads(root.current().launch_file.read_text())
    assert settings["world_size"] == 2  # on each machine


def test_options_that_do_not_fit_together_are_told_with_the_right_command(
    root: Root, tmp_path: Path
) -> None:
    for options, said in (
        (["--nodes", "2"], "--nodes 2 needs --node-rank"),
        (["--nodes", "2", "--node-rank", "0"], "--nodes 2 needs --master"),
        (["--nodes", "2", "--node-rank", "2", "--master", "10.0.0.1"], "it is 0 to 1"),
        (["--nodes", "2", "--node-rank", "0", "--master", "gpu-a"], "gpu-a is no IPv4 address"),
        (["--master", "10.0.0.1"], "--master is for several machines"),
        (["--slurm"], "--slurm: not in a Slurm job step"),
        (["--slurm", "--nodes", "2"], "--slurm says itself how many nodes"),
    ):
        line = verify(root, tmp_path / "report", *options)
        done = subprocess.run(line, capture_output=True, text=True, cwd=REPOSITORY, check=False)
        assert done.returncode == 2, done
        assert said in done.stderr
