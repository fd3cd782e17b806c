"""Parallel coordinates: an axis for every setting and one for the objective, and a line for every
trial.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from cloudtrain.charts.axes import Scale, labels_of, usual_range
from cloudtrain.charts.svg import CHARACTER, line, picture, shortened, text
from cloudtrain.spec.search_space import Choice, Dimension, Scalar
from cloudtrain.sweeps.plot.charts import told, value_of
from cloudtrain.sweeps.state import SweepState, Trial
from cloudtrain.units import format_number

TOP = 44.0
BOTTOM = 258.0
HEIGHT = 276.0
FIRST = 24.0
AFTER = 104.0
BETWEEN = 100.0
LEAST_BETWEEN = 64.0
WIDTH = 1000.0
"""So much has room on a screen; axes stand closer together where there are many."""
ROW = 15.0
"""Labels of an axis are at least this far apart."""

Place = Callable[[Scalar], float]
Axis = tuple[Place, Sequence[tuple[float, str]]]
"""Where a value stands on it, and its labels."""


def parallel_coordinates(state: SweepState) -> str:
    """The trials that have a value; the best quarter of them in front, the best trial thickest."""
    valued = [(value, trial) for trial in state.trials if (value := value_of(trial)) is not None]
    count = len(state.definition.space)
    between = min(BETWEEN, max(LEAST_BETWEEN, (WIDTH - FIRST - AFTER) / count))
    axes = [
        (key, _axis_of(dimension, between - 10))
        for key, dimension in state.definition.space.items()
    ]
    axes.append(
        (
            state.definition.metric,
            _range_axis(*usual_range(value for value, _ in valued), log=False),
        )
    )
    at = [FIRST + between * number for number in range(len(axes))]
    parts: list[str] = []
    for value, trial, kind in _in_order(state, valued):
        values = [*(trial.parameters[key] for key, _ in axes[:-1]), value]
        points = [(x, axis[0](each)) for x, (_, axis), each in zip(at, axes, values, strict=True)]
        parts.append(line(points, kind, told(state, trial)))
    for number, (x, (key, (_, labels))) in enumerate(zip(at, axes, strict=True)):
        parts.append(line([(x, TOP), (x, BOTTOM)], "axis"))
        # Names stand in two rows: long ones of neighbours would run into each other.
        name = shortened(
            key, int((2 * between if number < count else AFTER) / CHARACTER), keep_end=True
        )
        parts.append(text(name, x - 12, 14 + 16 * (number % 2), class_="name"))
        parts += [text(label, x + 6, y + 4, class_="on-line") for y, label in labels]
    width = at[-1] + AFTER
    label = f"the settings of each trial, and its {state.definition.metric}"
    return picture(max(width, 440.0), HEIGHT, label, *parts, wide=width > 440)


def _in_order(
    state: SweepState, valued: Sequence[tuple[float, Trial]]
) -> Sequence[tuple[float, Trial, str]]:
    """The trials, the worst first, each with how its line is drawn."""
    ordered = sorted(valued, key=lambda each: each[0], reverse=state.definition.goal == "minimize")
    behind = len(ordered) - math.ceil(len(ordered) / 4)
    shown = [
        (value, trial, "curve" if at < behind else "curve good")
        for at, (value, trial) in enumerate(ordered)
    ]
    return [
        (value, trial, "curve best" if trial is state.best else kind)
        for value, trial, kind in shown
    ]


def _axis_of(dimension: Dimension, room: float) -> Axis:
    """`room`: between this axis and the next."""
    if not isinstance(dimension, Choice):
        return _range_axis(dimension.low, dimension.high, log=dimension.log)
    scale = Scale(0, len(dimension.values) - 1, BOTTOM, TOP)
    # By type, too: 1 and true are equal.
    at: Mapping[tuple[type, Scalar], float] = {
        (type(value), value): scale.at(number) for number, value in enumerate(dimension.values)
    }
    every = math.ceil(ROW * (len(at) - 1) / (BOTTOM - TOP))
    labels = [
        (place, shortened(format_number(value), int(room / CHARACTER)))
        for (_, value), place in at.items()
    ]
    return lambda value: at[type(value), value], labels[:: max(1, every)]


def _range_axis(low: float, high: float, *, log: bool) -> Axis:
    scale = Scale(low, high, BOTTOM, TOP, log)
    ticks = scale.ticks()
    labels = [(scale.at(tick), label) for tick, label in zip(ticks, labels_of(ticks), strict=True)]
    return lambda value: scale.at(float(value)), labels
