"""Whether Ray works here: it is started on this machine alone, runs its tasks, and is stopped.

As verl has it: a placement group (PACK) of one bundle a GPU, and a process in each. Ray is no
dependency of the trainer's; it is the environment's or it is not there.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import importlib.util
import time
from pathlib import Path
from typing import Any

from trainer.results import Heartbeat, write_json

#: Bytes of Ray's object store: a little over the least that it takes (75 MiB), since a machine may
#: have a small /dev/shm and nothing is stored.
STORE = 80 * 2**20
#: Share of the time limit that the placement group, and the tasks, may each take.
_SHARE = 0.4


def main(arguments: list[str]) -> int:
    """Leave {"version", "address", "resources", "tasks", ...} in a file, {} without Ray.

    tasks: of each task {"pid", "visible" (CUDA_VISIBLE_DEVICES), "gpus" (Ray's numbers), "uuid",
    "reason"}; uuid: of the GPU that torch computed on, empty without torch or GPUs, and then reason
    says why. seconds: until Ray was up, until all tasks were done, until it was down.
    """
    parser = argparse.ArgumentParser(prog="trainer ray")
    parser.add_argument("--out", type=Path, required=True, help="file for the answer")
    parser.add_argument("--folder", type=Path, required=True, help="for Ray's own files")
    parser.add_argument("--tasks", type=int, required=True)
    parser.add_argument("--gpus", action="store_true", help="one GPU a task, else one CPU")
    parser.add_argument("--limit", type=float, required=True, help="seconds until a stack is shown")
    options = parser.parse_args(arguments)
    enter = Heartbeat(options.out.parent, 0)
    faulthandler.dump_traceback_later(options.limit)
    enter("import")
    if importlib.util.find_spec("ray") is None:
        write_json(options.out, {})
        return 0
    ray: Any = importlib.import_module("ray")
    begin = time.monotonic()
    enter("start", detail=f"ray {ray.__version__}")
    ray.init(
        address="local",  # not what RAY_ADDRESS names, nor a cluster that is running already
        num_cpus=options.tasks,
        num_gpus=options.tasks if options.gpus else 0,
        include_dashboard=False,
        object_store_memory=STORE,
        _node_ip_address="127.0.0.1",
        _temp_dir=str(options.folder),
    )
    up = time.monotonic() - begin
    answer = {
        "version": ray.__version__,
        # Newer ones put the machine's outward address in the place of 127.0.0.1.
        "address": ray.util.get_node_ip_address(),
        "resources": {name: ray.cluster_resources().get(name, 0) for name in ("CPU", "GPU")},
        "tasks": _tasks(ray, enter, options),
    }
    done = time.monotonic() - begin
    enter("stop")
    ray.shutdown()
    answer["seconds"] = [up, done, time.monotonic() - begin]
    write_json(options.out, answer)
    return 0


def _tasks(ray: Any, enter: Heartbeat, options: argparse.Namespace) -> list[dict[str, Any]]:
    groups = importlib.import_module("ray.util.placement_group")
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    patience = options.limit * _SHARE
    bundle = {"CPU": 1, "GPU": 1} if options.gpus else {"CPU": 1}
    enter("placement", detail=f"{options.tasks} bundles of {bundle}, PACK")
    group = groups.placement_group([bundle] * options.tasks, strategy="PACK")
    ready, _ = ray.wait([group.ready()], timeout=patience)
    if not ready:
        free = ray.available_resources()
        raise SystemExit(
            f"the placement group was not ready after {patience:.0f} s; Ray has CPU"
            f" {free.get('CPU', 0):g}, GPU {free.get('GPU', 0):g} free"
        )
    enter("tasks", detail=f"{options.tasks} at the same time")
    meeting = options.folder / "meeting"
    meeting.mkdir()
    task = ray.remote(_task())
    started = [
        task.options(
            num_cpus=1,
            num_gpus=int(options.gpus),
            max_retries=0,
            scheduling_strategy=strategies.PlacementGroupSchedulingStrategy(
                group, placement_group_bundle_index=number
            ),
        ).remote(str(meeting), options.tasks, patience)
        for number in range(options.tasks)
    ]
    found: list[dict[str, Any]] = ray.get(started, timeout=patience * 1.5)
    return found


def _task() -> Any:
    """What each process does.

    Made in a function, so that Ray sends it by value: its workers cannot import this package.
    """

    def task(meeting: str, world: int, patience: float) -> dict[str, Any]:
        import importlib.util
        import os
        import pathlib
        import time

        import ray  # type: ignore[import-not-found, unused-ignore]

        # All wait for each other, else one process could do one task after the other.
        folder = pathlib.Path(meeting)
        (folder / f"{os.getpid()}-{time.monotonic_ns()}").touch()
        deadline = time.monotonic() + patience
        while (here := len(list(folder.iterdir()))) < world:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{here} of {world} tasks ran at the same time")
            time.sleep(0.02)
        uuid = reason = ""
        if ray.get_gpu_ids():
            if importlib.util.find_spec("torch") is None:
                reason = "torch is not in this environment"
            else:
                import torch

                try:
                    ones = torch.ones(1000, device="cuda")
                    total = int(ones.sum().item())
                    properties: Any = torch.cuda.get_device_properties(0)
                    uuid = str(getattr(properties, "uuid", "")) or "unknown to this torch"
                    reason = "" if total == 1000 else f"a sum of 1000 ones is {total}"
                except (RuntimeError, AssertionError) as error:
                    reason = " ".join(str(error).split()) or type(error).__name__
        return {
            "pid": os.getpid(),
            "visible": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
            "gpus": [str(gpu) for gpu in ray.get_gpu_ids()],
            "uuid": uuid,
            "reason": reason,
        }

    return task
