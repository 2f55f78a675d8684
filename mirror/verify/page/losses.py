"""The loss at every step: of one process, broad, and of many, thin upon it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mirror.verify.page import markup
from mirror.verify.page.drawing import Plot, Scale, svg
from mirror.verify.page.markup import text
from mirror.verify.report import Report, Training

_WIDTH, _HEIGHT = 720, 300
#: For readers that leave the style sheet out of drawings.
_STROKES = {"one": ("#8a94a0", 6), "many": ("#1f6feb", 2)}


def figure(report: Report) -> str:
    """Empty when nothing was trained."""
    single, multi = report.single, report.multi
    if single is None:
        return ""
    runs = [("one", "one process", single)]
    runs += [("many", f"{len(multi.ranks)} processes", multi)] if multi else []
    steps = max(len(training.losses) for _, _, training in runs)
    finite = [x for _, _, training in runs for x in training.losses if math.isfinite(x)]
    top = _ceiling(max(finite, default=1.0))
    plot = Plot(Scale(1, max(2, steps), 52, _WIDTH - 16), Scale(0, top, _HEIGHT - 48, 16))
    parts = plot.grid([top * n / 4 for n in range(5)], _marks(steps), _short, str, "step")
    paths = [_path(plot, kind, training.losses) for kind, _, training in runs]
    described = "; ".join(
        f"{name}: from {t.losses[0]:.3f} to {t.losses[-1]:.3f} nats in {len(t.losses)} steps"
        for _, name, t in runs
    )
    drawing = svg("loss", _WIDTH, _HEIGHT, "Loss at every step", described, [*parts, *paths])
    return f"<h2>Loss</h2>\n{markup.figure(drawing, _keys(runs), _numbers(runs))}"


def _keys(runs: Sequence[tuple[str, str, Training]]) -> str:
    keys = [f'<span><span class="key {kind}"></span>{text(name)}</span>' for kind, name, _ in runs]
    single = runs[0][2]
    for _, _, training in runs[1:]:
        difference = training.largest_difference(single)
        allowed = f"tolerance {single.tolerance:.0e}"
        keys.append(f"<span>largest difference {difference:.1e} nats, {allowed}</span>")
    return "".join(keys)


def _numbers(runs: Sequence[tuple[str, str, Training]]) -> str:
    columns = [training.losses for _, _, training in runs]
    rows = [
        [str(n + 1), *(f"{c[n]:.6f}" if n < len(c) else "" for c in columns)]
        for n in range(max(map(len, columns)))
    ]
    return markup.data(["step", *(name for _, name, _ in runs)], rows)


def _path(plot: Plot, kind: str, losses: Sequence[float]) -> str:
    stroke, width = _STROKES[kind]
    line = plot.broken((step, loss) for step, loss in enumerate(losses, 1))
    look = f'fill="none" stroke="{stroke}" stroke-width="{width}"'
    return f'<path class="{kind}" {look} d="{line}"/>'


def _marks(steps: int) -> list[int]:
    """The first step, and at most five round ones."""
    round_ = next(m * 10**n for n in range(10) for m in (1, 2, 5) if steps <= 5 * m * 10**n)
    return [1, *(n for n in range(round_, steps + 1, round_) if n > max(1, round_ / 2))]


def _short(value: float) -> str:
    return f"{value:.3g}"


def _ceiling(value: float) -> float:
    """The next multiple of its power of ten."""
    scale = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return math.ceil(value / scale) * scale
