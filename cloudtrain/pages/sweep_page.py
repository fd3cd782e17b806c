"""The page of a sweep: summary, charts, and a table of trials, in one HTML file."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cloudtrain.pages.chart import HEIGHT, Chart, Curve, Mark, Point, curve, rungs, x_axis, y_axis
from cloudtrain.pages.document import render
from cloudtrain.sweeps.importance import Importance
from cloudtrain.sweeps.state import SweepState, Trial
from cloudtrain.units import format_number


@dataclass(frozen=True, slots=True)
class Sign:
    """Shape and meaning of a state of a trial: not everybody can tell colours apart."""

    shape: str
    meaning: str


SIGNS = {
    "completed": Sign("circle", "completed: trained to its end"),
    "pruned": Sign("triangle", "pruned: ended at a rung, behind the others"),
    "paused": Sign("square", "paused: ended at a rung, not promoted yet"),
    "running": Sign("ring", "running: not ended yet"),
    "waiting": Sign("ring", "running: not ended yet"),
    "stopped": Sign("diamond", "stopped: stopped on request"),
    "failed": Sign("cross", "failed: ended with an error"),
    "too_large": Sign("cross", "too_large: does not fit"),
}


def page(state: SweepState, shares: Importance) -> str:
    """Return a sweep as an HTML document."""
    states = {trial.state for trial in state.trials}
    signs = [sign for name, sign in SIGNS.items() if name in states]
    best_settings = ""
    if state.best:
        best_settings = settings_text(state.best)

    return render(
        "sweep_page.html",
        sweep=state,
        definition=state.definition,
        best_settings=best_settings,
        legend=list(dict.fromkeys(signs)),
        trials_chart=over_trials(state),
        curves_chart=curves(state),
        importance=shares,
    )


def settings_text(trial: Trial) -> str:
    """Return the settings of a trial: `lr 0.01, layers 6`."""
    return ", ".join(f"{key} {format_number(value)}" for key, value in trial.parameters.items())


def trial_text(state: SweepState, trial: Trial) -> str:
    """Return the tooltip of a trial: `trial 3, completed: val_accuracy 0.98 (lr 0.01)`."""
    text = f"trial {trial.number}, {trial.state}"
    if trial.value is not None:
        text += f": {state.definition.metric} {format_number(trial.value)}"

    return f"{text} ({settings_text(trial)})"


def value_of(trial: Trial) -> float | None:
    """Return the latest report of a trial; None if it is missing or not finite."""
    if trial.value is None or not math.isfinite(trial.value):
        return None

    return trial.value


def mark(state: SweepState, trial: Trial, x: float, y: float) -> Mark:
    """Return the sign of a trial at a position."""
    return Mark(
        SIGNS[trial.state].shape, x, y, trial_text(state, trial), is_best=trial is state.best
    )


def over_trials(state: SweepState) -> Chart:
    """Return the value of each trial by its number, with a line of the best value.

    Trials without a value are at the bottom.
    """
    metric = state.definition.metric
    values = [value_of(trial) for trial in state.trials]
    x = x_axis("trial", 0, max(len(state.trials) - 1, 1))
    y = y_axis(metric, [value for value in values if value is not None])
    better = max if state.definition.goal == "maximize" else min
    best_so_far: list[Point] = []
    best: float | None = None
    marks = []

    for trial, value in zip(state.trials, values, strict=True):
        at = x.at(trial.number)
        if value is None:
            marks.append(mark(state, trial, at, HEIGHT))
            continue

        marks.append(mark(state, trial, at, y.at(value)))
        if trial.state not in ("failed", "too_large"):
            if best is None:
                best = value
            else:
                best = better(best, value)

            best_so_far.append((at, y.at(best)))

    return Chart(
        label=f"{metric} of each trial, and the best value",
        x=x,
        y=y,
        marks=marks,
        best_so_far=best_so_far,
    )


def curves(state: SweepState) -> Chart:
    """Return every report of every trial, with the rungs; the best trial is the thick line."""
    metric = state.definition.metric
    values = [value for trial in state.trials for value in trial.curve]
    x = x_axis("report", 1, max((trial.reports for trial in state.trials), default=1))
    y = y_axis(metric, values)
    lines: list[Curve] = []
    marks = []

    for trial in sorted(state.trials, key=lambda trial: trial is state.best):
        points = list(enumerate(trial.curve, 1))
        lines.append(curve(trial_text(state, trial), points, x, y, is_best=trial is state.best))
        value = value_of(trial)
        if value is not None:
            marks.append(mark(state, trial, x.at(trial.reports), y.at(value)))

    return Chart(
        label=f"{metric} over the reports of each trial",
        x=x,
        y=y,
        curves=lines,
        marks=marks,
        rungs=rungs([x.at(rung) for rung in state.definition.rungs if rung <= x.high]),
    )
