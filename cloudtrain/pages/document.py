"""A page of HTML without scripts: its head, a chart with its title, tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cloudtrain.pages.style import STYLE
from cloudtrain.pages.svg import element, words


def document(title: str, *body: str) -> str:
    """One HTML document that needs nothing from elsewhere. `body`: markup."""
    head = [
        '<meta charset="utf-8"/>',
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
        '<meta name="color-scheme" content="light dark"/>',
        element("title", words(title)),
        element("style", STYLE),
    ]
    html = element("html", element("head", *head), "\n", element("body", *body), lang="en")
    return f"<!DOCTYPE html>\n{html}\n"


def chart(title: str, about: str, drawing: str) -> str:
    """Return a drawing with its title and a sentence."""
    box = element("div", drawing, class_="drawing")
    return "\n" + element(
        "section",
        element("h2", words(title)),
        element("p", words(about), class_="note"),
        box,
    )


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, wraps: bool = False) -> str:
    """Rows of plain words; wider than the page it can be moved sideways. No header where all its
    words are empty.

    `wraps`: long texts go on in the next line instead. Columns without any value are left out.
    """
    rows = [list(row) for row in rows]
    filled = [at for at, _ in enumerate(header) if any(row[at] for row in rows)]
    header = [header[at] for at in filled]
    rows = [[row[at] for at in filled] for row in rows]
    lines = (
        [element("tr", *(element("th", words(each) or " ") for each in header))]
        if any(header)
        else []
    )
    lines += [
        "\n" + element("tr", *(element("td", words(each) or " ") for each in row)) for row in rows
    ]
    return (
        element("div", element("table", *lines, class_="wraps" if wraps else ""), class_="drawing")
        if lines
        else ""
    )


def folded(summary: str, *content: str) -> str:
    """Markup that a click unfolds."""
    return element("details", element("summary", words(summary)), *content)


def legend(samples: Iterable[tuple[str, str]]) -> str:
    """What marks and colours mean: for each a drawing in a square of 16 pixels, and the words
    beside it.
    """
    square: dict[str, object] = {
        "viewBox": "0 0 16 16",
        "width": 16,
        "height": 16,
        "aria_hidden": "true",
    }
    items = [
        element("li", element("svg", drawing, **square), words(f" {what}"))
        for drawing, what in samples
    ]
    return element("ul", "", *items, class_="legend")
