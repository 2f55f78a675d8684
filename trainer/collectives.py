"""all_reduce, broadcast and all_gather across all ranks, their values checked."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

#: Numbers (float32) a collective carries: 4 B, 64 KiB, 4 MiB. Some faults begin at 512 KiB.
SIZES = (1, 2**14, 2**20)


def check(rank: int, world: int, device: torch.device) -> list[dict[str, Any]]:
    """One table a collective and size: name, bytes, right, seconds.

    Every value is a small whole number, exact in float32 in whatever order it is summed.
    """
    found: list[dict[str, Any]] = []
    for size in SIZES:
        for name, run in (
            ("all_reduce", _all_reduce),
            ("broadcast", _broadcast),
            ("all_gather", _all_gather),
        ):
            begin = time.perf_counter()
            right = run(_pattern(size, device), rank, world)
            seconds = time.perf_counter() - begin
            found.append({"name": name, "bytes": 4 * size, "right": right, "seconds": seconds})
    return found


def _pattern(size: int, device: torch.device) -> Tensor:
    return torch.arange(size, device=device).remainder(1021).float()


def _all_reduce(pattern: Tensor, rank: int, world: int) -> bool:
    values = pattern * (rank + 1)
    dist.all_reduce(values)
    return torch.equal(values, pattern * (world * (world + 1) // 2))


def _broadcast(pattern: Tensor, rank: int, world: int) -> bool:
    right = True
    for source in range(world):
        values = pattern + source if rank == source else torch.zeros_like(pattern)
        dist.broadcast(values, src=source)
        right &= torch.equal(values, pattern + source)
    return right


def _all_gather(pattern: Tensor, rank: int, world: int) -> bool:
    parts = [torch.empty_like(pattern) for _ in range(world)]
    dist.all_gather(parts, pattern + rank)
    return all(torch.equal(part, pattern + source) for source, part in enumerate(parts))
