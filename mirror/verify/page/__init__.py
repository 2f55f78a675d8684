"""The report as one page: no network, no scripts, light and dark, fit for paper."""

from __future__ import annotations

from mirror.core.text import counted, human_size, human_time
from mirror.verify.page import bandwidth, links, losses
from mirror.verify.page.markup import badge, table, text
from mirror.verify.page.style import CSS
from mirror.verify.report import Check, Report, Stage, Training

#: Should anything ever get into the page: a browser runs and loads nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
#: Lines of evidence that are shown at once.
_FOLDED = 24


def html(report: Report) -> str:
    """The whole page."""
    return "".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n',
            f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n',
            '<meta name="viewport" content="width=device-width,initial-scale=1">\n',
            f"<title>{text(_title(report))}</title>\n<style>{CSS}</style>\n</head>\n",
            '<body>\n<main>\n<div class="brand">mirror verify</div>\n',
            f"<h1>{badge(report.verdict)} {text(report.headline)}</h1>\n",
            _facts(report),
            '<h2>Stages</h2>\n<div class="card">\n',
            *[_stage(stage) for stage in report.stages],
            "</div>\n",
            losses.figure(report),
            bandwidth.figures(report),
            links.figures(report),
            _ranks("One process", report.single),
            _ranks("Many processes", report.multi),
            _further(report),
            f"<footer>{text(report.started)}, {human_time(report.seconds)}.\n",
            "The same for machines: report.json beside this page.</footer>\n",
            "</main>\n</body>\n</html>\n",
        ]
    )


def _title(report: Report) -> str:
    return f"{report.verdict}: {report.facts.get('bundle', '')} on {report.facts.get('host', '')}"


def _facts(report: Report) -> str:
    rows = [f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in report.facts.items()]
    return f'<dl class="card facts">{"".join(rows)}</dl>\n'


def _stage(stage: Stage) -> str:
    opened = " open" if stage.verdict in ("warn", "fail") else ""
    return (
        f"<details{opened}><summary><b>{text(stage.name)}</b>{badge(stage.verdict)}"
        f'<span class="sum">{text(stage.summary)}</span>'
        f'<span class="time">{human_time(stage.seconds)}</span></summary>\n'
        f'<div class="scroll"><table class="checks"><tbody>'
        f"{''.join(map(_check, stage.checks))}</tbody></table></div></details>\n"
    )


def _check(check: Check) -> str:
    first, _, more = check.evidence.partition("\n")
    # What to do comes before logs, of which there may be much. They, and a tool's tables, have
    # their characters under each other.
    lines = [f'<span class="advice">{text(line)}</span>' for line in check.advice.splitlines()]
    below = f'<span class="more">{text(more)}</span>' if more else ""
    if (count := more.count("\n") + 1) > _FOLDED:
        below = f"<details><summary>{counted(count, 'more line')}</summary>{below}</details>"
    return (
        f"<tr><td>{badge(check.verdict)}</td><td>{text(check.name)}</td>"
        f'<td class="evidence">{text(first)}{"".join(lines)}{below}</td></tr>'
    )


def _ranks(title: str, training: Training | None) -> str:
    if training is None:
        return ""
    first = training.ranks[0]
    heads = ("rank", "of", "backend", "device", "GPU", "peak memory", "process")
    rows = [
        (
            str(rank.rank),
            str(rank.world_size),
            text(rank.backend or "none"),
            text(rank.device),
            f"{text(rank.gpu)} <code>{text(rank.gpu_uuid)}</code>",
            human_size(rank.peak_memory),
            str(rank.pid),
        )
        for rank in training.ranks
    ]
    said = (
        f"{first.steps} steps of {first.batch} samples, precision {first.precision},"
        f" {first.tokens_per_second:,.0f} tokens/s, {human_time(training.seconds)} in all"
    )
    return (
        f"<h2>{text(title)}</h2>\n<p>{text(said)}</p>\n"
        f'<div class="card">{table("ranks", heads, rows, (0, 1, 5, 6))}</div>\n'
    )


def _further(report: Report) -> str:
    if not report.further:
        return ""
    heads = ("run", "ranks", "steps", "loss", "from one process", "tokens/s", "peak memory", "time")
    rows = [
        (
            text(name),
            str(len(training.ranks)),
            str(training.ranks[0].steps),
            f"{training.losses[0]:.3f} to {training.losses[-1]:.3f}",
            f"{training.largest_difference(report.single):.1e}" if report.single else "",
            f"{training.ranks[0].tokens_per_second:,.0f}",
            human_size(max(rank.peak_memory for rank in training.ranks)),
            human_time(training.seconds),
        )
        for name, training in report.further
    ]
    found = table("top", heads, rows, range(1, len(heads)))
    return f'<h2>Further runs</h2>\n<div class="card">{found}</div>\n'
