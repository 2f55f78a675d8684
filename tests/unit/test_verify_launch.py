"""How the trainer is started: the command line, and the children's variables."""

from __future__ import annotations

import itertools
import json
import random
import socket
from pathlib import Path

import pytest

from mirror.core.artifact import Json
from mirror.store.generation import Generation
from mirror.verify import accelerate, child, launch


def job(
    folder: Path,
    count: int,
    *,
    gpu: bool,
    environ: dict[str, str] | None = None,
    accelerate: dict[str, Json] | None = None,
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
        accelerate=accelerate or {},
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


def test_further_tables_choose_another_kind_of_launch(tmp_path: Path) -> None:
    tables: dict[str, Json] = {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2}}
    line = launch.command(job(tmp_path, 2, gpu=True, accelerate=tables))
    assert "--use_fsdp" in line
    assert "--multi_gpu" not in line  # accelerate takes one of the two
    written = json.loads((tmp_path / "accelerate.json").read_text(encoding="utf-8"))
    assert written["fsdp_config"] == {"fsdp_version": 2}
    assert (written["num_processes"], written["mixed_precision"]) == (2, "bf16")


def test_nothing_of_another_launcher_reaches_the_ranks() -> None:
    table = {
        "PET_NNODES": "2",
        "PET_SHUTDOWN_TIMEOUT": "300",
        "PYTHON_EXEC": "/other/python",
        "PYTHONPATH": "/project",
        "OMPI_COMM_WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "OMP_NUM_THREADS": "3",
        "NCCL_P2P_DISABLE": "1",
    }
    found = accelerate.environ(table, 2, gpu=True)
    assert found.keys() & table.keys() == {
        "PET_SHUTDOWN_TIMEOUT",
        "PYTHONPATH",
        "OMP_NUM_THREADS",
        "NCCL_P2P_DISABLE",
    }
    assert found["OMP_NUM_THREADS"] == "3"
    assert "SIGHUP" not in found["PET_SIGNALS_TO_HANDLE"]
    assert accelerate.alone(table).keys() == found.keys() & table.keys()


#: Of torch 2.13; rank 2 was ended because rank 1 had failed.
SUMMARY = """\
W1201 05:27:22.656000 13940 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process \
14037 closing signal SIGTERM
E1201 05:27:22.936000 13940 torch/distributed/elastic/multiprocessing/api.py:1002] failed \
(exitcode: 1) local_rank: 0 (pid: 14037) of binary: /env/bin/python
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-12-01_05:27:22
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 14037)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
[2]:
  time      : 2026-12-01_05:27:22
  host      : localhost
  rank      : 2 (local_rank: 2)
  exitcode  : -15 (pid: 14039) (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 14039
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-12-01_05:27:21
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 14038) (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 14038
============================================================
"""


def test_the_launchers_log_tells_who_failed_first(tmp_path: Path) -> None:
    log = tmp_path / "launch.log"
    log.write_text(SUMMARY, encoding="utf-8")
    assert list(accelerate.exit_codes(log).items()) == [(1, -9), (0, 1)]
    log.write_text("RuntimeError: no port\n", encoding="utf-8")
    assert accelerate.exit_codes(log) == {}


def test_the_port_is_free_and_none_that_connections_get(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", accelerate.free_port())) as taken:
        port = taken.getsockname()[1]
        assert port < 32_768
        free = accelerate.free_port()
        monkeypatch.setattr(random, "sample", lambda *_: [port, free])
        assert accelerate.free_port() == free
        monkeypatch.setattr(random, "sample", lambda *_: [port])
        assert accelerate.free_port() not in (0, port)
    with pytest.raises(OSError, match="assign"):
        accelerate.free_port("192.0.2.1")
