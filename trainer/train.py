"""The training run: a few dozen steps through accelerate, on one process or on many.

The global batch is fixed and split evenly, between ranks and between a step's passes; every sample
and weight is seeded, and gradients are means. So N processes do the same sums as one, in another
order, and what differs is rounding alone: docs/verify.md has the tolerances, and what was measured.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

from trainer import group, options
from trainer.options import TOLERANCES, Leg, Options
from trainer.results import Heartbeat, write_json

SEED = 0


def main(arguments: list[str]) -> int:
    """Train as one rank, or alone; leaves rank-N.json, the second leg's result in it as "fsdp".

    Ends with exit code 1 and one line of reason where a checkpoint cannot be written or read.
    """
    asked = options.parse(arguments)
    rank, world, heartbeat = group.enter(asked.out)
    # cuBLAS sums in a fixed order only with a workspace of fixed size; read when CUDA starts.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    seconds, begin = {}, time.monotonic()
    heartbeat("import")
    import accelerate  # type: ignore[import-untyped]  # noqa: F401 -- for the time that it takes
    import torch

    seconds["import"] = time.monotonic() - begin
    heartbeat("init")
    # As use_deterministic_algorithms does, which imports torch's compiler besides: 3 s.
    torch.set_deterministic_debug_mode("warn")
    unrepeatable = _note_unrepeatable()
    legs = asked.legs
    accelerator, plugin = _accelerator(asked, legs[0], world)
    seconds["init"] = time.monotonic() - begin - seconds["import"]
    heartbeat("collectives")
    collectives: list[dict[str, Any]] = []
    if accelerator.num_processes > 1 and asked.collectives:
        collectives = _collectives(accelerator, heartbeat)
    from trainer.checkpoint import CheckpointError

    results: list[dict[str, Any]] = []
    try:
        for leg in legs:
            say: Callable[..., None] = heartbeat
            if leg is not legs[0]:
                say = _in_fsdp(heartbeat)
                say("model")
                accelerator, plugin = _again(asked, leg, world)
                collectives = []
            leg.folder.mkdir(exist_ok=True)
            result = {**group.identity(accelerator), "collectives": collectives}
            unrepeatable.clear()
            course = _train(asked, leg, accelerator, plugin, say, result)
            result.update(unrepeatable=sorted(unrepeatable), seconds=seconds)
            results.append(result)
            # Written after each: what fails later takes nothing of what came before.
            table = results[0] if len(results) == 1 else {**results[0], "fsdp": result}
            write_json(asked.out / f"rank-{rank}.json", table)
            if leg.kill_after:
                accelerator.wait_for_everyone()
                # Nothing is closed, flushed or said, as when a machine fails.
                os.kill(os.getpid(), signal.SIGKILL)
            course.close()
    except CheckpointError as error:
        print(f"trainer: {error}", file=sys.stderr)
        return 1
    heartbeat("done")
    group.leave(accelerator)
    return 0


def _accelerator(asked: Options, leg: Leg, world: int) -> tuple[Any, Any]:
    """accelerate's front door, and its FSDP plugin where the model is to be sharded."""
    more: dict[str, Any] = {"gradient_accumulation_steps": asked.accumulation}
    if leg.parallel == "ddp":
        return group.accelerator(asked.precision, world, **more), None
    from trainer import sharding

    plugin = sharding.plugin(asked.fsdp_version)
    accelerator = group.accelerator(asked.precision, world, fsdp_plugin=plugin, **more)
    sharding.enter(accelerator, plugin)
    return accelerator, plugin


def _again(asked: Options, leg: Leg, world: int) -> tuple[Any, Any]:
    """The same for another leg, in the same group: its memory given back, nothing remembered."""
    import torch
    from accelerate.state import (  # type: ignore[import-untyped]
        AcceleratorState,
        GradientState,
    )

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    # As accelerate's own tests do between two of its Accelerators.
    AcceleratorState._reset_state()
    GradientState._reset_state()
    return _accelerator(asked, leg, world)


def _collectives(accelerator: Any, heartbeat: Heartbeat) -> list[dict[str, Any]]:
    import torch.distributed as dist

    from trainer import collectives

    return collectives.check(dist.get_rank(), dist.get_world_size(), accelerator.device, heartbeat)


def _train(
    asked: Options,
    leg: Leg,
    accelerator: Any,
    plugin: Any,
    heartbeat: Callable[..., None],
    result: dict[str, Any],
) -> Any:
    """The model, the steps, and what they took, into the result; the course, which is done.

    Raises CheckpointError.
    """
    from accelerate.utils import set_seed  # type: ignore[import-untyped]

    from trainer import checkpoint, learner, memory, sharding
    from trainer.course import Course

    heartbeat("model")
    set_seed(SEED)
    before = memory.free(accelerator.device)
    chosen = learner.choose(asked.model, asked.largest, asked.trust_remote_code, SEED)
    result.update(
        precision=asked.precision,
        tolerance=TOLERANCES[asked.precision],
        steps=asked.steps,
        batch=asked.batch,
        accumulation=asked.accumulation,
        parallel="none" if accelerator.num_processes == 1 else leg.parallel,
        model=chosen.described(),
    )
    if plugin is not None:
        result["parallel"] = f"fsdp{sharding.version(plugin)}"
        sharding.fit(plugin, chosen.module)
    course = Course(chosen, accelerator, asked, leg, heartbeat, SEED)
    course.resume()
    result.update(course.run())
    heartbeat("checksum")
    result["checksums"] = checkpoint.exchange(accelerator, result["digests"][str(leg.end)])
    result.update(memory.used(accelerator.device, before))
    return course


def _in_fsdp(heartbeat: Heartbeat) -> Callable[..., None]:
    """The heartbeat in a second leg, whose phases come after those of the first."""

    def say(phase: str, step: int | None = None, detail: str = "") -> None:
        heartbeat(f"fsdp {phase}", step, detail)

    return say


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
