"""Reports as verify makes them, of machines that nobody here has, for the tests and the docs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mirror.core.artifact import Json
from mirror.verify import host, ladder
from mirror.verify.bandwidth import Bandwidth
from mirror.verify.host import links
from mirror.verify.ladder import Measured, Result, Rung
from mirror.verify.ranks import Rank
from mirror.verify.report import Check, Report, Stage, Training
from tests.captured import Captured

LOSSES = (6.0, 4.0, 2.0, 1.0)
#: What the trainer exchanges on GPUs, in bytes.
SIZES = sorted({*(8**n for n in range(1, 10)), 2**19, 2**20, 2**28})
_STARTED = "2026-11-30T10:12:13+00:00"


def rank(number: int, world: int = 2, *, gpu: bool = False, **changed: Any) -> Rank:
    """A rank that did everything right."""
    good = Rank(
        rank=number,
        world_size=world,
        backend="" if world == 1 else "nccl" if gpu else "gloo",
        device=f"cuda:{number}" if gpu else "cpu",
        gpu="NVIDIA H200" if gpu else "",
        gpu_uuid=f"uuid-{number}" if gpu else "",
        pid=100 + number,
        host="server",
        torch="2.11.0",
        accelerate="1.15.0",
        cuda="13.0" if gpu else "",
        nccl="2.28.9" if gpu else "",
        precision="no",
        tolerance=1e-3,
        steps=len(LOSSES),
        batch=24,
        losses=LOSSES,
        loss_share=0.2,
        loss_share_allowed=0.5,
        tokens_per_second=1234.5,
        peak_memory=10**9,
        checksums=("ab" * 32,) * world,
        model={"name": "built-in", "reason": "", "parameters": 125248},
        collectives=({"name": "all_reduce", "bytes": 4, "right": True, "seconds": 0.1},)
        if world > 1
        else (),
    )
    return replace(good, **changed)


def group(world: int = 2, *, gpu: bool = False, **changed: Any) -> Training:
    """A run in which all ranks agree."""
    return Training(tuple(rank(n, world, gpu=gpu, **changed) for n in range(world)), 4.0)


# -- whole reports ---------------------------------------------------------------------------------


def two_h200() -> Report:
    """A good server, as docs/verify.md has it."""
    found = _gpus(2, "NVIDIA H200", peak=294e9, pair=260e9)
    facts = _facts("h200 1", "gpu-server-7", "580.159.04", "2.11.0+cu130")
    # That of eight, of which this server has two.
    here = Captured("hgx-h200-8")
    topology = host.topology(here, (host.visible_gpus(here) or ())[:2])
    return _report(facts, *found, topology=topology)


def eight_h200() -> Report:
    """Everything that there can be, passed."""
    single, multi = _gpus(8, "NVIDIA H200", peak=420e9, pair=330e9)
    facts = _facts("h200 1", "gpu-server-8", "580.159.04", "2.11.0+cu130")
    rungs = tuple(
        measured(*names, speed=speed, pairs=8)
        for names, speed in (
            ((), 420e9),
            (("p2p-nvl",), 421e9),
            (("p2p-off",), 27e9),
            (("p2p-off", "cumem-host-off"), 26.1e9),
            (("p2p-off", "cumem-host-off", "shm-off"), 2.9e9),
        )
    )
    here = Captured("hgx-h200-8")
    topology = host.topology(here, host.visible_gpus(here) or ())
    further = (("fsdp", Training(_quiet(multi), 14.2)), ("resumed", Training(_quiet(multi), 9.7)))
    return _report(facts, single, multi, rungs=rungs, topology=topology, further=further)


def four_5090() -> Report:
    """The plain run broke, and the ladder found what cures it (field notes, A1)."""
    single, multi = _gpus(4, "NVIDIA GeForce RTX 5090", peak=18e9, pair=20e9)
    facts = _facts("companion 12", "rtx-box", "575.57.08", "2.7.1+cu128")
    why = "rank 2 ended with SIGABRT: CUDA error: an illegal memory access was encountered"
    rungs = (
        measured(result="failed", problem=why),
        measured("cumem-host-off", result="hung", problem="no rank has moved on for 30 s: rank 1"),
        measured("shm-off", speed=18.2e9, pairs=4, transports="NET/Socket on 8 channels"),
        measured("cumem-host-off", "shm-off", speed=2.1e9, pairs=4, transports="NET/Socket"),
    )
    here = Captured("rtx5090-4")
    topology = host.topology(here, host.visible_gpus(here) or ())
    return _report(
        facts, single, multi, rungs=rungs, topology=topology, checks=(ladder.check(rungs),)
    )


def cpu_only() -> Report:
    """No GPU: two processes on the CPU."""
    rows = _rows(2, 2.1e9, 1.4e9, 2**22)
    single = Training((rank(0, 1, **_course(0.0)),), 8.0)
    multi = Training(tuple(rank(n, 2, collectives=rows, **_course(1e-7)) for n in range(2)), 9.0)
    facts = _facts("demo 1", "laptop", "", "2.13.0+cpu")
    gpus = Check("gpus", "warn", "nvidia-smi is not there: no GPU", "Two CPU processes train.")
    report = _report(facts, single, multi)
    stages = [
        replace(s, checks=(*s.checks, gpus)) if s.name == "host" else s for s in report.stages
    ]
    return replace(report, stages=tuple(stages))


def failing() -> Report:
    """Many processes died, and said much."""
    single, _ = _gpus(4, "NVIDIA A100-SXM4-80GB", peak=200e9, pair=200e9)
    package = "/opt/environment/lib/python3.12/site-packages/torch/distributed"
    log = [
        f'[rank3]:   File "{package}/distributed_c10d.py", line {2800 + n}, in all_reduce'
        for n in range(60)
    ]
    first = "rank 3 left no result: it ended with SIGBUS in the phase collectives: all_reduce of"
    last = "RuntimeError: unable to write to file </torch_1234_0>:\tNo space left on device (28)"
    evidence = "\n".join([f"{first} 64 MiB; the others waited for it", *log, last])
    advice = (
        "/dev/shm is too small: NCCL wants 1 GiB of it, and here it has 64 MiB. In a container,"
        " start it with --shm-size=8g or --ipc=host.\n"
        "The ranks' whole logs are in the report's folder."
    )
    shm = Check(
        "shared memory", "warn", "/dev/shm: 67.1 MB", "Start the container with --ipc=host."
    )
    facts = _facts("verl 3", "node-14", "550.54.15", "2.8.0+cu128")
    here = Captured("a100-pcie-4")
    topology = host.topology(here, host.visible_gpus(here) or ())
    report = _report(facts, single, None, topology=topology)
    stages = {stage.name: stage for stage in report.stages}
    stages["host"] = replace(stages["host"], checks=(*stages["host"].checks, shm))
    stages["multi"] = Stage("multi", (Check("run", "fail", evidence, advice),), 41.0)
    return replace(report, stages=tuple(stages.values()))


EVERY = {
    "two-h200": two_h200,
    "eight-h200": eight_h200,
    "four-5090": four_5090,
    "cpu-only": cpu_only,
    "failing": failing,
}


def measured(
    *names: str,
    speed: float = 0.0,
    result: Result = "right",
    problem: str = "",
    pairs: int = 2,
    transports: str = "P2P/CUMEM on 24 channels",
) -> Measured:
    """A rung of the ladder."""
    if result != "right":
        return Measured(Rung(names), result, Bandwidth(), "", (problem,), 31.0)
    rows = [dict(row) for row in _rows(pairs, speed, speed * 0.7, 2**26)]
    return Measured(Rung(names), result, Bandwidth.of(rows), transports, (), 7.5)


def _gpus(count: int, name: str, *, peak: float, pair: float) -> tuple[Training, Training]:
    """The runs of one and of many on GPUs of this name. peak, pair: bytes/s."""
    rows = _rows(count, peak, pair, 2**28)
    uuids = [f"9f5b3a{n:02x}-41c2-4d0a-8e3b-0c6f2a5d1e7b" for n in range(count)]
    single = replace(rank(0, 1, gpu=True, **_course(0.0)), gpu=name, gpu_uuid=uuids[0])
    ranks = tuple(
        replace(
            rank(n, count, gpu=True, collectives=rows, **_course(4e-7)),
            gpu=name,
            gpu_uuid=uuids[n],
            peak_memory=1_290_000_000 + n * 10**7,
        )
        for n in range(count)
    )
    return Training((single,), 8.4), Training(ranks, 12.2)


def _course(noise: float, **more: Any) -> dict[str, Any]:
    losses = tuple(
        0.86 + 5.1 * math.exp(-n / 9) + 0.05 * math.sin(2.1 * n) + noise * math.cos(n)
        for n in range(40)
    )
    return {"steps": 40, "losses": losses, "tokens_per_second": 183204.0, "pid": 41230} | more


def _rows(world: int, peak: float, pair: float, largest: int) -> tuple[Mapping[str, Json], ...]:
    """As trainer/bench.py writes them: latency first, then what the links carry."""
    kinds = {"all_reduce": (1.0, 26e-6), "all_gather": (0.94, 21e-6), "broadcast": (0.86, 18e-6)}
    kinds["reduce_scatter"] = (0.96, 22e-6)
    sizes = [size for size in SIZES if size < largest] + [largest]
    rows: list[Mapping[str, Json]] = []
    for name, (share, latency) in kinds.items():
        for size in sizes:
            speed = size / (latency + size / (peak * share))
            rows.append(_row(name, size, None, speed))
    for a in range(world):
        for b in range(world):
            if a != b:
                rows.append(
                    _row("sendrecv", largest, [a, b], pair * (1 - 0.03 * ((a + 2 * b) % 5)))
                )
    return tuple(rows)


def _row(name: str, size: int, pair: list[int] | None, speed: float) -> dict[str, Json]:
    return {
        "name": name,
        "bytes": size,
        "right": True,
        "seconds": size / speed,
        "bus_bandwidth": speed,
        "pair": pair,
        "turns": 20,
        "fault": "",
    }


def _quiet(training: Training) -> tuple[Rank, ...]:
    return tuple(replace(found, collectives=()) for found in training.ranks)


def _facts(bundle: str, name: str, driver: str, torch: str) -> dict[str, str]:
    facts = {
        "bundle": bundle,
        "digest": "sha256:5d0c8b1e6f7a43c29b8e1d2f3a4c5b6d7e8f90a1b2c3d4e5f60718293a4b5c6d",
        "generation": "3",
        "root": "/data/mirror",
        "host": name,
        "driver": driver,
        "torch": torch,
        "accelerate": "1.15.0",
        "mirror": "0.1.0",
    }
    return {key: value for key, value in facts.items() if value}


def _report(
    facts: dict[str, str],
    single: Training,
    multi: Training | None,
    checks: tuple[Check, ...] = (),
    **more: Any,
) -> Report:
    passed = {
        "store": (Check("blobs", "pass", "24 blobs, every sha256 right"),),
        "host": (
            Check("system", "pass", "Ubuntu 24.04.3, Linux 6.8.0, glibc 2.39"),
            Check("memory", "pass", "2.01 TB, of which 1.9 TB can be had"),
            Check("loopback", "pass", "processes reach each other on 127.0.0.1"),
            *_peers(more.get("topology")),
        ),
        "environment": (Check("wheels", "pass", "6 wheels as locked"),),
        "models": (Check("mirror/tiny-llama", "pass", "by id and by path, no connection tried"),),
        "single": (Check("loss", "pass", "5.9600 -> 0.8990 nats in 40 steps"),),
        "multi": (Check("backend", "pass", "nccl, where nccl is wanted"), *checks),
    }
    took = {"store": 0.08, "host": 1.4, "environment": 8.5, "models": 3.4, "single": 8.4}
    stages = tuple(Stage(n, c, took.get(n, 32.2)) for n, c in passed.items())
    return Report(
        stages=stages,
        single=single,
        multi=multi,
        asked=None,
        facts=facts,
        started=_STARTED,
        seconds=54.0,
        folder=Path("/data/mirror/log/verify-3-20261130T101213Z"),
        **more,
    )


def _peers(topology: host.Topology | None) -> list[Check]:
    """As the host stage has it."""
    if topology is None:
        return []
    return [links.check(Captured("hgx-h200-8"), [], topology)]
