"""The training run: a few dozen steps through accelerate, on one process or on many.

The global batch is fixed and split evenly, between ranks and between a step's passes; every sample
and weight is seeded, and gradients are means. So N processes do the same sums as one, in another
order, and what differs is rounding alone: docs/verify.md has the tolerances, and what was measured.
"""

from __future__ import annotations

import os
import re
import signal
import sys
import time
import warnings
from typing import Any

from trainer import group, options
from trainer.options import TOLERANCES, Options
from trainer.results import Heartbeat, write_json

SEED = 0


def main(arguments: list[str]) -> int:
    """Train as one rank, or alone; leaves rank-N.json in the folder.

    Ends with exit code 1 and one line of reason where a checkpoint cannot be written or read.
    """
    asked = options.parse(arguments)
    rank, world, heartbeat = group.enter(asked.out)
    # cuBLAS sums in a fixed order only with a workspace of fixed size; read when CUDA starts.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    begin = time.monotonic()
    heartbeat("import")
    import torch
    from accelerate.utils import set_seed  # type: ignore[import-untyped]

    imported = time.monotonic()
    heartbeat("init")
    set_seed(SEED)
    # As use_deterministic_algorithms does, which imports torch's compiler besides: 3 s.
    torch.set_deterministic_debug_mode("warn")
    unrepeatable = _note_unrepeatable()
    accelerator, plugin = _accelerator(asked, world)
    started = time.monotonic()
    result: dict[str, Any] = {
        **group.identity(accelerator),
        "precision": asked.precision,
        "tolerance": TOLERANCES[asked.precision],
        "steps": asked.steps,
        "batch": asked.batch,
        "accumulation": asked.accumulation,
        "parallel": _parallel(accelerator, plugin),
    }
    heartbeat("collectives")
    if accelerator.num_processes > 1 and asked.collectives:
        result["collectives"] = _collectives(accelerator, heartbeat)
    from trainer.checkpoint import CheckpointError

    try:
        result.update(_train(asked, accelerator, plugin, heartbeat))
    except CheckpointError as error:
        print(f"trainer: {error}", file=sys.stderr)
        return 1
    result["unrepeatable"] = sorted(unrepeatable)
    result["seconds"] = {
        "import": imported - begin,
        "init": started - imported,
        "rest": time.monotonic() - started,
    }
    write_json(asked.out / f"rank-{rank}.json", result)
    if asked.kill_after:
        accelerator.wait_for_everyone()
        os.kill(os.getpid(), signal.SIGKILL)  # nothing is closed, flushed or said, as in an outage
    heartbeat("done")
    group.leave(accelerator)
    return 0


def _accelerator(asked: Options, world: int) -> tuple[Any, Any]:
    """accelerate's front door, and its FSDP plugin where the model is to be sharded."""
    more: dict[str, Any] = {"gradient_accumulation_steps": asked.accumulation}
    if asked.parallel == "ddp":
        return group.accelerator(asked.precision, world, **more), None
    from trainer import sharding

    plugin = sharding.plugin(asked.fsdp_version)
    accelerator = group.accelerator(asked.precision, world, fsdp_plugin=plugin, **more)
    sharding.enter(accelerator, plugin)
    return accelerator, plugin


def _parallel(accelerator: Any, plugin: Any) -> str:
    """What accelerate believes it does: "none", "ddp", "fsdp1" or "fsdp2"."""
    if accelerator.num_processes == 1:
        return "none"
    if plugin is None:
        return "ddp"
    from trainer import sharding

    return f"fsdp{sharding.version(plugin)}"


def _collectives(accelerator: Any, heartbeat: Heartbeat) -> list[dict[str, Any]]:
    import torch.distributed as dist

    from trainer import collectives

    return collectives.check(dist.get_rank(), dist.get_world_size(), accelerator.device, heartbeat)


def _train(asked: Options, accelerator: Any, plugin: Any, heartbeat: Heartbeat) -> dict[str, Any]:
    """The model, the steps, and what they took. Raises CheckpointError."""
    from trainer import checkpoint, learner, memory, sharding
    from trainer.course import Course

    heartbeat("model")
    before = memory.free(accelerator.device)
    chosen = learner.choose(asked.model, asked.largest, asked.trust_remote_code, SEED)
    described = chosen.described()
    if plugin is not None:
        sharding.fit(plugin, chosen.module)
    course = Course(chosen, accelerator, asked, heartbeat, SEED)
    course.resume()
    result = course.run()
    heartbeat("checksum")
    own = result["digests"][str(asked.end)]
    return {
        "model": described,
        **result,
        "checksums": checkpoint.exchange(accelerator, own),
        **memory.used(accelerator.device, before),
    }


def _note_unrepeatable() -> set[str]:
    """Names of what torch computes in no fixed order, as it warns of them from here on."""
    found: set[str] = set()
    said = warnings.showwarning

    def note(message: Any, *rest: Any, **more: Any) -> None:
        match = re.search(r"(\S+) does not have a deterministic implementation", str(message))
        if match:
            found.add(match.group(1))
        else:
            said(message, *rest, **more)

    warnings.showwarning = note
    return found
