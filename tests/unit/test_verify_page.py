"""The report's page, as text: what stands in it, and that nothing from outside is markup."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from mirror.verify import host, page
from mirror.verify.bandwidth import Bandwidth
from mirror.verify.ladder import Measured, Rung
from mirror.verify.page.drawing import Scale, apart
from mirror.verify.report import Check, Report, Stage, Training
from tests import reports
from tests.reports import group

#: Elements that need no end.
_VOID = {"meta", "br", "img", "input", "link", "hr"}


class Read(HTMLParser):
    """Elements with their attributes, and the text; raises where they are not nested rightly."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.said: list[str] = []
        self._open: list[str] = []
        self.feed(markup)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said.append(data)

    @property
    def text(self) -> str:
        return "".join(self.said)


def read(found: Report) -> Read:
    return Read(page.html(found))


@pytest.mark.parametrize("name", reports.EVERY)
def test_a_page_is_whole_and_asks_for_nothing(name: str) -> None:
    found = read(reports.EVERY[name]())
    asking = {"src", "href", "srcset", "action", "data", "poster", "xlink:href"}
    for tag, attributes in found.elements:
        assert tag not in {"script", "iframe", "object", "embed", "link", "img", "form"}
        assert not asking & set(attributes)
        assert not any(key.startswith("on") for key in attributes)
    html = page.html(reports.EVERY[name]())
    assert "url(" not in html
    assert "@import" not in html
    assert "://" not in html


@pytest.mark.parametrize("name", reports.EVERY)
def test_every_drawing_says_what_it_shows(name: str) -> None:
    html = page.html(reports.EVERY[name]())
    ids = re.findall(r' id="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    for tag, attributes in Read(html).elements:
        if tag == "svg" and attributes.get("aria-hidden") != "true":
            assert attributes["role"] == "img"
            assert set(str(attributes["aria-labelledby"]).split()) <= set(ids)


HOSTILE = "<script>alert(1)</script>\"onload='x' &amp;\x1b[31m\u202egnp\u2066\x00\x9b"


def hostile_report() -> Report:
    """All that comes from outside is hostile."""
    stage = Stage(HOSTILE, (Check(HOSTILE, "fail", f"{HOSTILE}\n{HOSTILE}", HOSTILE),), 1.0)
    names = dict.fromkeys(("gpu", "gpu_uuid", "device", "backend", "host", "precision"), HOSTILE)
    row = {"name": HOSTILE, "bytes": 8, "right": True, "seconds": 1.0, "bus_bandwidth": 1e9}
    hostile: Any = names | {"collectives": (row,)}
    ranks = Training(tuple(replace(r, **hostile) for r in group().ranks), 4.0)
    rung = Measured(Rung(("p2p-off",)), "failed", Bandwidth(), HOSTILE, (HOSTILE,), 1.0)
    right = Measured(
        Rung(), "right", Bandwidth({"all_reduce": {8: 1e9}}, {(0, 1): 1e9}), HOSTILE, (), 1.0
    )
    pairs = {(0, 1): HOSTILE, (1, 0): HOSTILE}
    return Report(
        stages=(stage,),
        single=ranks,
        multi=ranks,
        asked=None,
        facts={"bundle": HOSTILE, "host": HOSTILE, HOSTILE: HOSTILE},
        started=HOSTILE,
        seconds=1.0,
        folder=Path("/r"),
        rungs=(right, rung),
        topology=host.Topology((0, 1), pairs, pairs, {}),
        further=((HOSTILE, ranks),),
    )


def test_nothing_from_outside_becomes_markup_or_hides() -> None:
    found = read(hostile_report())
    assert "script" not in {tag for tag, _ in found.elements}
    assert not any("onload" in attributes for _, attributes in found.elements)
    # As text it is all there, and what would move a cursor or turn the writing is spelt out.
    assert found.text.count("<script>alert(1)</script>\"onload='x' &amp;\\x1b[31m\\u202egnp") > 15
    for line in page.html(hostile_report()).split("\n"):
        assert line.isprintable()


def test_a_rung_that_failed_says_why_in_no_markup() -> None:
    rung = Measured(Rung(("p2p-off",)), "failed", Bandwidth(), "", (f"{HOSTILE}\nmore",), 1.0)
    found = read(replace(reports.four_5090(), rungs=(rung,)))
    assert "script" not in {tag for tag, _ in found.elements}
    assert "<script>alert(1)" in found.text
    bare = replace(rung, problems=("",))
    assert "NCCL_P2P_DISABLE=1" in read(replace(reports.four_5090(), rungs=(bare,))).text


def test_the_curves_end_at_their_names_and_have_their_numbers_in_a_table() -> None:
    html = page.html(reports.two_h200())
    assert html.count("<polyline") == 4
    assert html.count("<path") == 2
    found = read(reports.two_h200()).text
    for name in ("all_reduce", "all_gather", "reduce_scatter", "broadcast"):
        assert found.count(name) >= 2
    assert "a link promises 478 GB/s" in found
    assert "286 GB/s" in found


def test_every_rung_has_its_bar_and_its_price() -> None:
    html = page.html(reports.eight_h200())
    bars = [float(width) for width in re.findall(r'class="bar"[^>]* width="([\d.]+)"', html)]
    assert len(bars) == 5
    assert bars[1] == 100.0
    assert bars[2] == pytest.approx(100 * 26.7 / 362, abs=0.3)
    assert html.count("right and fastest</span>") == 1
    assert "-93 %" in html
    assert read(reports.four_5090()).text.count("hung") >= 1


def test_the_links_are_drawn_by_kind_and_by_whether_they_join_peers() -> None:
    html = page.html(reports.eight_h200())
    assert html.count('class="link nv"') == 28
    html = page.html(reports.four_5090())
    assert html.count('class="link node apart"') == 6
    assert "no peers (GNS)" in html
    mixed = page.html(reports.failing())
    assert mixed.count('class="link pix"') == 2
    assert mixed.count('class="link sys"') == 4
    assert "Between the ranks" in page.html(reports.cpu_only())
    assert "Between the" not in page.html(replace(reports.cpu_only(), multi=None))


def test_a_pair_far_below_its_links_promise_is_framed() -> None:
    found = reports.two_h200()
    assert 'class="low"' not in page.html(found)
    assert found.multi
    slow = tuple(
        replace(
            rank,
            collectives=tuple(
                row | {"bus_bandwidth": 2e9} if row["pair"] == [0, 1] else row
                for row in map(dict, rank.collectives)
            ),
        )
        for rank in found.multi.ranks
    )
    html = page.html(replace(found, multi=Training(slow, 1.0)))
    assert html.count('class="low"') == 1
    assert "Framed: less than 30% of what the link promises." in html


def test_long_evidence_is_folded_and_what_to_do_stands_before_it() -> None:
    html = page.html(reports.failing())
    assert "61 more lines" in html
    assert html.index("--shm-size=8g") < html.index("in all_reduce")


def test_losses_that_are_no_numbers_break_the_curve() -> None:
    nan, inf = float("nan"), float("inf")
    spoilt = replace(reports.cpu_only(), multi=group(losses=(6.0, nan, inf, 1.0)))
    paths = re.findall(r'<path class="many"[^>]* d="([^"]*)"', page.html(spoilt))
    assert len(paths) == 1
    assert paths[0].count("M") == 2
    nothing = group(losses=(nan, nan))
    assert "<path" in page.html(replace(reports.cpu_only(), single=nothing, multi=nothing))


def test_bandwidths_that_are_no_numbers_are_left_out() -> None:
    row = {"name": "all_reduce", "bytes": 8, "right": True, "seconds": 1.0, "pair": None}
    rows = tuple(
        row | {"bytes": 8**n, "bus_bandwidth": v} for n, v in ((1, 1e9), (2, float("inf")))
    )
    html = page.html(replace(reports.cpu_only(), multi=group(collectives=rows)))
    assert not re.search(r'="[^"]*\b(inf|nan)\b', html)
    assert html.count("<polyline") == 1


def test_names_at_the_curves_ends_do_not_lie_on_each_other() -> None:
    assert apart([50.0, 51.0, 10.0], 17, 0, 300) == [50.0, 67.0, 10.0]
    assert apart([299.0, 298.0], 17, 0, 300) == [300, 283.0]
    assert apart([], 17, 0, 300) == []


def test_a_scale_of_one_value_has_it_in_the_middle() -> None:
    assert Scale(8, 8, 0, 100, logarithmic=True)(8) == 50
    assert Scale(1, 10_000, 0, 100, logarithmic=True)(100) == pytest.approx(50)
