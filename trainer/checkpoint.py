"""Saving a training run and going on from it, in other processes, to the same bits.

It is accelerate's own save_state: what its users have, under DDP (safetensors and the optimizer's
state by rank 0) as under FSDP (torch.distributed.checkpoint, each rank its shards), with every
rank's random numbers and the scaler of fp16. Beside it lies progress.json: how far the run was.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainer import sharding
from trainer.results import write_json

#: Bytes a parameter: float32, and two moments of AdamW's.
_BYTES = 12
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class CheckpointError(Exception):
    """A checkpoint cannot be written or read; says why, and what to do."""


@dataclass(frozen=True)
class Progress:
    """How far a run was.

    steps: done. losses: of the global batch, in nats, a step each. sha256: of all parameters.
    world_size: of the ranks that saved it.
    """

    steps: int
    losses: list[float]
    sha256: str
    world_size: int


def save(accelerator: Any, folder: Path, progress: Progress, parameters: int) -> dict[str, Any]:
    """Write the run's state to `folder`, which is there whole or not at all; bytes and seconds.

    parameters: of the model, for the space that is needed. Raises CheckpointError.
    """
    begin = time.perf_counter()
    part = folder.with_name(f".{folder.name}.part")
    needed = _BYTES * parameters
    try:
        free = shutil.disk_usage(folder.parent).free
        if free < needed:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        # That tied weights are stored once is nothing to warn of.
        logging.getLogger("accelerate.utils.other").setLevel(logging.ERROR)
        accelerator.save_state(str(part))
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            write_json(part / "progress.json", asdict(progress))
            os.replace(part, folder)
    except Exception as error:  # each library wraps the system's error in its own
        raise CheckpointError(_unwritten(folder, needed, error)) from error
    accelerator.wait_for_everyone()
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    return {"bytes": size, "seconds": time.perf_counter() - begin}


def read_progress(folder: Path) -> Progress:
    """Raises CheckpointError when there is no whole checkpoint."""
    try:
        return Progress(**json.loads((folder / "progress.json").read_bytes()))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"{folder} is no whole checkpoint: {error}") from error


def load(accelerator: Any, folder: Path) -> None:
    """Put the state in `folder` into what accelerate has prepared. Raises CheckpointError."""
    try:
        accelerator.load_state(str(folder))
    except Exception as error:  # as above
        raise CheckpointError(f"the checkpoint {folder} cannot be read: {_words(error)}") from error


def digest(module: nn.Module, wrapped: nn.Module) -> str:
    """sha256 of all parameters' and buffers' names and bytes; all ranks ask together."""
    found = hashlib.sha256()
    with sharding.whole(module, wrapped) as table:
        for name, tensor in table:
            found.update(name.encode())
            flat: Any = tensor.detach().cpu().contiguous().flatten()
            found.update(flat.view(torch.uint8).numpy())
    return found.hexdigest()


def exchange(accelerator: Any, own: str) -> list[str]:
    """Every rank's sha256, in the order of ranks."""
    row: torch.Tensor = torch.tensor(list(bytes.fromhex(own)), device=accelerator.device)
    return [bytes(found).hex() for found in accelerator.gather(row.unsqueeze(0)).tolist()]


def _unwritten(folder: Path, needed: int, error: BaseException) -> str:
    free = "unknown"
    with contextlib.suppress(OSError):
        free = _mebibytes(shutil.disk_usage(folder.parent).free)
    head = f"the checkpoint cannot be written to {folder}: {_words(error)}"
    if any(getattr(cause, "errno", None) in _FULL for cause in _causes(error)) or _is_full(error):
        return (
            f"{head}; it takes about {_mebibytes(needed)}, free there: {free}."
            " Make room there, or name a report folder on another file system."
        )
    return head


def _is_full(error: BaseException) -> bool:
    """Libraries that are not Python's tell of a full disk in words alone."""
    text = " ".join(str(cause).lower() for cause in _causes(error))
    return any(word in text for word in ("no space left", "quota exceeded", "file too large"))


def _words(error: BaseException) -> str:
    """The system's own words where some cause has them, else the error's first line."""
    for cause in _causes(error):
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
    first = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {first[0][:300]}"


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error and all that led to it: torch.distributed.checkpoint gathers those of all ranks."""
    waiting, seen = [error], set()
    while waiting:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [cause for cause in (one.__cause__, one.__context__) if cause]
        failures = getattr(one, "failures", None)
        if isinstance(failures, dict):
            found = (value[0] if isinstance(value, tuple) else value for value in failures.values())
            waiting += [cause for cause in found if isinstance(cause, BaseException)]


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"
