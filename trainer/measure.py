"""The collectives by themselves, without a training run."""

from __future__ import annotations

import argparse
import os
import re
import time
from pathlib import Path

from trainer import group
from trainer.results import write_json

#: Variables that decide how ranks communicate.
_SETTINGS = re.compile(r"(NCCL|TORCH_NCCL|GLOO|CUDA)_\w+")


def main(arguments: list[str]) -> int:
    """Check and measure as one rank of several; leaves rank-N.json in the folder.

    Beside who the rank is: collectives (rows, see trainer/bench.py), settings (the variables that
    decide how ranks communicate, as this rank has them) and seconds.
    """
    options = _options(arguments)
    rank, world, heartbeat = group.enter(options.out)
    begin = time.monotonic()
    heartbeat("import")
    import torch.distributed as dist

    imported = time.monotonic()
    heartbeat("init")
    accelerator = group.accelerator("no", world)
    started = time.monotonic()
    result = group.identity(accelerator)
    if not dist.is_initialized():
        raise SystemExit("trainer collectives: this process is alone, and sends to nobody")
    from trainer import collectives

    result["collectives"] = collectives.check(
        dist.get_rank(),
        dist.get_world_size(),
        accelerator.device,
        heartbeat,
        largest=options.largest,
        seconds=options.seconds,
        pairs=options.pairs,
    )
    result["settings"] = {key: os.environ[key] for key in os.environ if _SETTINGS.fullmatch(key)}
    result["seconds"] = {
        "import": imported - begin,
        "init": started - imported,
        "rest": time.monotonic() - started,
    }
    write_json(options.out / f"rank-{rank}.json", result)
    heartbeat("done")
    group.leave(accelerator)
    return 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="trainer collectives")
    parser.add_argument("--out", type=Path, required=True, help="folder for results")
    parser.add_argument("--largest", type=_size, help="bytes of the largest exchange")
    parser.add_argument("--seconds", type=float, help="for repeating, in all")
    parser.add_argument(
        "--pairs",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="send between every two ranks first",
    )
    return parser.parse_args(arguments)


def _size(text: str) -> int:
    size = int(text)
    if size < 8 or size % 4:
        raise argparse.ArgumentTypeError("at least 8 bytes, and whole float32 numbers")
    return size
