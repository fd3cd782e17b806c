"""The marks by which the states of trials are told apart, by their shapes."""

from __future__ import annotations

from collections.abc import Iterable

from cloudtrain.pages import document as page
from cloudtrain.pages.svg import element, plain, tooltip

MARKS = {
    "completed": ("circle", "trained to its end"),
    "pruned": ("triangle", "ended at a rung, behind the others"),
    "paused": ("square", "ended at a rung, not promoted so far"),
    "running": ("ring", "goes on"),
    "waiting": ("ring", "goes on"),
    "stopped": ("diamond", "ended by somebody"),
    "failed": ("cross", "ended with an error"),
    "too_large": ("cross", "does not fit"),
}
"""For each state of a trial its shape, and what it means: shapes, because not everybody sees
colours.
"""

_PATHS = {
    "circle": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z",
    "ring": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z",
    "triangle": "M-4.5 -3.5L4.5 -3.5L0 4.5Z",
    "square": "M-3.5 -3.5L3.5 -3.5L3.5 3.5L-3.5 3.5Z",
    "diamond": "M0 -5L5 0L0 5L-5 0Z",
    "cross": "M-4 -4L4 4M-4 4L4 -4",
}


def mark(state: str, x: float, y: float, *, best: bool = False, title: str = "") -> str:
    """The mark of a trial in that state."""
    shape = MARKS[state][0]
    place = f"translate({plain(x)} {plain(y)})" + (" scale(1.5)" if best else "")
    kind = f"mark {shape}" + (" best" if best else "")
    return element("path", *tooltip(title), d=_PATHS[shape], transform=place, class_=kind)


def legend(states: Iterable[str]) -> str:
    """What the marks of these states mean, as HTML."""
    meanings = {MARKS[state]: "running" if state == "waiting" else state for state in states}
    ordered = [shape for shape in dict.fromkeys(MARKS.values()) if shape in meanings]
    return page.legend(
        (mark(meanings[shape], 8, 8), f"{meanings[shape]}: {shape[1]}") for shape in ordered
    )
