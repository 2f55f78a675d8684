"""What the drawings have in common: a frame that says what it shows, scales, curves, grids."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mirror.verify.page.markup import text


def svg(
    name: str, width: int, height: int, title: str, described: str, parts: Iterable[str]
) -> str:
    """A drawing; name: of its ids in the page. title, described: for those who do not see it.

    One for the page's whole width is 720 wide; a smaller one is hardly enlarged.
    """
    look = 'class="wide"' if width > 400 else f'style="max-width:{1.15 * width:.0f}px"'
    return (
        f'<svg {look} viewBox="0 0 {width} {height}"'
        f' font-size="12" role="img" aria-labelledby="{name}-title {name}-desc">'
        f'<title id="{name}-title">{text(title)}</title>'
        f'<desc id="{name}-desc">{text(described)}</desc>{"".join(parts)}</svg>'
    )


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to places: `low` lies at `begin`, `high` at `end`, in the drawing's units.

    logarithmic: both are more than 0.
    """

    low: float
    high: float
    begin: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """Its place."""
        low, high = self.low, self.high
        if self.logarithmic:
            value, low, high = math.log(value), math.log(low), math.log(high)
        share = (value - low) / (high - low) if high > low else 0.5
        return self.begin + (self.end - self.begin) * share


@dataclass(frozen=True, slots=True)
class Plot:
    """A coordinate system: x to the right, y up."""

    x: Scale
    y: Scale

    def points(self, values: Iterable[tuple[float, float]]) -> list[str]:
        """ "x,y" of each."""
        return [f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in values]

    def broken(self, values: Iterable[tuple[float, float]]) -> str:
        """A path's data, line by line; where y is no number the line breaks."""
        parts: list[str] = []
        draw = "M"
        for x, y in values:
            if not math.isfinite(y):
                draw = "M"
                continue
            parts.append(f"{draw} {self.x(x):.1f} {self.y(y):.1f}")
            draw = "L"
        return " ".join(parts)

    def grid(
        self,
        across: Sequence[float],
        along: Sequence[float],
        across_text: Callable[[float], str],
        along_text: Callable[[float], str],
        title: str,
    ) -> Iterable[str]:
        """Lines at the y values `across`, marks at the x values `along`, both with their texts.

        title: what x is.
        """
        left, right, bottom = self.x.begin, self.x.end, self.y.begin
        for value in across:
            y = self.y(value)
            # The attributes serve readers that leave the style sheet out of drawings.
            ends = f'x1="{left:.0f}" x2="{right:.0f}" y1="{y:.1f}" y2="{y:.1f}"'
            yield f'<line class="grid" stroke="#ccc" {ends}/>'
            words = text(across_text(value))
            yield f'<text x="{left - 8:.0f}" y="{y + 4:.1f}" text-anchor="end">{words}</text>'
        for value in along:
            words = text(along_text(value))
            at = f'x="{self.x(value):.1f}" y="{bottom + 20:.0f}"'
            yield f'<text {at} text-anchor="middle">{words}</text>'
        middle = (left + right) / 2
        at = f'x="{middle:.0f}" y="{bottom + 40:.0f}"'
        yield f'<text {at} text-anchor="middle">{text(title)}</text>'


def apart(places: Sequence[float], least: float, low: float, high: float) -> list[float]:
    """The places, moved so that each two are `least` apart, between low and high if they fit."""
    order = sorted(range(len(places)), key=lambda n: places[n])
    found = list(places)
    floor = low
    for n in order:
        found[n] = floor = max(places[n], floor)
        floor += least
    ceiling = high
    for n in reversed(order):
        found[n] = min(found[n], ceiling)
        ceiling = found[n] - least
    return found
