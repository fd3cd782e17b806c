"""Charts of a sweep's objective: over its trials, over what they have cost, and the curve of every
trial.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cloudtrain.pages.axes import (
    BOTTOM,
    HEIGHT,
    RIGHT,
    TOP,
    WIDTH,
    frame,
    pieces,
    x_scale,
    y_scale,
)
from cloudtrain.pages.svg import Point, line, picture, steps, text, text_width
from cloudtrain.pages.sweep_marks import mark
from cloudtrain.sweeps.history import Moment
from cloudtrain.sweeps.state import SweepState, Trial
from cloudtrain.units import format_number


def told(state: SweepState, trial: Trial) -> str:
    """A trial in words, shown where the mouse rests on it: `trial 3, completed: val_accuracy 0.98
    (lr 0.01)`.
    """
    values = ", ".join(f"{key} {format_number(value)}" for key, value in trial.parameters.items())
    value = (
        "" if trial.value is None else f": {state.definition.metric} {format_number(trial.value)}"
    )
    return f"trial {trial.number}, {trial.state}{value} ({values})"


def value_of(trial: Trial) -> float | None:
    """Its latest report; None where that was not a finite number, or there is none."""
    return trial.value if trial.value is not None and math.isfinite(trial.value) else None


def over_trials(state: SweepState) -> str:
    """The value of each trial, by number; those without one at the bottom. A line shows the best so
    far.
    """
    x = x_scale(0, max(len(state.trials) - 1, 1))
    values = [value_of(trial) for trial in state.trials]
    y = y_scale([value for value in values if value is not None])
    better = max if state.definition.goal == "maximize" else min
    best: list[Point] = []
    best_value: float | None = None
    for trial, value in zip(state.trials, values, strict=True):
        if value is not None and trial.state not in ("failed", "too_large"):
            best_value = value if best_value is None else better(best_value, value)
            best.append((x.at(trial.number), y.at(best_value)))
    marks = [
        mark(
            trial.state,
            x.at(trial.number),
            BOTTOM if value is None else y.at(value),
            best=trial is state.best,
            title=told(state, trial),
        )
        for trial, value in zip(state.trials, values, strict=True)
    ]
    label = f"{state.definition.metric} of each trial, and the best so far"
    names = frame(
        x, y, "trial", state.definition.metric, [tick for tick in x.ticks() if tick == int(tick)]
    )
    return picture(WIDTH, HEIGHT, label, names, line(steps(best, x.end), "so-far"), *marks)


def over_cost(state: SweepState, moments: Sequence[Moment]) -> str:
    """The best trial's value each time that a run had ended, by the money spent; by time where
    nothing is billed.
    """
    billed = state.definition.trial_cap.usd is not None
    longest = max((moment.seconds for moment in moments), default=0.0)
    unit, size = ("h", 3600) if longest > 7200 else ("min", 60) if longest > 120 else ("s", 1)
    at = [moment.usd if billed else moment.seconds / size for moment in moments]
    x = x_scale(0, max(at, default=1.0))
    y = y_scale(
        [value for moment in moments for value in (moment.value, moment.best) if value is not None]
    )
    best = [
        (x.at(position), y.at(moment.best))
        for position, moment in zip(at, moments, strict=True)
        if moment.best is not None
    ]
    marks = [
        mark(
            moment.state,
            x.at(position),
            BOTTOM if moment.value is None else y.at(moment.value),
            title=f"trial {moment.trial}, {moment.state}",
        )
        for position, moment in zip(at, moments, strict=True)
    ]
    spent = "USD spent" if billed else f"time since the first trial ({unit})"
    names = frame(x, y, spent, state.definition.metric)
    label = f"{state.definition.metric} over the {spent}, and the best so far"
    return picture(WIDTH, HEIGHT, label, names, line(steps(best, x.end), "so-far"), *marks)


def curves(state: SweepState) -> str:
    """Every report of every trial, with the rungs at which they were compared. The best trial is
    the thick line.
    """
    y = y_scale([value for trial in state.trials for value in trial.curve])
    x = x_scale(1, max((trial.reports for trial in state.trials), default=1))
    best = state.best
    parts = [
        frame(
            x,
            y,
            "report",
            state.definition.metric,
            [tick for tick in x.ticks() if tick == int(tick)],
        )
    ]
    parts += _rungs([x.at(rung) for rung in state.definition.rungs if rung <= x.high])
    for trial in sorted(state.trials, key=lambda trial: trial is best):
        kind = "curve best" if trial is best else "curve"
        parts += [
            line([(x.at(report), y.at(value)) for report, value in piece], kind, told(state, trial))
            for piece in pieces(list(enumerate(trial.curve, 1)))
        ]
        if (value := value_of(trial)) is not None:
            place = x.at(trial.reports), y.at(value)
            parts.append(mark(trial.state, *place, best=trial is best, title=told(state, trial)))
    return picture(
        WIDTH, HEIGHT, f"{state.definition.metric} over the reports of each trial", *parts
    )


def _rungs(at: Sequence[float]) -> Sequence[str]:
    """A line at each rung, with its name above where that has room before the next one's; the last
    has its name.
    """
    parts = [line([(x, TOP - 4), (x, BOTTOM)], "rung") for x in at]
    free = RIGHT
    for number in range(len(at), 0, -1):
        x = at[number - 1]
        name = f"rung {number}"
        if x <= free - text_width(name) or free == RIGHT:
            free = min(x, RIGHT - text_width(name))
            parts.append(text(name, free, TOP - 7, class_="rung-name"))
    return parts
