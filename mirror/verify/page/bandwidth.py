"""How fast data went: by collective and size, and under each of the NCCL settings tried."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

from mirror.verify import ladder
from mirror.verify.ladder import Measured
from mirror.verify.page import markup
from mirror.verify.page.drawing import Plot, Scale, apart, svg
from mirror.verify.page.markup import badge, table, text
from mirror.verify.report import Report
from mirror.verify.units import binary, difference, rate

_WIDTH, _HEIGHT, _RIGHT = 720, 340, 578
_COLOURS = 6
_MEANING = (
    "Bus bandwidth is what each link carries, by nccl-tests' definition: it may be held against"
    " what a link promises."
)
_APPLIED = (
    "sends between each two GPUs, under each setting, every value checked. What is right and"
    " fastest is proposed."
)


def figures(report: Report) -> str:
    """Both; empty where nothing was measured."""
    parts: list[str] = []
    found = report.multi.bandwidth.collectives if report.multi else {}
    if drawn := _curves("bandwidth", "Bus bandwidth by size", found, _promise(report)):
        parts.append(f"<h2>Bandwidth</h2>\n{drawn}")
    if report.rungs:
        parts.append(f"<h2>NCCL settings</h2>\n{_rungs(report.rungs)}")
        tables = {
            f"setting {number}": rung.bandwidth.collectives["all_reduce"]
            for number, rung in enumerate(report.rungs, 1)
            if rung.result == "right" and "all_reduce" in rung.bandwidth.collectives
        }
        if len(tables) > 1:
            parts.append(_curves("settings", "all_reduce by size, under each setting", tables, 0))
    return "".join(parts)


def _promise(report: Report) -> float:
    """Bytes per second that the slowest link between the ranks' GPUs promises; 0: not known."""
    topology, world = report.topology, len(report.multi.ranks) if report.multi else 0
    if topology is None or not report.multi or not report.multi.ranks[0].on_gpu:
        return 0.0
    used = set(topology.gpus[:world])
    promised = [topology.promised(pair) for pair in topology.pairs if used.issuperset(pair)]
    return min((p for p in promised if p), default=0.0)


def _curves(
    name: str, title: str, tables: Mapping[str, Mapping[int, float]], promise: float
) -> str:
    """A curve a table: bytes -> bytes per second, both logarithmic."""
    curves = {
        key: {size: v for size, v in sorted(table.items()) if size > 0 and 0 < v < math.inf}
        for key, table in tables.items()
    }
    curves = {key: curve for key, curve in curves.items() if curve}
    if not curves:
        return ""
    sizes = sorted({size for curve in curves.values() for size in curve})
    speeds = [v for curve in curves.values() for v in curve.values()] + [promise] * (promise > 0)
    decades = range(math.floor(math.log10(min(speeds))), math.ceil(math.log10(max(speeds))) + 1)
    plot = Plot(
        Scale(sizes[0], sizes[-1], 76, _RIGHT, logarithmic=True),
        Scale(10.0 ** decades[0], 10.0 ** max(decades[-1], decades[0] + 1), 292, 18, True),
    )
    parts = [
        *plot.grid(
            [10.0**n for n in decades], _marks(sizes), _decade, _size, "size of the exchange"
        ),
        *_drawn(plot, curves),
        *_line(plot, promise),
    ]
    described = "; ".join(
        f"{key}: {rate(curve[max(curve)])} at {binary(max(curve))}" for key, curve in curves.items()
    )
    rows = [[binary(s), *(rate(c[s]) if s in c else "" for c in curves.values())] for s in sizes]
    caption = f"<span>{text(title)}. {_MEANING}</span>"
    drawing = svg(name, _WIDTH, _HEIGHT, title, described, parts)
    return markup.figure(drawing, caption, markup.data(["size", *curves], rows))


def _drawn(plot: Plot, curves: Mapping[str, Mapping[int, float]]) -> list[str]:
    """Each curve, and its name at its end."""
    ends = [plot.y(curve[max(curve)]) for curve in curves.values()]
    places = apart(ends, 17, 24, plot.y.begin)
    parts: list[str] = []
    for number, (key, curve) in enumerate(curves.items()):
        points = plot.points(curve.items())
        dots = "".join(
            f'<circle class="dot" r="2.5" cx="{x}" cy="{y}"/>'
            for x, y in (point.split(",") for point in points)
        )
        x, y = plot.x(max(curve)), places[number]
        lead = f'<line class="curve" stroke-opacity=".35" x1="{x + 4:.1f}" y1="{ends[number]:.1f}"'
        lead += f' x2="{_RIGHT + 14}" y2="{y:.1f}"/>'
        words = f'<text class="name" x="{_RIGHT + 18}" y="{y + 4:.1f}">{text(key)}</text>'
        line = f'<polyline class="curve" points="{" ".join(points)}" fill="none"'
        line += ' stroke="currentColor"/>'
        parts.append(f'<g class="s{number % _COLOURS + 1}">{line}{dots}{lead}{words}</g>')
    return parts


def _line(plot: Plot, promise: float) -> list[str]:
    """What the links promise."""
    if promise <= 0:
        return []
    y = plot.y(promise)
    ends = f'x1="{plot.x.begin:.0f}" x2="{plot.x.end:.0f}" y1="{y:.1f}" y2="{y:.1f}"'
    words = f"a link promises {rate(promise)}"
    return [
        f'<line class="promise" stroke="#888" {ends}/>',
        f'<text class="clear" x="{plot.x.begin + 6:.0f}" y="{y + 4:.1f}">{words}</text>',
    ]


def _marks(sizes: Sequence[int]) -> list[float]:
    """Powers of 8 between the smallest and the largest size."""
    powers = (8**n for n in range(1, 20))
    return [size for size in powers if sizes[0] <= size <= sizes[-1]] or [sizes[0]]


def _size(value: float) -> str:
    return binary(int(value))


def _decade(value: float) -> str:
    """ "10 GB/s", without the digits that a power of ten does not need."""
    return re.sub(r"\.0+ ", " ", rate(value))


def _rungs(rungs: Sequence[Measured]) -> str:
    best = ladder.best(rungs)
    fastest = max((rung.speed for rung in rungs), default=0.0)
    rows = [_rung(n, rung, best, fastest) for n, rung in enumerate(rungs, 1)]
    heads = ("", "setting", "all_reduce", "against best", "slowest pair")
    found = table("rungs", heads, rows, (0, 2, 3, 4))
    caption = f"<span>all_reduce of {binary(ladder.LARGEST)}, and {_APPLIED}</span>"
    return markup.figure(found, caption, kind="plain")


def _rung(number: int, rung: Measured, best: Measured | None, fastest: float) -> list[str]:
    right = rung.result == "right"
    pair = rung.bandwidth.slowest_pair() if right else None
    kind = ' class="best"' if rung is best else ""
    name = f"<code>{text(str(rung.rung))}</code>"
    if rung is best:
        name += ' <span class="pill">right and fastest</span>'
    if right:
        share = 100 * rung.speed / fastest if 0 < rung.speed < math.inf else 0
        said = f"<small>{text(rung.transports)}</small>" if rung.transports else ""
        name += (
            '<svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
            f'<rect class="bar" fill="#8a94a0" width="{share:.1f}" height="8" rx="0"/></svg>{said}'
        )
    elif rung.problems:
        name += f"<small>{text(rung.problems[0].partition(chr(10))[0])}</small>"
    slowest = f"{rate(pair[1])}<small>{pair[0][0]} to {pair[0][1]}</small>" if pair else ""
    price = "" if rung is best else difference(rung.speed, best.speed if best else 0.0)
    speed = rate(rung.speed) if right else badge("fail", rung.result)
    return [str(number), f"<div{kind}>{name}</div>", speed, price, slowest]
