"""What a rank takes of memory, and what is left on its GPU."""

from __future__ import annotations

import sys
from typing import Any

import torch


def free(device: torch.device) -> dict[str, int]:
    """{"free", "total"} of the GPU in bytes, nothing for the CPU."""
    if device.type != "cuda":
        return {}
    left, total = torch.cuda.mem_get_info(device)
    return {"free": int(left), "total": int(total)}


def used(device: torch.device, before: dict[str, int]) -> dict[str, Any]:
    """Of this process, in bytes; before: what `free` said when it began.

    peak_memory: what torch allocated on the GPU at most, on the CPU the largest resident set.
    memory: on a GPU peak_reserved (what torch held of the driver at most), total, free_before,
    free_after, and reserved, which this process still holds then.
    """
    if device.type != "cuda":
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        return {"peak_memory": peak, "memory": {}}
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return {
        "peak_memory": int(torch.cuda.max_memory_allocated(device)),
        "memory": {
            "total": before["total"],
            "free_before": before["free"],
            "free_after": free(device)["free"],
            "reserved": int(torch.cuda.memory_reserved(device)),
            "peak_reserved": int(torch.cuda.max_memory_reserved(device)),
        },
    }
