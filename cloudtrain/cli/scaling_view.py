"""A scaling curve on a terminal: a table with a bar for each speed-up."""

from __future__ import annotations

from cloudtrain.cli.output import table
from cloudtrain.diagnosis.scaling import Point, ScalingCurve
from cloudtrain.units import format_number

BAR = 32
"""Width of the largest ideal speed-up, in characters."""


def drawn(curve: ScalingCurve) -> str:
    """Return the table; each bar fills the length of the ideal speed-up."""
    priced = any(point.usd_per_million for point in curve.points)
    header = [
        "ranks",
        "samples/s",
        "speed-up",
        "(95 %)",
        "efficiency",
        "communication",
        *["USD per million"] * priced,
        "",
    ]
    most = max(curve.measured) / curve.base
    return table([_cells(point, curve, most, priced=priced) for point in curve.points], header)


def _cells(point: Point, curve: ScalingCurve, most: float, *, priced: bool) -> list[str]:
    low, high = point.interval
    ideal = point.ranks / curve.base
    length = round(BAR * ideal / most)
    filled = min(length, round(BAR * point.speedup / most))
    usd = f"{point.usd_per_million:.2f}" if point.usd_per_million else "not known"
    return [
        str(point.ranks),
        format_number(point.samples_per_s),
        f"{point.speedup:.2f}",
        "" if point.ranks == curve.base else f"{low:.2f}-{high:.2f}",
        f"{point.efficiency:.2f}",
        "" if point.communication is None else f"{point.communication:.0%}",
        *[usd] * priced,
        "━" * filled + "─" * (length - filled),
    ]
