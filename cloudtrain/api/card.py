"""HTML card of a run for notebooks: state, progress and metrics, without external resources."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

from cloudtrain.runs.forecast import remaining_seconds
from cloudtrain.runs.logs import position_parts
from cloudtrain.runs.state import RunState, explain
from cloudtrain.units import format_duration, format_number

SECONDS_BETWEEN_DRAWINGS = 1.0

COLOURS = {"succeeded": "#2da44e", "failed": "#cf222e", "stopped": "#bf8700", "stopping": "#bf8700"}
RUNNING = "#0969da"


def card(state: RunState, now: float) -> str:
    """Return the card as HTML with escaped texts. `now`: a Unix timestamp."""
    colour = COLOURS.get(state.state, RUNNING)
    title = (
        f'<b>{escape(state.run_id)}</b> <span style="color:{colour}">&#9679;'
        f" {escape(state.state)}</span> {state.nodes} &times; {state.processes} ranks,"
        f" {escape(state.provider)}, {format_duration(state.seconds(now))}"
    )

    parts = [f"<div>{title}</div>"]
    parts += _progress(state, now, colour)
    parts += _reason(state)
    parts += _metrics(state)
    style = (
        "border:1px solid #8884;border-radius:6px;padding:8px 12px;max-width:820px;font:13px"
        " system-ui,sans-serif"
    )

    return f'<div style="{style}">{"".join(parts)}</div>'


def _progress(state: RunState, now: float, colour: str) -> Iterator[str]:
    at = state.position
    words = position_parts(at)

    if not state.has_ended:
        if state.activity:
            words.append(state.activity.activity)
        elif not words and state.phase:
            words.append(state.phase)

        eta = remaining_seconds(state, now)
        if eta is not None:
            words.append(f"{format_duration(eta)} left")

    if at.step is not None and at.steps:
        share = 100 * max(0.0, min(1.0, at.step / at.steps))
        bar = f"background:{colour};width:{share:.1f}%;height:4px;border-radius:2px"
        yield (
            '<div style="background:#8883;border-radius:2px;margin:4px 0"><div'
            f' style="{bar}"></div></div>'
        )

    if words:
        yield f"<div>{escape(' · '.join(words))}</div>"


def _reason(state: RunState) -> Iterator[str]:
    if state.has_ended and state.state != "succeeded" and explain(state):
        yield f"<div>{escape(explain(state))}</div>"


def _metrics(state: RunState) -> Iterator[str]:
    """Yield a line with the latest value of each metric."""
    if state.metrics:
        numbers = (f"{name} {format_number(value)}" for name, value in state.metrics.items())
        yield f"<div>{escape(' · '.join(numbers))}</div>"


@contextmanager
def live_card() -> Iterator[Callable[[RunState], None]]:
    """Yield a function that redraws a run's card in a notebook cell about once a second.

    Outside a notebook it does nothing. The last drawing stays in the notebook.
    """
    display = _display()
    latest: list[RunState] = []
    drawn_at = 0.0

    def show(state: RunState) -> None:
        nonlocal drawn_at
        if display is None:
            return

        first = not latest
        latest[:] = [state]

        if time.monotonic() - drawn_at >= SECONDS_BETWEEN_DRAWINGS:
            drawn_at = time.monotonic()
            display(card(state, time.time()), update=not first)

    try:
        yield show
    finally:
        if display is not None and latest:
            display(card(latest[0], time.time()), update=True)


def _display() -> Callable[..., None] | None:
    """Return a function that shows HTML in the current notebook cell; None outside a notebook."""
    ipython: Any = sys.modules.get("IPython")
    if ipython is None:
        return None

    shell = ipython.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None

    display_id = f"cloudtrain-{time.monotonic_ns()}"

    def display(html: str, *, update: bool) -> None:
        data = {"text/html": html}
        ipython.display.display(data, raw=True, display_id=display_id, update=update)

    return display
