"""Elements of HTML and SVG as text, with every value escaped."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape, quoteattr

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
    return element("text", words(content), x=x, y=y, text_anchor=anchor, class_=class_, **pressed)


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
