"""An HTML page without scripts: its head, a chart with its title, tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cloudtrain.pages.svg import element, words


def document(title: str, *body: str) -> str:
    """Return a standalone HTML document. `body`: markup."""
    head = [
        '<meta charset="utf-8"/>',
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
        '<meta name="color-scheme" content="light dark"/>',
        element("title", words(title)),
        element("style", STYLE),
    ]
    html = element("html", element("head", *head), "\n", element("body", *body), lang="en")
    return f"<!DOCTYPE html>\n{html}\n"


def chart(title: str, note: str, drawing: str) -> str:
    """Return a drawing with its title and a sentence."""
    box = element("div", drawing, class_="drawing")
    return "\n" + element(
        "section",
        element("h2", words(title)),
        element("p", words(note), class_="note"),
        box,
    )


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, wraps: bool = False) -> str:
    """Return a table of plain text; columns without any value are left out.

    It scrolls if it is wider than the page; with `wraps` long texts are wrapped instead. A header
    whose words are all empty is left out.
    """
    rows = [list(row) for row in rows]
    filled = [at for at, _ in enumerate(header) if any(row[at] for row in rows)]
    header = [header[at] for at in filled]
    rows = [[row[at] for at in filled] for row in rows]
    lines = (
        [element("tr", *(element("th", words(cell) or " ") for cell in header))]
        if any(header)
        else []
    )
    lines += [
        "\n" + element("tr", *(element("td", words(cell) or " ") for cell in row)) for row in rows
    ]
    return (
        element("div", element("table", *lines, class_="wraps" if wraps else ""), class_="drawing")
        if lines
        else ""
    )


def folded(summary: str, *content: str) -> str:
    """Return markup that a click unfolds."""
    return element("details", element("summary", words(summary)), *content)


STYLE = """
:root { --paper: #fff; --ink: #1d2430; --soft: #5d6675; --faint: #dde1e7; --main: #0b63ce; --good: #5b9ae6;
  --other: #8a94a3; --bad: #c5303c; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14181f; --ink: #e8ebf0; --soft: #a2abba; --faint: #2c333e; --main: #6cb2ff; --good: #3f78bd;
    --other: #8b95a4; --bad: #ff7b80; }
}
body { margin: 0 auto; padding: 16px; max-width: 1040px; background: var(--paper); color: var(--ink);
  font: 16px/1.45 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 24px; margin: 0; }
h2 { font-size: 17px; margin: 0; }
.note { color: var(--soft); font-size: 14px; margin: 0 0 6px; }
main { display: grid; margin-top: 24px; gap: 26px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 430px), 1fr)); }
section { min-width: 0; }
.drawing { overflow-x: auto; }
.drawing > svg { display: block; width: 100%; }
.drawing > .fits { max-width: 540px; }
.legend { list-style: none; padding: 0; margin: 8px 0; display: flex; flex-wrap: wrap; gap: 4px 18px; font-size: 14px; }
.legend svg { vertical-align: -3px; }
svg text { fill: var(--soft); font: 12px system-ui, sans-serif; }
svg .name { fill: var(--ink); font-weight: 600; }
@media (max-width: 480px) { svg.fits text { font-size: 13.5px; } th, td { white-space: normal !important; } }
svg path { fill: none; stroke: var(--soft); stroke-width: 1; vector-effect: non-scaling-stroke; }
svg .grid { stroke: var(--faint); }
svg .rung { stroke-dasharray: 4 4; }
svg .so-far { stroke: var(--main); stroke-width: 2; }
svg .curve { stroke: var(--other); stroke-opacity: 0.6; }
svg .curve.best { stroke: var(--main); stroke-width: 3; stroke-opacity: 1; }
svg .curve { stroke-linecap: round; }
svg .curve.alone { stroke-width: 8; }
svg .mark { fill: var(--good); stroke: var(--paper); }
svg .circle { fill: var(--main); }
svg .ring, svg .cross { fill: none; stroke: var(--main); stroke-width: 2; }
svg .cross, svg .diamond { stroke: var(--bad); }
svg .diamond, svg .square { fill: var(--paper); stroke-width: 1.8; }
svg .square { stroke: var(--main); }
svg .triangle { fill: var(--other); }
svg .mark.best { stroke: var(--ink); stroke-width: 2; }
svg .bar { stroke: var(--main); stroke-width: 8; }
svg .bar-room { stroke: var(--faint); stroke-width: 8; }
table { border-collapse: collapse; font-size: 14px; }
th, td { text-align: left; padding: 3px 12px 3px 0; border-bottom: 1px solid var(--faint); white-space: nowrap; }
.wraps td:last-child { white-space: normal; }
.wraps td { vertical-align: top; }
.failure pre { max-height: 420px; overflow: auto; }
.failure { border-left: 4px solid var(--bad); padding: 2px 0 2px 12px; margin: 14px 0; }
.verdict { border-left: 4px solid var(--main); padding: 2px 0 2px 12px; margin: 14px 0; }
pre { font-size: 13px; overflow-x: auto; }
details { margin-top: 22px; }
summary { cursor: pointer; }
"""
"""Style of every page: light and dark, for screens and phones, with system fonts."""
