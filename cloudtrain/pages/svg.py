"""A page of HTML without scripts: elements with every value escaped, tables, and axes of charts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape, quoteattr

from cloudtrain.units import format_number

Point = tuple[float, float]

CHARACTER = 8.0
"""Width of a digit in a chart on a phone, where letters are larger."""
GLYPHS = "spacingAndGlyphs"


def readable(text: object) -> str:
    """Return the text without characters that XML or HTML forbid."""
    return "".join(
        sign
        for sign in str(text)
        if sign in "\t\n" or (sign >= " " and not "\ud800" <= sign <= "\udfff")
    )


def element(name: str, *children: str, **attributes: object) -> str:
    """Return one element.

    Children are markup; `class_` is the attribute class, and `_` in names becomes `-`.
    """
    shown = "".join(
        f" {key.rstrip('_').replace('_', '-')}={quoteattr(readable(plain(value)))}"
        for key, value in attributes.items()
        if value is not None and value != ""
    )

    return f"<{name}{shown}>{''.join(children)}</{name}>" if children else f"<{name}{shown}/>"


def words(text: object) -> str:
    """Escape text as markup."""
    return escape(readable(text))


def text(
    content: object,
    x: float,
    y: float,
    *,
    anchor: str = "",
    class_: str = "",
    room: float | None = None,
) -> str:
    """Draw text at a position.

    `anchor`: put its middle or end there, not its beginning. `room`: compress it to this width.
    """
    pressed: dict[str, object] = (
        {}
        if room is None or text_width(content) <= room
        else {"textLength": room, "lengthAdjust": GLYPHS}
    )

    return element(
        "text",
        words(content),
        x=x,
        y=y,
        text_anchor=anchor,
        class_=class_,
        **pressed,
    )


def text_width(content: object) -> float:
    """Estimate the maximum width of a text in a chart, with the usual fonts."""
    return CHARACTER * len(str(content))


def shortened(shown: str, most: int) -> str:
    """Return the text, cut to this many characters with an ellipsis at its end."""
    return shown if len(shown) <= most else shown[: most - 1] + "…"


def line(points: Sequence[Point], class_: str, title: str = "") -> str:
    """Draw a line through these points; nothing for fewer than two."""
    if len(points) < 2:
        return ""
    path = "M" + "L".join(f"{plain(x)} {plain(y)}" for x, y in points)
    return element("path", *tooltip(title), d=path, class_=class_)


def steps(points: Sequence[Point], end: float) -> Sequence[Point]:
    """Return the corners of a step line, which ends at x = `end`."""
    corners: list[Point] = []
    for x, y in points:
        if corners:
            corners.append((x, corners[-1][1]))
        corners.append((x, y))

    return [*corners, (end, corners[-1][1])] if corners else []


def picture(width: float, height: float, label: str, *parts: str) -> str:
    """Return a drawing that fills the width of the page."""
    size = f"0 0 {width:.0f} {height:.0f}"
    return element(
        "svg",
        "\n".join(filter(None, parts)),
        viewBox=size,
        role="img",
        aria_label=label,
        class_="fits",
    )


def tooltip(title: str) -> Sequence[str]:
    """Return the tooltip of an element; nothing for an empty title."""
    return (element("title", words(title)),) if title else ()


def plain(value: object) -> object:
    """Round a number to one digit, as attributes have it; return other values unchanged."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else value


WIDTH = 440.0
HEIGHT = 284.0
LEFT = 66.0
RIGHT = 428.0
TOP = 40.0
BOTTOM = 240.0
MAX_POINTS = 300
"""Maximum points drawn of one curve."""
FLATTENED = 10
"""Leave outliers outside if they flatten the other values to less than 1/10 of the chart."""
MAX_NAME = 48
"""Maximum characters of the name of an axis."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Numbers from `low` to `high`, drawn from `start` to `end` (pixels).

    A value outside is drawn at the edge.
    """

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        """Return the position of a value."""
        # Halves: 1e308 and -1e308 lie too far apart.
        span = self.high / 2 - self.low / 2
        part = (value / 2 - self.low / 2) / span if span > 0 else 0.5
        return self.start + (self.end - self.start) * min(max(part, 0.0), 1.0)

    def ticks(self) -> Sequence[float]:
        """Return three to eight round numbers."""
        span = self.high - self.low
        if not 1e-300 < span < 1e300:
            return [self.low] if self.low == self.high else [self.low, self.high]

        unit = 10.0 ** math.floor(math.log10(span / 5))
        step = next(unit * factor for factor in (1, 2, 5, 10) if span / (unit * factor) <= 6)
        first = math.ceil(self.low / step - 1e-9)

        return [
            number * step
            for number in range(first, first + 12)
            if number * step <= self.high + step * 1e-9
        ]


def y_scale(*curves: Iterable[float], ends: Sequence[float] = ()) -> Scale:
    """Return the upward scale for these values, with a small margin.

    Outliers, as after a divergence, stay outside; every curve keeps some of its points. `ends`:
    values that the scale always includes, and starts at if no value is lower.
    """
    reached = list(ends)
    for values in curves:
        finite = [value for value in values if math.isfinite(value)]
        if finite:
            reached += usual_range(finite)

    if not reached[len(ends) :]:
        reached += usual_range([])

    low = min(reached)
    high = max(reached)
    room = (high - low) * 0.05 or abs(low) * 0.05 or 1.0

    return Scale(low if low in ends else low - room, high + room, BOTTOM, TOP)


def x_scale(low: float, high: float) -> Scale:
    """Return the scale to the right."""
    return Scale(low, high if high > low else low + 1, LEFT + 8, RIGHT - 8)


def usual_range(values: Iterable[float]) -> tuple[float, float]:
    """Return the lowest and the highest value, without outliers that flatten the others.

    An outlier lies five times the width of the middle half away from it.
    """
    ordered = sorted(value for value in values if math.isfinite(value))
    if not ordered:
        return 0.0, 1.0

    quarter = ordered[len(ordered) // 4]
    three = ordered[(3 * len(ordered)) // 4]
    reach = 5 * (three - quarter) or math.inf
    low = max(ordered[0], quarter - reach)
    high = min(ordered[-1], three + reach)

    if ordered[-1] / FLATTENED - ordered[0] / FLATTENED > high - low:
        return low, high

    return ordered[0], ordered[-1]


def pieces(points: Sequence[Point]) -> Sequence[Sequence[Point]]:
    """Split a curve where values are not finite, and thin it out.

    Of points in one place keep the lowest and the highest, so that no peak is lost.
    """
    every = 1 if len(points) <= MAX_POINTS else math.ceil(2 * len(points) / MAX_POINTS)
    parts: list[list[Point]] = [[]]
    for begin in range(0, len(points), every):
        finite = [point for point in points[begin : begin + every] if math.isfinite(point[1])]
        if not finite:
            parts.append([])
        elif len(finite) == 1:
            parts[-1] += finite
        else:
            ends = {
                finite.index(choose(finite, key=lambda point: point[1])) for choose in (min, max)
            }
            parts[-1] += [finite[number] for number in sorted(ends)]

    return [piece for piece in parts if piece]


def frame(
    x: Scale, y: Scale, x_name: str, y_name: str, x_ticks: Sequence[float] | None = None
) -> str:
    """Draw axes with ticks and names, and grid lines at the ticks of y."""
    parts = [line([(LEFT, y.at(tick)), (RIGHT, y.at(tick))], "grid") for tick in y.ticks()]
    labels = labels_of(y.ticks())
    parts += [
        text(label, LEFT - 6, y.at(tick) + 4, anchor="end", room=LEFT - 8)
        for tick, label in zip(y.ticks(), labels, strict=True)
    ]
    across = x.ticks() if x_ticks is None else x_ticks

    for tick, label in zip(across, labels_of(across), strict=True):
        parts += [
            line([(x.at(tick), BOTTOM), (x.at(tick), BOTTOM + 4)], "axis"),
            text(label, x.at(tick), BOTTOM + 17, anchor="middle"),
        ]

    parts += [
        line([(LEFT, BOTTOM), (RIGHT, BOTTOM)], "axis"),
        text(x_name, (LEFT + RIGHT) / 2, HEIGHT - 8, anchor="middle", class_="name"),
        text(shortened(y_name, MAX_NAME), 4, 14, class_="name"),
    ]

    return "\n".join(parts)


def labels_of(ticks: Sequence[float]) -> Sequence[str]:
    """Format ticks with enough digits that no two labels are equal."""
    labels = [format_number(0.0 if abs(tick) < 1e-300 else tick) for tick in ticks]
    digits = 7
    while len(set(labels)) < len({*ticks}) and digits <= 17:
        labels = [f"{tick:.{digits}g}" for tick in ticks]
        digits += 5

    return labels


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
