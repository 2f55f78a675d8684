"""Whether data between the ranks arrives as it was sent, and how fast: in pairs, then among all.

all_reduce, all_gather, reduce_scatter and broadcast among all ranks, sends between every two, from
8 bytes up, every value of every turn checked.
"""

from __future__ import annotations

import os
import time
from typing import Any

import torch

from trainer.agreement import Agreement
from trainer.bench import Bench, Run, repeats
from trainer.exchanges import (
    WIDTH,
    AllGather,
    AllReduce,
    Broadcast,
    Buffers,
    ReduceScatter,
)
from trainer.pairs import Pairs
from trainer.results import Heartbeat

#: Bytes of the largest exchange, unless said otherwise: on GPUs and on CPUs.
LARGEST = {"cuda": 256 * 2**20, "cpu": 4 * 2**20}
#: Seconds for repeating, unless said otherwise.
SECONDS = {"cuda": 10.0, "cpu": 2.0}
#: Some faults begin at 512 KiB (a protocol's limit): these sizes are never left out.
_SUSPECT = (512 * 2**10, 2**20)
#: Exchanges take no more than this share of the memory that is free: three buffers of the largest
#: size, and room for the backend.
_SHARE = 4
#: Of the time for repeating, what pairs get.
_PAIRS = 0.4


def check(
    rank: int,
    world: int,
    device: torch.device,
    heartbeat: Heartbeat | None = None,
    *,
    largest: int | None = None,
    seconds: float | None = None,
    pairs: bool = True,
) -> list[dict[str, Any]]:
    """This rank's rows, as trainer/bench.py has them.

    largest: bytes; less where memory is short. seconds: for repeating; everything is done once
    however long it takes, and three times where that is short. Raises RuntimeError when the
    backend does, and when a rank has not come within PATIENCE.
    """
    begin = time.monotonic()
    largest = LARGEST.get(device.type, LARGEST["cpu"]) if largest is None else largest
    seconds = SECONDS.get(device.type, SECONDS["cpu"]) if seconds is None else seconds

    def beat(step: int, detail: str) -> None:
        if heartbeat:
            heartbeat("collectives", step, detail)

    agreement = Agreement(rank, world)
    sizes = sizes_up_to(_affordable(largest, device, agreement))
    found = _rows(rank, world, sizes, Bench(device, beat), agreement, begin + seconds, pairs)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)  # what the training takes is measured after
    return found


def sizes_up_to(largest: int) -> list[int]:
    """Bytes, ascending: powers of 8, those where faults are known to begin, and the largest."""
    powers = [8**n for n in range(1, 20)]
    return sorted({size for size in (*powers, *_SUSPECT) if size < largest} | {largest})


def _rows(
    rank: int,
    world: int,
    sizes: list[int],
    bench: Bench,
    agreement: Agreement,
    end: float,
    pairs: bool,
) -> list[dict[str, Any]]:
    """Everything; the buffers are gone when it returns."""
    buffers = Buffers(sizes[-1] // WIDTH, world, bench.device)
    run = Run(rank, world, sizes, bench, buffers, agreement)
    parts = 0
    if pairs and world > 1:
        parts = Pairs(run, _PAIRS * max(0.0, end - time.monotonic())).check()
    bench.part(parts)
    _among_all(run, end)
    return bench.rows(agreement)


def _among_all(run: Run, end: float) -> None:
    """The collectives, size by size; until `end` they are repeated, by rank 0's clock."""
    kinds = (AllReduce, AllGather, ReduceScatter, Broadcast)
    left = len(run.sizes) * len(kinds)
    missing: set[str] = set()
    for size in run.sizes:
        for kind in kinds:
            name = f"{kind.name} {size}"

            def more(first: float, name: str = name, left: int = left) -> int:
                if run.rank == 0:
                    rest = max(0.0, end - time.monotonic())
                    # One at least, since the first turn may have set up what the others use.
                    count = max(repeats(first, rest / left), 1 if rest else 0)
                    run.agreement.say(name, str(count))
                return int(run.agreement.hear(name))

            if kind.name not in missing:
                exchange = kind(run.buffers, size // WIDTH, run.rank, run.world, None)
                if not run.bench.measure(exchange, size, more):
                    missing.add(kind.name)
            left -= 1


def _affordable(asked: int, device: torch.device, agreement: Agreement) -> int:
    """The largest size in bytes that every rank has memory for: `asked`, or a power of two."""
    if device.type == "cuda":
        free = int(torch.cuda.mem_get_info(device)[0])
    else:
        free = _available() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    room = max(8, min(map(int, agreement.all("free memory", str(free)))) // _SHARE)
    return asked if asked <= room else 1 << (room.bit_length() - 1)


def _available() -> int:
    """Bytes of main memory that can be had without swapping; 1 GiB where Linux does not say."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            table = dict(line.split(":", 1) for line in file)
        return int(table["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return 2**30
