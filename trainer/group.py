"""The process group that a command's ranks form through accelerate, and who each rank is in it."""

from __future__ import annotations

import faulthandler
import os
import signal
import socket
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from trainer.results import Heartbeat

#: How long a collective waits for the others. The watchdog outside acts sooner.
PATIENCE = timedelta(seconds=120)


def enter(folder: Path) -> tuple[int, int, Heartbeat]:
    """This process's rank and world size as launched, and its heartbeat, in phase "start".

    From here on the process answers SIGUSR1 with the stacks of all its threads.
    """
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, all_threads=True)
    heartbeat = Heartbeat(folder, rank)
    heartbeat("start")
    return rank, world, heartbeat


def accelerator(precision: str, world: int, **more: Any) -> Any:
    """accelerate's front door, with a short time-out and evenly split, seeded batches.

    more: further arguments of accelerate's Accelerator.
    """
    from accelerate import Accelerator  # type: ignore[import-untyped]
    from accelerate.utils import (  # type: ignore[import-untyped]
        DataLoaderConfiguration,
        GradScalerKwargs,
        InitProcessGroupKwargs,
    )

    group = InitProcessGroupKwargs(timeout=PATIENCE)
    if world > 1 and os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true":
        # Left to itself, accelerate takes MPI where torch was built with it.
        group = InitProcessGroupKwargs(backend="gloo", timeout=PATIENCE)
    return Accelerator(
        mixed_precision=precision,
        dataloader_config=DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True),
        # fp16: at its usual first scale gradients overflow, and how many steps are then left out
        # would depend on how the batch is split.
        kwargs_handlers=[group, GradScalerKwargs(init_scale=1024.0)],
        **more,
    )


def identity(accelerator: Any) -> dict[str, Any]:
    """Who this rank is, and what it runs on."""
    import accelerate
    import torch
    import torch.distributed as dist

    device = accelerator.device
    cuda: Any = torch.cuda if device.type == "cuda" else None
    properties = cuda.get_device_properties(device) if cuda else None
    return {
        # What accelerate believes, not the launcher's variables: it decides what is averaged.
        "rank": accelerator.process_index,
        "world_size": accelerator.num_processes,
        "backend": str(dist.get_backend()) if dist.is_initialized() else "",
        "device": str(device),
        "gpu": properties.name if properties else "",
        "gpu_uuid": str(getattr(properties, "uuid", "")) if properties else "",
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "accelerate": accelerate.__version__,
        "cuda": torch.version.cuda or "",
        "nccl": ".".join(str(part) for part in cuda.nccl.version()) if cuda else "",
    }


def leave(accelerator: Any) -> None:
    """Take the group down, once nothing is under way on the device."""
    import torch
    import torch.distributed as dist

    if dist.is_initialized():
        if accelerator.device.type == "cuda":
            torch.cuda.synchronize()
        dist.destroy_process_group()
