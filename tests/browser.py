"""A real browser, without a window: Debian's chromium, or what CHROMIUM names.

`python -m tests.browser` makes the picture in the docs anew.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

PROGRAM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
#: It looks nothing up, and asks nobody for updates.
_QUIET = (
    "--headless",
    "--no-sandbox",  # root has none, and the pages are our own
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
#: What is measured of a page in a frame. A text counts as out of its drawing from one pixel on.
_MEASURE = """
const frame = document.querySelector('iframe');
frame.addEventListener('load', () => {
  const page = frame.contentDocument, out = [], over = [];
  for (const svg of page.querySelectorAll('svg[role]')) {
    const box = svg.getBoundingClientRect();
    const texts = [...svg.querySelectorAll('text')].map(
      t => [t.textContent, t.getBoundingClientRect()]);
    for (const [words, r] of texts)
      if (r.left < box.left - 1 || r.right > box.right + 1 || r.top < box.top - 1 ||
          r.bottom > box.bottom + 1) out.push(words);
    texts.forEach(([a, r], n) => texts.slice(n + 1).forEach(([b, s]) => {
      if (r.left < s.right - 1 && s.left < r.right - 1 && r.top < s.bottom - 2 &&
          s.top < r.bottom - 2) over.push([a, b]);
    }));
  }
  const seen = e => e.getBoundingClientRect().height > 0 &&
    e.checkVisibility({contentVisibilityAuto: true, visibilityProperty: true});
  const colour = e => getComputedStyle(e).backgroundColor;
  document.querySelector('pre').textContent = JSON.stringify({
    title: page.title,
    width: page.documentElement.scrollWidth,
    height: page.documentElement.scrollHeight,
    drawings: page.querySelectorAll('svg[role]').length,
    scripts: page.querySelectorAll('script').length,
    handlers: [...page.querySelectorAll('*')].filter(
      e => [...e.attributes].some(a => a.name.startsWith('on'))).length,
    loaded: frame.contentWindow.performance.getEntriesByType('resource').length,
    hacked: !!window.hacked,
    out, over,
    evidence: [...page.querySelectorAll('td.evidence')].map(seen),
    text: page.body.innerText,
    background: colour(page.body),
  });
});
"""


def measure(page: str, width: int = 1000, *, dark: bool = False) -> dict[str, Any]:
    """What a page looks like in a frame of this width in pixels; its scripts, if any, have run.

    A script in it can set `parent.hacked`.
    """
    frame = f'<iframe style="width:{width}px;height:4000px;border:0" srcdoc="{html.escape(page)}">'
    outer = f"<!doctype html><pre></pre>{frame}</iframe><script>{_MEASURE}</script>"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outer.html"
        file.write_text(outer, encoding="utf-8")
        dom = _run(file, "--dump-dom", "--virtual-time-budget=4000", dark=dark)
    found = re.search(r"<pre>(.*?)</pre>", dom, re.S)
    assert found, dom[-2000:]
    assert found[1], "the page was not loaded"
    table: dict[str, Any] = json.loads(html.unescape(found[1]))
    return table


def screenshot(
    page: Path, to: Path, width: int, height: int, *, scale: float = 1.0, dark: bool = False
) -> None:
    """A picture of a page's upper part; scale: the picture's pixels for one of the page's."""
    size = [f"--window-size={width},{height}", f"--force-device-scale-factor={scale}"]
    _run(page, f"--screenshot={to}", *size, dark=dark)


def printed(page: Path, to: Path) -> None:
    """A PDF of it, as on paper."""
    _run(page, f"--print-to-pdf={to}", "--no-pdf-header-footer")


def _run(page: Path, *options: str, dark: bool = False) -> str:
    """What the browser prints."""
    assert PROGRAM
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as own:
        done = subprocess.run(
            [PROGRAM, *_QUIET, *scheme, *options, f"--user-data-dir={own}", page.as_uri()],
            capture_output=True,
            text=True,
            encoding="utf-8",
            timeout=300,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def main() -> None:
    """docs/images/report.png: the page of a composed machine, whole."""
    from mirror.verify import page
    from tests import reports

    html, width = page.html(reports.four_5090()), 940
    height = measure(html, width)["height"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "report.html"
        file.write_text(html, encoding="utf-8")
        to = Path(__file__).resolve().parents[1] / "docs" / "images" / "report.png"
        to.parent.mkdir(exist_ok=True)
        screenshot(file, to, width, height, scale=0.7)


if __name__ == "__main__":
    main()
