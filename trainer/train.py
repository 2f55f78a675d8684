"""The training run: a few dozen steps through accelerate, on one process or on many.

The global batch is fixed and split evenly, every sample and weight is seeded, and gradients are
means: so N processes do the same sums as one, in another order. What differs is rounding alone:

- float32: the loss of every step is within 1e-3 (nats) of the single process's. Measured: about
  1e-6 with this model over 40 steps, 1e-5 with one of 19 million parameters; a run whose gradients
  are not averaged is off by 1e-1 or more.
- bf16 and fp16: within 2e-2. Measured for bf16: 5e-4; gradients not averaged: 1e-1.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import math
import os
import signal
import socket
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainer.results import Heartbeat, write_json

if TYPE_CHECKING:
    import torch

    from trainer.model import TinyLM

#: Largest difference of a step's loss, in nats, between N processes and one.
TOLERANCES = {"no": 1e-3, "bf16": 2e-2, "fp16": 2e-2}
SEED = 0
LEARNING_RATE = 3e-3
WARM_UP = 4
BATCHES_PER_EPOCH = 8
#: Steps left out of the throughput: first kernels, first allocations.
UNTIMED = 5
#: How long a collective waits for the others. The watchdog outside acts sooner.
PATIENCE = timedelta(seconds=120)


def main(arguments: list[str]) -> int:
    """Train as one rank, or alone; leaves rank-N.json in the folder."""
    options = _options(arguments)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, all_threads=True)
    heartbeat = Heartbeat(options.out, rank)
    heartbeat("start")
    # cuBLAS sums in a fixed order only with a workspace of fixed size; read when CUDA starts.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    begin = time.monotonic()
    heartbeat("import")
    import torch
    import torch.distributed as dist

    imported = time.monotonic()
    heartbeat("init")
    accelerator = _accelerator(options.precision, world)
    started = time.monotonic()
    result: dict[str, Any] = {
        **_identity(accelerator),
        "precision": options.precision,
        "tolerance": TOLERANCES[options.precision],
        "steps": options.steps,
        "batch": options.batch,
    }
    heartbeat("collectives")
    if accelerator.num_processes > 1:
        from trainer import collectives

        result["collectives"] = collectives.check(
            dist.get_rank(), dist.get_world_size(), accelerator.device
        )
    heartbeat("model")
    lm, result["model"] = _model(options.model)
    result.update(_train(lm, accelerator, options.steps, options.batch, heartbeat))
    heartbeat("checksum")
    result["checksums"] = _checksums(lm, accelerator)
    result["peak_memory"] = _peak_memory(accelerator.device)
    result["seconds"] = {
        "import": imported - begin,
        "init": started - imported,
        "rest": time.monotonic() - started,
    }
    write_json(options.out / f"rank-{rank}.json", result)
    heartbeat("done")
    if dist.is_initialized():
        if accelerator.device.type == "cuda":
            torch.cuda.synchronize()
        dist.destroy_process_group()
    return 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="trainer train")
    parser.add_argument("--out", type=Path, required=True, help="folder for results")
    parser.add_argument("--model", type=Path, help="folder of a bundled model")
    parser.add_argument("--steps", type=int, default=40, help="optimizer steps")
    parser.add_argument("--batch", type=int, default=24, help="samples a step, all processes")
    parser.add_argument("--precision", choices=sorted(TOLERANCES), default="no")
    return parser.parse_args(arguments)


def _accelerator(precision: str, world: int) -> Any:
    """accelerate's front door, with a short time-out and evenly split, seeded batches."""
    from accelerate import Accelerator  # type: ignore[import-untyped]
    from accelerate.utils import (  # type: ignore[import-untyped]
        DataLoaderConfiguration,
        InitProcessGroupKwargs,
        set_seed,
    )

    set_seed(SEED)
    group = InitProcessGroupKwargs(timeout=PATIENCE)
    if world > 1 and os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true":
        # Left to itself, accelerate takes MPI where torch was built with it.
        group = InitProcessGroupKwargs(backend="gloo", timeout=PATIENCE)
    return Accelerator(
        mixed_precision=precision,
        dataloader_config=DataLoaderConfiguration(split_batches=True, use_seedable_sampler=True),
        kwargs_handlers=[group],
    )


def _identity(accelerator: Any) -> dict[str, Any]:
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


def _model(folder: Path | None) -> tuple[TinyLM, dict[str, Any]]:
    """The bundled model where this trainer can hold it, else the built-in one, and which it is."""
    from trainer import model

    lm, name, reason = None, "built-in", "no model was named"
    if folder is not None:
        try:
            lm, name, reason = model.bundled(folder), str(folder), ""
        except model.UnsupportedError as error:
            reason = f"{folder}: {error}"
    lm = lm or model.built_in(SEED)
    return lm, {"name": name, "reason": reason, "parameters": lm.config.parameters}


def _train(
    lm: TinyLM, accelerator: Any, steps: int, batch: int, heartbeat: Heartbeat
) -> dict[str, Any]:
    """Every step's loss over the global batch, and the speed."""
    import torch
    from torch.nn import functional as F  # noqa: N812
    from torch.utils.data import DataLoader

    from trainer import task

    walks = task.Walks(lm.config.vocab_size, batch * BATCHES_PER_EPOCH, SEED)
    optimizer = torch.optim.AdamW(
        lm.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0
    )
    loader = DataLoader(walks, batch_size=batch, shuffle=True)
    wrapped, optimizer, loader = accelerator.prepare(lm, optimizer, loader)
    wrapped.train()
    losses: list[float] = []
    clock = 0.0
    for epoch in range(math.ceil(steps / BATCHES_PER_EPOCH)):
        loader.set_epoch(epoch)
        for tokens in loader:
            if len(losses) == steps:
                break
            if len(losses) == min(UNTIMED, steps - 1):
                clock = time.perf_counter()
            heartbeat("step", len(losses))
            for group in optimizer.param_groups:
                group["lr"] = LEARNING_RATE * min(1.0, (len(losses) + 1) / WARM_UP)
            logits = wrapped(tokens[:, :-1]).float()
            loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(wrapped.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())  # waits for the device: the next heartbeat tells the truth
    elapsed = time.perf_counter() - clock
    timed = steps - min(UNTIMED, steps - 1)
    # Every rank's part of the batch has the same size, so the mean of means is the batch's loss.
    shared = torch.tensor(losses, device=accelerator.device)
    mean = accelerator.gather(shared.unsqueeze(0)).mean(dim=0)
    return {
        "losses": mean.tolist(),
        "loss_share": _share(mean.tolist(), task.LAST),
        "loss_share_allowed": 1 - (1 - task.LOSS_FACTOR) * min(1.0, steps / 40),
        "tokens_per_second": timed * batch * task.LENGTH / elapsed,
    }


def _share(losses: list[float], last: int) -> float:
    """The last steps' mean loss over the first step's."""
    end = losses[-last:]
    return sum(end) / len(end) / losses[0]


def _checksums(lm: TinyLM, accelerator: Any) -> list[str]:
    """sha256 of all parameters' bytes, of every rank, in the order of ranks."""
    import torch

    digest = hashlib.sha256()
    for name, parameter in sorted(lm.state_dict().items()):
        digest.update(name.encode())
        digest.update(parameter.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    own: torch.Tensor = torch.tensor(list(digest.digest()), device=accelerator.device)
    gathered = accelerator.gather(own.unsqueeze(0))
    return [bytes(row).hex() for row in gathered.tolist()]


def _peak_memory(device: torch.device) -> int:
    """Bytes: what torch allocated on the GPU at most, or the process's largest resident set."""
    import torch

    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
