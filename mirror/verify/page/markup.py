"""Text and tables of the page. Everything from outside goes through `text`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from mirror.core.paths import shown


def text(value: str) -> str:
    """`value` as it may stand in markup and in attributes: no markup, and nothing that hides.

    Control characters and those that turn the direction of writing are shown as escapes; line
    breaks stay.
    """
    return escape("\n".join(shown(line) for line in value.expandtabs(4).split("\n")))


def badge(verdict: str, words: str = "") -> str:
    """A verdict in its colour."""
    return f'<span class="verdict {verdict}">{text(words or verdict)}</span>'


def table(
    name: str, heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Iterable[int] = ()
) -> str:
    """heads: as text. rows: cells as markup. numbers: the columns that are flush right."""
    flush = set(numbers)

    def cell(tag: str, column: int, inner: str) -> str:
        kind = ' class="number"' if column in flush else ""
        scope = ' scope="col"' if tag == "th" else ""
        return f"<{tag}{scope}{kind}>{inner}</{tag}>"

    head = "".join(cell("th", n, text(word)) for n, word in enumerate(heads))
    body = "".join(
        f"<tr>{''.join(cell('td', n, inner) for n, inner in enumerate(row))}</tr>" for row in rows
    )
    return (
        f'<div class="scroll"><table class="{name}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def figure(inner: str, caption: str, more: str = "", kind: str = "") -> str:
    """A card. more: what stands below the caption, such as `data`."""
    shape = f' class="{kind}"' if kind else ""
    said = f"<figcaption>{caption}</figcaption>" if caption else ""
    return f'<div class="card"><figure{shape}>{inner}{said}</figure>{more}</div>\n'


def data(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A drawing's numbers, to be unfolded. heads: as text. rows: cells as markup."""
    found = table("top", heads, rows, range(len(heads)))
    return f'<details class="data"><summary>The numbers</summary>{found}</details>'
