"""The report's page in a real browser: nothing runs, nothing is cut, nothing lies on another."""

from __future__ import annotations

import re
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from mirror.verify import page
from mirror.verify.report import Check, Report, Stage
from tests import browser, reports

pytestmark = pytest.mark.skipif(
    browser.PROGRAM is None, reason="chromium is not installed: apt-get install chromium"
)

ATTACKS = (
    "<script>parent.hacked = 1</script>",
    "<img src=x onerror='parent.hacked = 1'>",
    "\"><svg onload='parent.hacked = 1'>",
    "' onload='parent.hacked = 1",
    "</title><script>parent.hacked = 1</script>",
    "</style></svg></desc><script>parent.hacked = 1</script>",
)


def without_policy(html: str) -> str:
    """Escaping alone has to do."""
    found, count = re.subn(r'<meta http-equiv="Content-Security-Policy"[^>]*>\n', "", html)
    assert count == 1
    return found


def attacked() -> Report:
    """Attacks wherever text comes from outside."""
    text = "\n".join(ATTACKS)
    found = reports.four_5090()
    assert found.topology
    rungs = [replace(r, transports=text, problems=(text,) * len(r.problems)) for r in found.rungs]
    stage = Stage(text, (Check(text, "fail", text, text), *(Check(a, "fail", a) for a in ATTACKS)))
    return replace(
        found,
        facts={"bundle": text, "host": text, **dict.fromkeys(ATTACKS, text)},
        stages=(stage, *found.stages),
        rungs=tuple(rungs),
        topology=replace(found.topology, links=dict.fromkeys(found.topology.links, text)),
        further=tuple((attack, reports.group(2, gpu=True)) for attack in ATTACKS),
    )


def test_the_browser_would_notice_a_script_that_runs() -> None:
    bare = "<!doctype html><title>x</title><body>"
    assert browser.measure(bare + ATTACKS[0])["hacked"]
    assert browser.measure(bare + ATTACKS[1])["hacked"]
    assert not browser.measure(bare)["hacked"]


def test_no_name_from_outside_runs_or_becomes_an_element() -> None:
    found = browser.measure(without_policy(page.html(attacked())))
    assert not found["hacked"]
    assert found["scripts"] == found["handlers"] == found["loaded"] == 0
    assert found["title"].startswith("fail: <script>parent.hacked = 1</script> <img src=x")
    for attack in ATTACKS:
        assert found["text"].count(attack) > 5


@pytest.mark.parametrize("name", reports.EVERY)
def test_every_text_is_in_its_drawing_and_on_no_other(name: str) -> None:
    found = browser.measure(page.html(reports.EVERY[name]()))
    assert found["drawings"] >= 2
    assert (found["out"], found["over"]) == ([], [])
    assert found["loaded"] == found["scripts"] == 0
    assert found["width"] <= 1000


@pytest.mark.parametrize(
    ("name", "width"), [*((name, 320) for name in reports.EVERY), ("eight-h200", 700)]
)
def test_a_narrow_window_is_never_scrolled_sideways(name: str, width: int) -> None:
    found = browser.measure(page.html(reports.EVERY[name]()), width)
    assert found["width"] <= width
    assert (found["out"], found["over"]) == ([], [])


def test_light_and_dark_are_those_of_the_reader() -> None:
    html = page.html(reports.two_h200())
    assert browser.measure(html)["background"] == "rgb(251, 251, 250)"
    assert browser.measure(html, dark=True)["background"] == "rgb(20, 23, 26)"


def as_on_paper(html: str) -> str:
    """The rules for paper apply on the screen; those for screens do not."""
    return html.replace("@media print", "@media all").replace(
        "@media screen and", "@media print and"
    )


@pytest.mark.parametrize("name", ["eight-h200", "failing"])
def test_paper_is_white_and_has_all_the_evidence(name: str) -> None:
    html = page.html(reports.EVERY[name]())
    on_screen = browser.measure(html, 720, dark=True)
    assert not all(on_screen["evidence"])
    on_paper = browser.measure(as_on_paper(html), 720, dark=True)
    assert all(on_paper["evidence"])
    assert on_paper["background"] == "rgb(255, 255, 255)"
    if name == "failing":
        assert "No space left on device" in on_paper["text"]


def test_it_is_printed_on_a_few_pages(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page.html(reports.two_h200()), encoding="utf-8")
    browser.printed(file, tmp_path / "report.pdf")
    pages = re.findall(rb"/Type\s*/Page\b", (tmp_path / "report.pdf").read_bytes())
    assert 2 <= len(pages) <= 6


def test_a_screenshot_shows_the_page(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    file.write_text(page.html(reports.two_h200()), encoding="utf-8")
    for dark, corner in ((False, (251, 251, 250)), (True, (20, 23, 26))):
        browser.screenshot(file, tmp_path / "report.png", 800, 600, dark=dark)
        assert first_pixel((tmp_path / "report.png").read_bytes()) == corner


def test_the_picture_in_the_docs_is_of_the_size_that_a_page_may_have() -> None:
    picture = Path(__file__).resolve().parents[2] / "docs" / "images" / "report.png"
    data = picture.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) < 300_000


def first_pixel(png: bytes) -> tuple[int, ...]:
    """Its colour: whatever the first row's filter, before the first pixel there is nothing."""
    parts, at = [], 8
    while at < len(png):
        size = int.from_bytes(png[at : at + 4], "big")
        if png[at + 4 : at + 8] == b"IDAT":
            parts.append(png[at + 8 : at + 8 + size])
        at += 12 + size
    return tuple(zlib.decompress(b"".join(parts))[1:4])
