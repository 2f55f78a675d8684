"""The NCCL ladder: under which settings do collectives come out right here, and how fast?

Each rung is a few settings; the trainer's collectives run under each, every value checked, every
bandwidth measured. What is proposed is the fastest rung that is right. A setting that cures one
machine slows another down tenfold, so none is ever applied unmeasured; and a plain run that is
right, but far slower than another rung, is a finding, too.

Source of the rungs and their order: nccl 2418, accelerate's own rule for RTX 40, and runs on real
machines (docs/verify.md).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from mirror.core.artifact import Json
from mirror.verify import transports
from mirror.verify.bandwidth import Bandwidth
from mirror.verify.launch import Job, Limits, launch
from mirror.verify.report import Check
from mirror.verify.units import rate

#: What came of a rung: right values, wrong ones, a rank that died, or none that moved on.
Result: TypeAlias = Literal["right", "wrong", "failed", "hung"]

#: The settings by the names that mirror/verify/symptoms calls them.
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "p2p-nvl": {"NCCL_P2P_LEVEL": "NVL"},
    "p2p-off": {"NCCL_P2P_DISABLE": "1"},
    "cumem-host-off": {"NCCL_CUMEM_HOST_ENABLE": "0"},
    "shm-off": {"NCCL_SHM_DISABLE": "1"},
    "nvls-off": {"NCCL_NVLS_ENABLE": "0"},
    "ib-off": {"NCCL_IB_DISABLE": "1"},
}
#: By whether the GPUs are peers: from the cheapest setting to those that leave only sockets.
_WALKS: Mapping[bool, Sequence[Sequence[str]]] = {
    True: (
        ("p2p-nvl",),
        ("p2p-off",),
        ("p2p-off", "cumem-host-off"),
        ("p2p-off", "cumem-host-off", "shm-off"),
    ),
    False: (("cumem-host-off",), ("shm-off",), ("cumem-host-off", "shm-off")),
}
#: A rung is to be this much faster than one with fewer settings to be worth it.
WORTH = 1.1
#: Of what a link promises, a right run reaches at least this share: on 2 x H200 it was 0.6 with
#: peer access and 0.06 without.
SHARE = 0.3
#: Bytes of the largest exchange on a rung, and seconds for repeating.
LARGEST, SECONDS = 64 * 2**20, 3.0
#: Less than for training: nothing but collectives runs here.
LIMITS = Limits(start=120.0, stall=30.0)
#: Seconds after which no further rung is tried, if one is right.
PATIENCE = 300.0


@dataclass(frozen=True, slots=True)
class Rung:
    """Settings that are tried together; none: the machine as it is."""

    names: tuple[str, ...] = ()

    @property
    def env(self) -> dict[str, str]:
        """The variables."""
        return {key: value for name in self.names for key, value in SETTINGS[name].items()}

    def __str__(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.env.items()) or "plain"


@dataclass(frozen=True, slots=True)
class Measured:
    """A rung that was tried. problems: why it is not right. transports: what NCCL says it used."""

    rung: Rung
    result: Result
    bandwidth: Bandwidth
    transports: str
    problems: tuple[str, ...]
    seconds: float

    @property
    def speed(self) -> float:
        """Bus bandwidth of the largest all_reduce, bytes/s; 0 when it did not come out right."""
        return self.bandwidth.all_reduce if self.result == "right" else 0.0

    def to_json(self) -> dict[str, Json]:
        """As report.json and launch.json have it."""
        pair = self.bandwidth.slowest_pair()
        return {
            "name": str(self.rung),
            "env": self.rung.env,
            "result": self.result,
            "all_reduce": self.speed or None,
            "slowest_pair": {"pair": list(pair[0]), "bandwidth": pair[1]} if pair else None,
            "collectives": {
                name: {str(size): speed for size, speed in table.items()}
                for name, table in self.bandwidth.collectives.items()
            },
            "transports": self.transports,
            "problems": list(self.problems),
            "seconds": round(self.seconds, 3),
        }


def rungs(
    *, peers: bool, pointed: Sequence[str] = (), environ: Mapping[str, str] | None = None
) -> list[Rung]:
    """What to try, in this order: plain, what symptoms point at, then the walk.

    pointed: names of SETTINGS. environ: what the machine has set already; a rung that adds nothing
    to it is left out.
    """
    have = environ or {}
    wanted = [(), *((name,) for name in pointed if name in SETTINGS), *map(tuple, _WALKS[peers])]
    found: dict[tuple[tuple[str, str], ...], Rung] = {}
    for names in wanted:
        rung = Rung(tuple(names))
        added = tuple(sorted(item for item in rung.env.items() if have.get(item[0]) != item[1]))
        found.setdefault(added, rung)
    return list(found.values())


def climb(
    tried: Sequence[Rung],
    measure: Callable[[Rung], Measured],
    *,
    clock: Callable[[], float] = time.monotonic,
) -> list[Measured]:
    """Every rung's measurement; when time is up and one is right, the rest is left out."""
    begin = clock()
    found: list[Measured] = []
    for rung in tried:
        if clock() - begin > PATIENCE and any(m.result == "right" for m in found):
            break
        found.append(measure(rung))
    return found


def measure(job: Job, rung: Rung, folder: Path, limits: Limits | None = None) -> Measured:
    """Run the trainer's collectives under a rung's settings.

    job: how processes are started; its arguments, folder and steps are replaced. folder: fresh.
    """
    environ = {**job.environ, **transports.variables(folder), **rung.env}
    trial = Job(
        python=job.python,
        folder=folder,
        processes=job.processes,
        gpu=job.gpu,
        arguments=("collectives", "--largest", str(LARGEST), "--seconds", str(SECONDS)),
        environ=environ,
    )
    outcome = launch(trial, limits=limits or LIMITS)
    rows = [row for result in outcome.results for row in _table(result.get("collectives"))]
    wrong = [row for row in rows if row.get("right") is False]
    result: Result = "right"
    problems = outcome.problems
    if problems:
        result = "hung" if "no rank has moved on" in problems[0] else "failed"
    elif wrong or not rows:
        result = "wrong"
        problems = tuple(_said(row) for row in wrong) or ("no collective was run",)
    pids = [pid for r in outcome.results if isinstance(pid := r.get("pid"), int)]
    said = transports.read(folder, pids)
    return Measured(
        rung=rung,
        result=result,
        bandwidth=Bandwidth.of(rows),
        transports=str(said.world or "") if said else "",
        problems=problems,
        seconds=outcome.seconds,
    )


def best(found: Sequence[Measured]) -> Measured | None:
    """The fastest rung that is right; of those about as fast, the one with the fewest settings."""
    right = [m for m in found if m.result == "right"]
    fastest = max((m.speed for m in right), default=0.0)
    near = [m for m in right if m.speed * WORTH >= fastest]
    return min(near, key=lambda m: (len(m.rung.env), -m.speed), default=None)


def check(found: Sequence[Measured]) -> Check:
    """The rungs with their prices, and what follows from them."""
    plain, chosen = found[0], best(found)
    rows = "\n".join(_row(m) for m in found)
    if chosen is None:
        return Check(
            "ladder",
            "fail",
            f"under no setting do collectives come out right\n{rows}",
            "No variable cures this: compare driver, NCCL and GPUs (stages host and environment).",
        )
    if chosen is plain:
        return Check("ladder", "pass", f"nothing is faster than the machine as it is\n{rows}")
    price = f"all_reduce {_speed(plain)} -> {_speed(chosen)}"
    return Check(
        "ladder",
        "warn",
        f"right and fastest: {chosen.rung} ({price})\n{rows}",
        f"mirror run and activate set {chosen.rung} from now on (launch.json).",
    )


def slow(bandwidth: Bandwidth, promised: Mapping[tuple[int, int], float]) -> list[str]:
    """What is far below the links' promise, a line each.

    promised: bytes/s one way between each two ranks, for those that are known.
    """
    found: list[str] = []
    for pair, speed in bandwidth.pairs.items():
        promise = promised.get(pair, 0.0)
        if speed < SHARE * promise:
            found.append(
                f"rank {pair[0]} to {pair[1]}: {rate(speed)}, where the link promises "
                f"{rate(promise)}"
            )
    promise = min(promised.values(), default=0.0)
    if 0 < bandwidth.all_reduce < SHARE * promise:
        found.append(
            f"all_reduce: {rate(bandwidth.all_reduce)}, where the slowest link promises "
            f"{rate(promise)}"
        )
    return found


def _row(measured: Measured) -> str:
    how = f" by {measured.transports}" if measured.transports else ""
    pair = measured.bandwidth.slowest_pair()
    text = f"{measured.rung}: {_speed(measured)}"
    if measured.result != "right":
        return f"{text}: {measured.problems[0].splitlines()[0]}"
    slowest = f", slowest pair {pair[0][0]}-{pair[0][1]} {rate(pair[1])}" if pair else ""
    return f"{text}{slowest}{how}"


def _speed(measured: Measured) -> str:
    return rate(measured.speed) if measured.result == "right" else measured.result


def _table(rows: Json) -> list[Mapping[str, Json]]:
    if not isinstance(rows, (list, tuple)):
        return []
    return [row for row in rows if isinstance(row, Mapping)]


def _said(row: Mapping[str, Json]) -> str:
    pair = row.get("pair")
    between = f" {pair[0]}->{pair[1]}" if isinstance(pair, (list, tuple)) and len(pair) == 2 else ""
    return f"{row.get('name')}{between} of {row.get('bytes')} B: {row.get('fault')}"
