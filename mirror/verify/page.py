"""The report as one page: no network, no scripts, light and dark, fit for paper."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

from mirror.core.text import human_size, human_time
from mirror.verify.report import Check, Report, Stage, Training

_WIDTH, _HEIGHT = 720, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 16, 16, 48
_STROKES = {"one": "#8a94a0", "many": "#1f6feb"}
_CSS = """
:root{color-scheme:light dark;--bg:#fbfbfa;--card:#fff;--ink:#1c2024;--soft:#5c6570;--line:#e1e4e8;
--pass:#1a7f4b;--warn:#9a6400;--fail:#c0322b;--skip:#6b7480;--one:#8a94a0;--many:#1f6feb}
@media(prefers-color-scheme:dark){:root{--bg:#14171a;--card:#1b1f23;--ink:#e6e9ec;--soft:#9aa4ae;
--line:#30363d;--pass:#4cc38a;--warn:#e0a63a;--fail:#ff7b72;--skip:#8b949e;--one:#8b949e;
--many:#6cb0ff}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",sans-serif}
main{max-width:880px;margin:0 auto;padding:40px 20px 64px}
.brand{color:var(--soft);font-size:13px;letter-spacing:.04em}
h1{font-size:25px;line-height:1.3;margin:6px 0 18px;text-wrap:balance}
h2{font-size:17px;margin:40px 0 12px}
.verdict{display:inline-block;min-width:3.6em;padding:1px 9px;border-radius:999px;text-align:center;
font-size:12px;font-weight:650;letter-spacing:.02em;border:1.5px solid currentColor}
.pass{color:var(--pass)}.warn{color:var(--warn)}.fail{color:var(--fail)}.skip{color:var(--skip)}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;overflow:hidden}
dl.facts{display:grid;grid-template-columns:max-content 1fr;gap:5px 18px;margin:0;padding:16px 18px}
dl.facts dt{color:var(--soft)}
dl.facts dd{margin:0;overflow-wrap:anywhere}
details{border-top:1px solid var(--line)}
details:first-child{border-top:0}
summary{display:flex;gap:14px;align-items:baseline;padding:11px 18px;cursor:pointer;list-style:none}
summary::-webkit-details-marker{display:none}
summary::before{content:"\\25b8";color:var(--soft);flex:none}
details[open]>summary::before{content:"\\25be"}
summary b{min-width:7.5em}
summary .sum{color:var(--soft);flex:1}
summary .time{color:var(--soft);font-variant-numeric:tabular-nums;font-size:13px}
.scroll{overflow-x:auto}
table{width:100%;border-collapse:collapse;font-size:14px}
th,td{padding:8px 12px;text-align:left;vertical-align:top;border-top:1px solid var(--line)}
th:first-child,td:first-child{padding-left:18px}
th{color:var(--soft);font-weight:500;font-size:13px;white-space:nowrap}
.ranks tr:first-child th{border-top:0}
.checks td:first-child{width:90px}.checks td:nth-child(2){width:180px;overflow-wrap:anywhere}
td.evidence{overflow-wrap:anywhere;white-space:pre-wrap}
td .advice{display:block;margin-top:4px;white-space:pre-wrap}
td .advice::before{content:"\\2192\\00a0";color:var(--soft)}
.number{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
code{font:12.5px/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
figure{margin:0;padding:14px 12px 10px}
svg{display:block;width:100%;height:auto}
svg text{fill:var(--soft);font:12px system-ui,sans-serif}
svg .grid{stroke:var(--line)}
svg path{fill:none;stroke-linejoin:round}
svg .one{stroke:var(--one);stroke-width:6;stroke-opacity:.45}
svg .many{stroke:var(--many);stroke-width:2}
figcaption{display:flex;flex-wrap:wrap;gap:6px 22px;color:var(--soft);font-size:13px;
padding:6px 8px}
.key{display:inline-block;width:22px;margin-right:7px;vertical-align:middle;border-radius:3px}
.key.one{height:6px;background:var(--one);opacity:.55}.key.many{height:2px;background:var(--many)}
footer{margin-top:40px;color:var(--soft);font-size:13px}
@media print{:root{--bg:#fff;--card:#fff;--ink:#000;--soft:#444;--line:#bbb}
main{max-width:none;padding:0}summary::before{display:none}
details,figure,tr{break-inside:avoid}details:not([open])>*{display:block}
details::details-content{content-visibility:visible;display:block;height:auto}}
"""


def html(report: Report) -> str:
    """The whole page."""
    return "".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            '<meta name="viewport" content="width=device-width,initial-scale=1">\n',
            f"<title>{escape(_title(report))}</title>\n<style>{_CSS}</style>\n</head>\n",
            '<body>\n<main>\n<div class="brand">mirror verify</div>\n',
            f"<h1>{_badge(report.verdict)} {escape(report.headline)}</h1>\n",
            _facts(report),
            '<h2>Stages</h2>\n<div class="card">\n',
            *[_stage(stage) for stage in report.stages],
            "</div>\n",
            _curve(report.single, report.multi),
            *[
                _ranks(title, training)
                for title, training in (
                    ("One process", report.single),
                    ("Many processes", report.multi),
                )
                if training
            ],
            f"<footer>{escape(report.started)}, {human_time(report.seconds)}.\n",
            "The same for machines: report.json beside this page.</footer>\n",
            "</main>\n</body>\n</html>\n",
        ]
    )


def _title(report: Report) -> str:
    return f"{report.verdict}: {report.facts.get('bundle', '')} on {report.facts.get('host', '')}"


def _badge(verdict: str) -> str:
    return f'<span class="verdict {verdict}">{verdict}</span>'


def _facts(report: Report) -> str:
    rows = [
        f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in report.facts.items()
    ]
    return f'<dl class="card facts">{"".join(rows)}</dl>\n'


def _stage(stage: Stage) -> str:
    opened = " open" if stage.verdict in ("warn", "fail") else ""
    return (
        f"<details{opened}><summary><b>{escape(stage.name)}</b>{_badge(stage.verdict)}"
        f'<span class="sum">{escape(stage.summary)}</span>'
        f'<span class="time">{human_time(stage.seconds)}</span></summary>\n'
        f'<div class="scroll"><table class="checks">'
        f"{''.join(_check(check) for check in stage.checks)}</table></div></details>\n"
    )


def _check(check: Check) -> str:
    advice = f'<span class="advice">{escape(check.advice)}</span>' if check.advice else ""
    return (
        f"<tr><td>{_badge(check.verdict)}</td><td>{escape(check.name)}</td>"
        f'<td class="evidence">{escape(check.evidence)}{advice}</td></tr>'
    )


def _ranks(title: str, training: Training) -> str:
    first = training.ranks[0]
    heads = ("rank", "of", "backend", "device", "GPU", "peak memory", "process")
    rows = [
        (
            f'<tr><td class="number">{rank.rank}</td><td class="number">{rank.world_size}</td>'
            f"<td>{escape(rank.backend or 'none')}</td><td>{escape(rank.device)}</td>"
            f"<td>{escape(rank.gpu)} <code>{escape(rank.gpu_uuid)}</code></td>"
            f'<td class="number">{human_size(rank.peak_memory)}</td>'
            f'<td class="number">{rank.pid}</td></tr>'
        )
        for rank in training.ranks
    ]
    said = (
        f"{first.steps} steps of {first.batch} samples, precision {first.precision},"
        f" {first.tokens_per_second:,.0f} tokens/s, {human_time(training.seconds)} in all"
    )
    numbers = ("rank", "of", "peak memory", "process")
    cells = [f"<th{' class=number' if h in numbers else ''}>{h}</th>" for h in heads]
    return (
        f"<h2>{title}</h2>\n<p>{escape(said)}</p>\n"
        f'<div class="card scroll"><table class="ranks"><tr>{"".join(cells)}</tr>'
        f"{''.join(rows)}</table></div>\n"
    )


def _curve(single: Training | None, multi: Training | None) -> str:
    """The losses of one process, broad, and of many, thin upon it."""
    if single is None:
        return ""
    series = [("one", single.losses)] + ([("many", multi.losses)] if multi else [])
    finite = [loss for _, losses in series for loss in losses if math.isfinite(loss)]
    top = _ceiling(max(finite, default=1.0))
    paths = [
        # The attributes serve readers that leave the style sheet out of drawings.
        f'<path class="{name}" fill="none" stroke="{_STROKES[name]}" d="{_path(losses, top)}"/>'
        for name, losses in series
    ]
    keys = ['<span><span class="key one"></span>one process</span>']
    if multi:
        together = f"{len(multi.ranks)} processes"
        keys.append(f'<span><span class="key many"></span>{together}</span>')
        difference = multi.largest_difference(single)
        allowed = f"tolerance {single.tolerance:.0e}"
        keys.append(f"<span>largest difference {difference:.1e} nats, {allowed}</span>")
    return (
        '<h2>Loss</h2>\n<figure class="card">'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" font-size="12" role="img"'
        ' aria-label="Loss at every step">'
        f"{''.join(_grid(top, len(single.losses)))}{''.join(paths)}</svg>"
        f"<figcaption>{''.join(keys)}</figcaption></figure>\n"
    )


def _ceiling(value: float) -> float:
    """The next round number: 1, 2 or 5 times a power of ten, or a multiple of it by 1."""
    scale = 10.0 ** math.floor(math.log10(value)) if value > 0 else 1.0
    return math.ceil(value / scale) * scale


def _x(step: int, steps: int) -> float:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * step / max(1, steps - 1)


def _y(loss: float, top: float) -> float:
    return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - loss / top)


def _path(losses: Sequence[float], top: float) -> str:
    """Line by line; a loss that is no number breaks the line."""
    parts: list[str] = []
    draw = "M"
    for step, loss in enumerate(losses):
        if not math.isfinite(loss):
            draw = "M"
            continue
        parts.append(f"{draw} {_x(step, len(losses)):.1f} {_y(loss, top):.1f}")
        draw = "L"
    return " ".join(parts)


def _grid(top: float, steps: int) -> Iterable[str]:
    for part in range(5):
        loss = top * part / 4
        y = _y(loss, top)
        ends = f'x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"'
        yield f'<line class="grid" stroke="#ccc" {ends}/>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{loss:.3g}</text>'
    for part in range(5):
        step = round((steps - 1) * part / 4)
        x = _x(step, steps)
        yield f'<text x="{x:.1f}" y="{_HEIGHT - 28}" text-anchor="middle">{step + 1}</text>'
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    yield f'<text x="{middle:.0f}" y="{_HEIGHT - 8}" text-anchor="middle">step</text>'
