"""The best value of a metric, as text."""

from __future__ import annotations

from cloudtrain.runs.series import Series
from cloudtrain.units import format_number


def best_text(series: Series) -> str:
    """Return `0.93 at step 100`, or the range if the better direction is unknown."""
    if series.best is None:
        return f"{format_number(series.low[0])} to {format_number(series.high[0])}"
    value, step = series.best
    text = format_number(value)
    if step is not None:
        text += f" at step {format_number(step)}"

    return text
