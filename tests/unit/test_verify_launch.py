"""How the trainer is started: the command line, and the children's variables."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from mirror.store.generations import Generation
from mirror.verify import child, launch


def job(
    folder: Path, count: int, *, gpu: bool, environ: dict[str, str] | None = None
) -> launch.Job:
    folder.mkdir(exist_ok=True)
    python = Path("/env/bin/python")
    return launch.Job(
        python=python,
        folder=folder,
        processes=count,
        gpu=gpu,
        arguments=("train", "--steps", "40"),
        environ=environ or {},
        precision="bf16",
    )


def test_one_process_is_the_trainer_itself(tmp_path: Path) -> None:
    line = launch.command(job(tmp_path, 1, gpu=False))
    assert line[:3] == ["/env/bin/python", child.trainer(), "train"]


def test_many_processes_leave_nothing_to_a_users_own_configuration(tmp_path: Path) -> None:
    line = launch.command(job(tmp_path, 4, gpu=True))
    assert line[:3] == ["/env/bin/python", "-m", "accelerate.commands.launch"]
    said = dict(itertools.pairwise(line))
    assert said["--config_file"] == str(tmp_path / "accelerate.json")
    assert said["--num_processes"] == "4"
    assert said["--num_machines"] == "1"
    assert said["--mixed_precision"] == "bf16"
    assert said["--dynamo_backend"] == "no"
    assert "--multi_gpu" in line
    assert 0 < int(said["--main_process_port"]) != 29500


def test_cpu_processes_see_no_gpu_and_gpu_processes_as_many_as_they_are(tmp_path: Path) -> None:
    cpu = launch.environ(job(tmp_path, 2, gpu=False))
    assert cpu["ACCELERATE_USE_CPU"] == "true"
    assert cpu["CUDA_VISIBLE_DEVICES"] == ""
    gpu = launch.environ(job(tmp_path, 2, gpu=True))
    assert gpu["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert "ACCELERATE_USE_CPU" not in gpu
    chosen = {"CUDA_VISIBLE_DEVICES": "5,3,1"}
    gpu = launch.environ(job(tmp_path, 2, gpu=True, environ=chosen))
    assert gpu["CUDA_VISIBLE_DEVICES"] == "5,3"


def test_a_schedulers_variables_do_not_reach_the_ranks_and_nccls_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = [
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "PYTHONPATH",
        "PMI_SIZE",
    ]
    foreign += ["ACCELERATE_USE_FSDP", "OMPI_COMM_WORLD_SIZE", "TORCHELASTIC_RUN_ID"]
    for name in foreign:
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("NCCL_NVLS_ENABLE", "0")
    monkeypatch.setenv("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")
    table = child.variables(Generation(tmp_path))
    assert not set(foreign) & set(table)
    assert table["NCCL_NVLS_ENABLE"] == "0"
    assert table["TORCH_SYMM_MEM_DISABLE_MULTICAST"] == "1"
    assert table["HF_HUB_OFFLINE"] == "1"
