"""How the GPUs reach each other: the links between them, and whether they are peers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from mirror.core.paths import shown
from mirror.verify.host.cards import Card
from mirror.verify.host.finding import Problem, grouped, judged, of
from mirror.verify.host.gpus import Gpu
from mirror.verify.host.health import cards_of
from mirror.verify.host.machine import Machine, words
from mirror.verify.report import Check

LINKS = ("nvidia-smi", "topo", "-m")
PEERS = ("nvidia-smi", "topo", "-p2p", "r")
NVLINKS = ("nvidia-smi", "nvlink", "-s")
#: Two GPUs, by nvidia-smi's index.
Pair: TypeAlias = tuple[int, int]
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_LINK = re.compile(r"NV\d+|PIX|PXB|PHB|NODE|SYS|SOC|X")
_STATE = re.compile(r"OK|CNS|GNS|TNS|NS|DR|X|U")
#: What the driver says of two GPUs that are no peers (`nvidia-smi topo -p2p -h`).
_STATES = {
    "CNS": "the chipset does not support it",
    "GNS": "the GPUs do not support it",
    "TNS": "the way between them does not allow it",
    "NS": "not supported",
    "DR": "the driver's settings forbid it",
    "U": "unknown",
}
#: PCIe generation -> bytes per second and lane, one way, coding taken off.
_LANE = {1: 0.25e9, 2: 0.5e9, 3: 0.985e9, 4: 1.969e9, 5: 3.938e9, 6: 7.563e9}


@dataclass(frozen=True, slots=True)
class Topology:
    """The visible GPUs, by nvidia-smi's index, and what lies between each two.

    links: "NV18" (18 NVLinks), or how far the way over PCIe is: "PIX", "PXB", "PHB", "NODE", "SYS".
    states: "OK" for peers, else why they are none; empty when the driver does not tell.
    rates: bytes per second, one way, that link or bus promise. Both orders of a pair are keys.
    """

    gpus: tuple[int, ...]
    links: Mapping[Pair, str] = field(hash=False)
    states: Mapping[Pair, str] = field(hash=False)
    rates: Mapping[Pair, float] = field(hash=False)

    @property
    def pairs(self) -> list[Pair]:
        """Each two GPUs, once."""
        return list(itertools.combinations(self.gpus, 2))

    @property
    def peers(self) -> bool:
        """Whether every GPU can read the memory of every other one; False when not known."""
        return bool(self.pairs) and all(self.states.get(pair) == "OK" for pair in self.pairs)

    @property
    def over_pcie(self) -> bool:
        """Whether some are peers, or may be, over PCIe and not over NVLink."""
        return any(
            self.states.get(pair, "OK") == "OK" and not self.links.get(pair, "").startswith("NV")
            for pair in self.pairs
        )

    def promised(self, pair: Pair) -> float | None:
        """Bytes per second, one way, that the link between two GPUs promises; None: not known.

        NVLink: as many links as there are, each as fast as the driver says. PCIe: the slower
        card's lanes at the highest generation that it and its slot share.
        """
        return self.rates.get(pair)


def topology(here: Machine, gpus: Sequence[Gpu]) -> Topology | None:
    """Of these GPUs; None when nvidia-smi shows no links."""
    said = here.tool(*LINKS)
    links = matrix(said.out, _LINK) if said else {}
    numbers = tuple(gpu.number for gpu in gpus)
    wanted = list(itertools.permutations(numbers, 2))
    links = {pair: links[pair] for pair in wanted if pair in links}
    if not links:
        return None
    said = here.tool(*PEERS)
    states = matrix(said.out, _STATE) if said else {}
    speeds = nvlinks(said.out) if (said := here.tool(*NVLINKS)) else {}
    cards = {gpu.number: card for gpu, card in cards_of(here, gpus)}
    rates = {pair: _rate(pair, link, speeds, cards) for pair, link in links.items()}
    return Topology(
        gpus=numbers,
        links=links,
        states={pair: states[pair] for pair in wanted if pair in states},
        rates={pair: rate for pair, rate in rates.items() if rate},
    )


def matrix(text: str, cell: re.Pattern[str]) -> dict[Pair, str]:
    """What stands between each two GPUs in a table of `nvidia-smi topo`.

    The GPUs come first in it; network cards follow, whose cells may run into each other.
    """
    lines = _COLOUR.sub("", text).splitlines()
    head = next((line for line in lines if re.match(r"\s+GPU\d", line)), "")
    columns = [int(number) for number in re.findall(r"GPU(\d+)", head)]
    found: dict[Pair, str] = {}
    for line in lines:
        row = re.match(r"\s*GPU(\d+)\s+(.*)", line)
        if line is head or not row:
            continue
        # A word that is no cell keeps its place: the ones after it stay in their columns.
        cells = [part for word in row[2].split() for part in cell.findall(word) or [""]]
        found.update({(int(row[1]), c): v for c, v in zip(columns, cells, strict=False) if v})
    return found


def nvlinks(text: str) -> dict[int, list[float | None]]:
    """GPU -> bytes per second of each of its NVLinks, None for one that is down."""
    found: dict[int, list[float | None]] = {}
    gpu = -1
    for line in text.splitlines():
        if header := re.match(r"GPU (\d+):", line):
            gpu = int(header[1])
            found[gpu] = []
        elif gpu >= 0 and (link := re.match(r"\s*Link \d+: *(?:([\d.]+) GB/s|(.*))", line)):
            found[gpu].append(float(link[1]) * 1e9 if link[1] and float(link[1]) else None)
    return found


def _rate(
    pair: Pair,
    link: str,
    speeds: Mapping[int, Sequence[float | None]],
    cards: Mapping[int, Card],
) -> float | None:
    if link.startswith("NV"):
        up = [[s for s in speeds.get(gpu, ()) if s] for gpu in pair]
        return int(link[2:]) * min(map(min, up)) if all(up) else None
    buses = [
        _LANE[card.generation] * (card.width or 0)
        for card in (cards.get(gpu) for gpu in pair)
        if card and card.generation in _LANE
    ]
    return min(buses) if len(buses) == 2 else None


def check(here: Machine, gpus: Sequence[Gpu], found: Topology | None) -> Check:
    """Whether the GPUs are peers, and over what."""
    if found is None:
        said = here.tool(*LINKS)
        why = "no links in it" if said and said.code == 0 else words(said, LINKS[0])
        return Check("peer access", "skip", f"{' '.join(LINKS)}: {shown(why)}")
    facts = [*_table(found), _promise(found)]
    if not found.states:
        said = here.tool(*PEERS)
        why = "no states in it" if said and said.code == 0 else words(said, PEERS[0])
        return Check("peer access", "skip", "\n".join([f"{' '.join(PEERS)}: {shown(why)}", *facts]))
    bad = {pair: s for pair in found.pairs if (s := found.states.get(pair, "U")) != "OK"}
    if not bad:
        return judged("peer access", ["every GPU can read the memory of every other", *facts], [])
    reasons = ", ".join(f"{s}: {_STATES.get(s, s)}" for s in dict.fromkeys(bad.values()))
    if len(bad) == len(found.pairs) and all("GeForce" in gpu.name for gpu in gpus):
        line = f"no peer access, as usual with GeForce ({reasons}): data goes through host memory"
        return judged("peer access", [line, *facts], [])
    return judged("peer access", facts, [_no_peers(found, bad, reasons)])


def _no_peers(found: Topology, bad: Mapping[Pair, str], reasons: str) -> Problem:
    over = any(found.links.get(pair, "").startswith("NV") for pair in bad)
    who = "no two GPUs" if len(bad) == len(found.pairs) else _some(bad)
    what = f"{who} can read each other's memory ({reasons})"
    if over:
        advice = "They have NVLink: look at Fabric Manager and nvidia-smi nvlink -s."
    elif set(bad.values()) == {"DR"}:
        advice = "Look for NVreg_ settings in /etc/modprobe.d."
    else:
        advice = "Look at the BIOS: IOMMU, ACS, Resizable BAR; in a virtual machine at its host."
    return Problem("warn", what, f"{advice}\nWithout it data goes through host memory: slower.")


def _some(bad: Iterable[Pair]) -> str:
    pairs = [f"{of(pair[:1])} and {pair[1]}" for pair in bad]
    more = f" and {len(pairs) - 4} more pairs" if len(pairs) > 4 else ""
    return f"not all pairs: neither {', nor '.join(pairs[:4])}{more}"


def _table(found: Topology) -> list[str]:
    """The matrix, with the peer state where it is not OK."""
    rows = [["", *(f"GPU{gpu}" for gpu in found.gpus)]]
    for row in found.gpus:
        cells = [_cell(found, (row, column)) for column in found.gpus]
        rows.append([f"GPU{row}", *cells])
    width = max(len(cell) for row in rows for cell in row)
    return [" ".join(cell.ljust(width) for cell in row).rstrip() for row in rows]


def _cell(found: Topology, pair: Pair) -> str:
    if pair[0] == pair[1]:
        return "X"
    state = found.states.get(pair, "")
    return found.links.get(pair, "?") + (f"/{state}" if state not in ("", "OK") else "")


def _promise(found: Topology) -> str:
    rates = sorted({round(rate / 1e9) for rate in found.rates.values()})
    if not rates:
        return "how fast these links are is not known"
    text = f"{rates[0]}" if len(rates) == 1 else f"{rates[0]} to {rates[-1]}"
    return f"the links between two GPUs promise {text} GB/s each way"


def check_nvlinks(here: Machine, gpus: Sequence[Gpu]) -> Check | None:
    """Whether equal GPUs have equally many NVLinks up; None when there are none."""
    said = here.tool(*NVLINKS)
    table = nvlinks(said.out) if said else {}
    up = {gpu.number: sum(1 for s in table.get(gpu.number, ()) if s) for gpu in gpus}
    if not any(up.values()):
        return None
    problems: list[Problem] = []
    facts: list[tuple[int, str]] = []
    for name in dict.fromkeys(gpu.name for gpu in gpus):
        alike = [gpu.number for gpu in gpus if gpu.name == name]
        most = max(up[number] for number in alike)
        for number in alike:
            speeds = sorted({s / 1e9 for s in table.get(number, ()) if s})
            facts += [(number, f"{up[number]} links of {speeds[0]:g} GB/s")] if speeds else []
        if weak := [number for number in alike if up[number] < most]:
            counts = ", ".join(f"GPU {number}: {up[number]}" for number in weak)
            what = f"fewer NVLinks up than on the others ({most}): {counts}"
            advice = "nvidia-smi nvlink -e counts errors; reset the GPUs, or reboot."
            problems.append(Problem("warn", what, advice))
    return judged("nvlink", grouped(facts), problems)
