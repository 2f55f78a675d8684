"""What the trainer's ranks leave in a folder: heartbeats, results, logs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

from mirror.core.artifact import Json

#: How many lines of a rank's log are shown when it failed.
TAIL = 20
#: The trainer's phases, in their order.
PHASES = (
    *("start", "import", "init", "collectives", "model", "step", "checksum"),
    *("fsdp model", "fsdp step", "fsdp checksum", "done"),
)


@dataclass(frozen=True, slots=True)
class Rank:
    """A rank's own report.

    losses: of the global batch, in nats, a step each. loss_share: the last steps' mean over the
    first step's. tokens_per_second, samples_per_second: of all ranks together. peak_memory: in
    bytes, of this rank; memory: more of it, on a GPU (trainer/memory.py).
    checksums: sha256 of the parameters, of every rank, as this rank received them; digests: this
    rank's own, by the number of steps done.
    collectives: a table each: name, bytes, right, seconds.
    model: name, class, through, reason (why not the bundled one through transformers), refused,
    fresh (parameters that the bundle lacks), parameters.
    accumulation: passes a step. parallel: "none", "ddp", "fsdp1" or "fsdp2"; held_parameters: how
    many this rank holds itself.
    epoch: how many samples there are; samples: the numbers of this rank's, an epoch each, in their
    order; workers: which of the loader's processes made them; workers_left: how many still ran.
    resumed_after, killed_after: numbers of steps. checkpoint: bytes and seconds of the one saved.
    unrepeatable: what torch computed in no fixed order.
    """

    rank: int
    world_size: int
    backend: str
    device: str
    gpu: str
    gpu_uuid: str
    pid: int
    host: str
    torch: str
    accelerate: str
    cuda: str
    nccl: str
    precision: str
    tolerance: float
    steps: int
    batch: int
    losses: tuple[float, ...]
    loss_share: float
    loss_share_allowed: float
    tokens_per_second: float
    peak_memory: int
    checksums: tuple[str, ...]
    model: Mapping[str, Json] = field(hash=False)
    collectives: tuple[Mapping[str, Json], ...] = field(default=(), hash=False)
    samples_per_second: float = 0.0
    memory: Mapping[str, int] = field(default_factory=dict, hash=False)
    digests: Mapping[str, str] = field(default_factory=dict, hash=False)
    accumulation: int = 1
    parallel: str = ""
    held_parameters: int = 0
    epoch: int = 0
    samples: tuple[Sequence[int], ...] = field(default=(), hash=False)
    workers: tuple[int, ...] = ()
    workers_left: int = 0
    resumed_after: int | None = None
    killed_after: int | None = None
    checkpoint: Mapping[str, float] = field(default_factory=dict, hash=False)
    unrepeatable: tuple[str, ...] = ()

    @property
    def on_gpu(self) -> bool:
        """Whether it computed on a CUDA device."""
        return self.device.startswith("cuda")

    @classmethod
    def from_json(cls, table: Any) -> Rank:
        """Raises ValueError when the table is not a trainer's result."""
        try:
            values: dict[str, Any] = {
                f.name: tuple(value) if isinstance(value := table[f.name], list) else value
                for f in fields(cls)
                if f.name in table or (f.default is MISSING and f.default_factory is MISSING)
            }
            rank = cls(**values)
            if not all(isinstance(x, float) for x in rank.losses) or len(rank.losses) < 1:
                raise ValueError("its losses are no numbers")
            return rank
        except (KeyError, TypeError) as error:
            raise ValueError(f"it lacks {error}") from None

    def to_json(self) -> dict[str, Json]:
        """What report.json holds of a rank: the losses and checksums are in it once, not here."""
        return {
            "rank": self.rank,
            "world_size": self.world_size,
            "backend": self.backend,
            "device": self.device,
            "gpu": self.gpu,
            "gpu_uuid": self.gpu_uuid,
            "pid": self.pid,
            "host": self.host,
            "torch": self.torch,
            "accelerate": self.accelerate,
            "cuda": self.cuda,
            "nccl": self.nccl,
            "parallel": self.parallel,
            "peak_memory": self.peak_memory,
            "memory": dict(self.memory),
            "held_parameters": self.held_parameters,
            "parameters_sha256": self.checksums[self.rank]
            if self.rank < len(self.checksums)
            else "",
            "collectives": list(self.collectives),
        }


@dataclass(frozen=True, slots=True)
class Phase:
    """Where a rank said it was. detail: what it is at, in words: "send 0->2 of 512 KiB"."""

    name: str
    step: int | None
    pid: int
    detail: str = ""

    @property
    def order(self) -> tuple[int, int]:
        """Grows as the rank goes on."""
        known = PHASES.index(self.name) if self.name in PHASES else 0
        return known, self.step or 0

    def __str__(self) -> str:
        if self.detail:
            return f"{self.name}: {self.detail}"
        return self.name if self.step is None else f"{self.name} {self.step}"


def read_phase(folder: Path, rank: int) -> Phase | None:
    """The rank's last heartbeat, None before its first."""
    try:
        table = json.loads((folder / f"rank-{rank}.phase").read_bytes())
        return Phase(table["phase"], table["step"], table["pid"], table.get("detail", ""))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_result(folder: Path, rank: int) -> dict[str, Json] | None:
    """The rank's result, None when it left none. Raises ValueError when it is malformed."""
    try:
        table = json.loads((folder / f"rank-{rank}.json").read_bytes())
    except FileNotFoundError:
        return None
    if not isinstance(table, dict):
        raise ValueError("it is no table")
    for key in ("rank", "world_size"):
        if type(table.get(key)) is not int:
            raise ValueError(f"it lacks {key!r}")
    return table


def log_tail(folder: Path, rank: int, count: int = TAIL) -> list[str]:
    """The last lines that the rank wrote, its standard error after its standard output."""
    files = sorted(folder.glob(f"log/*/attempt_0/{rank}/std*.log"), reverse=True)
    text = [
        line
        for file in files or [folder / "launch.log"]
        if file.is_file()
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines()
        if line.strip()
    ]
    return text[-count:]
