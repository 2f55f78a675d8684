"""What lies between the GPUs, and how fast each two were: a drawing and a table."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from mirror.core.text import counted
from mirror.verify import ladder
from mirror.verify.bandwidth import Bandwidth
from mirror.verify.host.links import Pair, Topology
from mirror.verify.page import markup
from mirror.verify.page.drawing import svg
from mirror.verify.page.markup import text
from mirror.verify.report import Report
from mirror.verify.units import rate

#: Of the links' names in `nvidia-smi topo -m`, as its legend has them.
_MEANING = {
    "PIX": "through one PCIe switch",
    "PXB": "through several PCIe switches",
    "PHB": "through a PCIe host bridge",
    "NODE": "through host bridges of one NUMA node",
    "SYS": "from one processor to another",
}
#: More GPUs than this, and the names of the links no longer fit between them.
_NAMED = 4


def figures(report: Report) -> str:
    """Empty where there is one GPU only, or nothing is known."""
    drawn = _drawing(report.topology) if report.topology and report.topology.pairs else ""
    speeds, source = _measured(report)
    matrix = _matrix(report.topology, speeds, source) if speeds.pairs or drawn else ""
    what = "GPUs" if report.topology else "ranks"
    return f"<h2>Between the {what}</h2>\n{drawn}{matrix}" if drawn or matrix else ""


def _measured(report: Report) -> tuple[Bandwidth, str]:
    """The pairs' bandwidth and where it is from: the run of many, else the best of the rungs."""
    if report.multi and report.multi.bandwidth.pairs:
        return report.multi.bandwidth, ""
    best = ladder.best(report.rungs)
    return (best.bandwidth, f" under {best.rung}") if best else (Bandwidth(), "")


def _drawing(topology: Topology) -> str:
    count = len(topology.gpus)
    radius = 118.0
    places, width, height = _circle(count, radius, 30)
    where = dict(zip(topology.gpus, places, strict=True))
    links = [_link(topology, pair, where) for pair in topology.pairs]
    names = [_name(topology, pair, where, radius) for pair in topology.pairs]
    gpus = [
        f'<circle class="gpu" fill="#fff" stroke="#333" cx="{x:.1f}" cy="{y:.1f}" r="24"/>'
        f'<text class="on" x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle">GPU {gpu}</text>'
        for gpu, (x, y) in where.items()
    ]
    kinds = _kinds(topology)
    described = "; ".join(f"{word}, {state}: {_pairs(pairs)}" for word, state, pairs in kinds)
    parts = [*links, *(names if count <= _NAMED else []), *gpus]
    drawing = svg("links", width, height, "What lies between the GPUs", described, parts)
    keys = "".join(_key(topology, *kind) for kind in kinds)
    return markup.figure(f'<div class="between">{drawing}<ul>{keys}</ul></div>', "")


def _circle(count: int, radius: float, margin: float) -> tuple[list[tuple[float, float]], int, int]:
    """Places on a circle, clockwise, the first at the upper left, or on top of an odd number; and
    the width and height that hold them.
    """
    start = -math.pi / 2 - (math.pi / count if count % 2 == 0 else 0)
    turns = [start + 2 * math.pi * n / count for n in range(count)]
    places = [(radius * math.cos(turn), radius * math.sin(turn)) for turn in turns]
    left, top = min(x for x, _ in places) - margin, min(y for _, y in places) - margin
    width = max(x for x, _ in places) + margin - left
    height = max(y for _, y in places) + margin - top
    return [(x - left, y - top) for x, y in places], round(width), round(height)


def _link(topology: Topology, pair: Pair, where: dict[int, tuple[float, float]]) -> str:
    (ax, ay), (bx, by) = where[pair[0]], where[pair[1]]
    state = topology.states.get(pair, "OK")
    kind = f"link {_class(topology.links.get(pair, ''))}{'' if state == 'OK' else ' apart'}"
    ends = f'x1="{ax:.1f}" y1="{ay:.1f}" x2="{bx:.1f}" y2="{by:.1f}"'
    return f'<line class="{kind}" stroke="currentColor" {ends}/>'


def _name(
    topology: Topology, pair: Pair, where: dict[int, tuple[float, float]], radius: float
) -> str:
    (ax, ay), (bx, by) = where[pair[0]], where[pair[1]]
    # Diagonals cross in the middle: their names stand beside it.
    crossing = len(where) > 2 and math.hypot(bx - ax, by - ay) > 1.9 * radius
    share = 0.33 if crossing else 0.5
    x, y = ax + (bx - ax) * share, ay + (by - ay) * share
    link = topology.links.get(pair, "?")
    at = f'x="{x:.1f}" y="{y + 4:.1f}" text-anchor="middle"'
    return f'<text class="halo {_class(link)}" {at}>{text(link)}</text>'


def _kinds(topology: Topology) -> list[tuple[str, str, list[Pair]]]:
    """Each link with its state, and the pairs that have it."""
    found: dict[tuple[str, str], list[Pair]] = {}
    for pair in topology.pairs:
        state = topology.states.get(pair, "")
        key = (topology.links.get(pair, "?"), state)
        found.setdefault(key, []).append(pair)
    return [(link, _state(state), pairs) for (link, state), pairs in found.items()]


def _state(state: str) -> str:
    if state == "OK":
        return "peers"
    return f"no peers ({state})" if state else "peers or not: not known"


def _key(topology: Topology, link: str, state: str, pairs: Sequence[Pair]) -> str:
    rates = {rate for pair in pairs if (rate := topology.promised(pair))}
    what = f"{link[2:]} NVLinks" if link.startswith("NV") else _MEANING.get(link, "unknown")
    promise = f", {_range(rates)} promised each way" if rates else ""
    apart = " apart" if state.startswith("no") else ""
    return (
        f'<li class="{_class(link)}"><span class="line{apart}"></span><span><b>{text(link)}</b>'
        f"<small>{text(what)}; {text(state)}</small>"
        f"<small>{text(counted(len(pairs), 'pair') + promise)}</small></span></li>"
    )


def _range(rates: Iterable[float]) -> str:
    low, high = rate(min(rates := list(rates))), rate(max(rates))
    return low if low == high else f"{low} to {high}"


def _pairs(pairs: Sequence[Pair]) -> str:
    named = ", ".join(f"{a}-{b}" for a, b in pairs[:8])
    return f"{counted(len(pairs), 'pair')} ({named}{' ...' if len(pairs) > 8 else ''})"


def _class(link: str) -> str:
    if link.startswith("NV"):
        return "nv"
    return link.lower() if link in _MEANING else "other"


def _matrix(topology: Topology | None, found: Bandwidth, source: str) -> str:
    """From each rank to each other: the bandwidth, the deeper the faster, and the link."""
    speeds = {pair: v for pair, v in found.pairs.items() if 0 < v < math.inf}
    ranks = max((rank for pair in speeds for rank in pair), default=-1) + 1
    gpus = list(topology.gpus) if topology else []
    count = max(ranks, len(gpus))
    most = max(speeds.values(), default=0.0)
    unit, name = (1e9, "GB/s") if most >= 1e9 else (1e6, "MB/s")
    kind = "GPU" if gpus else "rank"
    names = [str(gpus[n]) if n < len(gpus) else str(n) for n in range(count)]
    heads = "".join(f'<th scope="col">{kind} {text(n)}</th>' for n in names)
    rows: list[str] = []
    low = _slow(topology, gpus, speeds)
    for a in range(count):
        cells = [_cell(topology, gpus, speeds, (a, b), most, unit, low) for b in range(count)]
        rows.append(f'<tr><th scope="row">{kind} {text(names[a])}</th>{"".join(cells)}</tr>')
    said = (
        f"{name} from the row's to the column's{text(source)}, the deeper the faster."
        + (f" Framed: less than {ladder.SHARE:.0%} of what the link promises." if low else "")
        if speeds
        else "Nothing was measured between these."
    )
    drawn = (
        '<div class="scroll"><table class="matrix top">'
        f'<thead><tr><th scope="col">from \\ to</th>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
    return markup.figure(drawn, f"<span>{said}</span>", kind="plain")


def _slow(
    topology: Topology | None, gpus: Sequence[int], speeds: Mapping[Pair, float]
) -> set[Pair]:
    """Pairs of ranks whose GPUs are peers, and far slower than their link promises."""
    found: set[Pair] = set()
    for (a, b), speed in speeds.items():
        if topology and a < len(gpus) and b < len(gpus):
            pair = gpus[a], gpus[b]
            promised = topology.promised(pair) or 0.0
            if topology.states.get(pair) == "OK" and speed < ladder.SHARE * promised:
                found.add((a, b))
    return found


def _cell(
    topology: Topology | None,
    gpus: Sequence[int],
    speeds: Mapping[Pair, float],
    pair: Pair,
    most: float,
    unit: float,
    low: set[Pair],
) -> str:
    a, b = pair
    if a == b:
        return "<td>&#183;</td>"
    speed = speeds.get(pair)
    known = topology and a < len(gpus) and b < len(gpus)
    link = topology.links.get((gpus[a], gpus[b]), "?") if topology and known else ""
    heat = f' style="--heat:{0.05 + 0.4 * speed / most:.2f}"' if speed else ""
    kind = ' class="low"' if pair in low else ""
    small = f"<small>{text(link)}</small>" if link else ""
    return f"<td{kind}{heat}>{_digits(speed / unit) if speed else ''}{small}</td>"


def _digits(value: float) -> str:
    """Three of them."""
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"
