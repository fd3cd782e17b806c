"""The page of a sweep: summary, charts, and a table of trials, in one HTML file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from cloudtrain.pages.svg import (
    BOTTOM,
    HEIGHT,
    RIGHT,
    TOP,
    WIDTH,
    Point,
    chart,
    document,
    element,
    folded,
    frame,
    line,
    picture,
    pieces,
    plain,
    steps,
    table,
    text,
    text_width,
    tooltip,
    words,
    x_scale,
    y_scale,
)
from cloudtrain.sweeps.state import SweepState, Trial
from cloudtrain.sweeps.suggest import Importance
from cloudtrain.units import format_duration, format_number


def page(state: SweepState, shares: Importance) -> str:
    """Return a sweep as an HTML document."""
    definition = state.definition
    charts = [
        chart(
            "Objective over trials",
            "The line is the best value; trials without a value are at the bottom.",
            over_trials(state),
        ),
        chart("Curves", _about_curves(state), curves(state)),
        chart("Importance of settings", _sentence(shares.method), _bars(shares)),
    ]

    body = [
        element("h1", words(definition.sweep_id)),
        element("p", words(_summary(state))),
        legend(trial.state for trial in state.trials),
        element(
            "p",
            words("A mark at the edge of a chart may be a value far outside."),
            class_="note",
        ),
        element("main", *charts),
        _table(state),
    ]

    return document(f"{definition.sweep_id}: {definition.metric}", *body)


def _about_curves(state: SweepState) -> str:
    if not state.definition.rungs:
        return "A line for each trial, the best one thick."
    return "A line for each trial, the best one thick; at the dashed lines trials are compared."


def _sentence(shown: str) -> str:
    return f"{shown[:1].upper() if not shown.startswith('fANOVA') else 'f'}{shown[1:]}."


def _summary(state: SweepState) -> str:
    """Summarize the sweep, its state and its best trial."""
    definition = state.definition
    best = state.best
    goal = {"minimize": "the less the better", "maximize": "the more the better"}[definition.goal]
    why = f" ({state.why_ended})" if state.why_ended else ""
    parts = [
        f"{state.state}{why}, {len(state.trials)} of {state.wanted} trials",
        f"objective {definition.metric}, {goal}",
        f"method {definition.method}, on {definition.provider}",
    ]

    if definition.trial_cap.usd is not None:
        parts.append(f"{state.spent_usd:.2f} USD spent")

    if best is not None and best.value is not None:
        values = ", ".join(
            f"{key} {format_number(value)}" for key, value in best.parameters.items()
        )
        parts.append(f"best is trial {best.number} with {format_number(best.value)}: {values}")

    return "; ".join(parts) + "."


def _bars(shares: Importance) -> str:
    """Draw a bar for each setting."""
    if not shares.shares:
        return ""

    parts = []
    for row, (key, share) in enumerate(shares.shares.items()):
        y = 14.0 + 34 * row
        parts.append(text(key, 4, y))
        parts.append(text(f"{share:.2f}", 436, y, anchor="end"))
        parts.append(line([(4.0, y + 10), (436.0, y + 10)], "bar-room"))
        parts.append(line([(4.0, y + 10), (4 + max(432 * min(share, 1.0), 0.1), y + 10)], "bar"))

    return picture(440, 34.0 * len(shares.shares) + 4, "importance of each setting", *parts)


def _table(state: SweepState) -> str:
    """Return a table of all trials, folded."""
    billed = state.definition.trial_cap.usd is not None
    header = [
        "trial",
        *state.definition.space,
        "reports",
        state.definition.metric,
        "state",
        *["USD"] * billed,
        "time",
        "run",
    ]

    rows = [
        [
            str(trial.number),
            *(format_number(trial.parameters[key]) for key in state.definition.space),
            str(trial.reports),
            "" if trial.value is None else format_number(trial.value),
            trial.state + (f": {trial.reason}" if trial.reason else ""),
            *[f"{trial.spent_usd:.2f}"] * billed,
            format_duration(trial.seconds),
            trial.run,
        ]
        for trial in state.trials
    ]

    return folded(f"All {len(rows)} trials", table(header, rows))


MARKS = {
    "completed": ("circle", "trained to its end"),
    "pruned": ("triangle", "ended at a rung, behind the others"),
    "paused": ("square", "ended at a rung, not promoted yet"),
    "running": ("ring", "not ended yet"),
    "waiting": ("ring", "not ended yet"),
    "stopped": ("diamond", "stopped on request"),
    "failed": ("cross", "ended with an error"),
    "too_large": ("cross", "does not fit"),
}
"""Shape and meaning of each state of a trial: not everybody can tell colours apart."""

_PATHS = {
    "circle": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z",
    "ring": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z",
    "triangle": "M-4.5 -3.5L4.5 -3.5L0 4.5Z",
    "square": "M-3.5 -3.5L3.5 -3.5L3.5 3.5L-3.5 3.5Z",
    "diamond": "M0 -5L5 0L0 5L-5 0Z",
    "cross": "M-4 -4L4 4M-4 4L4 -4",
}


def mark(state: str, x: float, y: float, *, best: bool = False, title: str = "") -> str:
    """Draw the mark of a trial."""
    shape = MARKS[state][0]
    place = f"translate({plain(x)} {plain(y)})" + (" scale(1.5)" if best else "")
    kind = f"mark {shape}" + (" best" if best else "")

    return element("path", *tooltip(title), d=_PATHS[shape], transform=place, class_=kind)


def legend(states: Iterable[str]) -> str:
    """Return the legend of the marks of these states, as HTML."""
    square: dict[str, object] = {
        "viewBox": "0 0 16 16",
        "width": 16,
        "height": 16,
        "aria_hidden": "true",
    }
    meanings = {MARKS[state]: "running" if state == "waiting" else state for state in states}
    items = []

    for shape in dict.fromkeys(MARKS.values()):
        if shape in meanings:
            state = meanings[shape]
            drawing = element("svg", mark(state, 8, 8), **square)
            items.append(element("li", drawing, words(f" {state}: {shape[1]}")))

    return element("ul", "", *items, class_="legend")


def trial_text(state: SweepState, trial: Trial) -> str:
    """Return the tooltip of a trial: `trial 3, completed: val_accuracy 0.98 (lr 0.01)`."""
    values = ", ".join(f"{key} {format_number(value)}" for key, value in trial.parameters.items())
    value = (
        "" if trial.value is None else f": {state.definition.metric} {format_number(trial.value)}"
    )
    return f"trial {trial.number}, {trial.state}{value} ({values})"


def value_of(trial: Trial) -> float | None:
    """Return the latest report of a trial; None if it is missing or not finite."""
    return trial.value if trial.value is not None and math.isfinite(trial.value) else None


def over_trials(state: SweepState) -> str:
    """Draw the value of each trial by its number, with a line of the best value.

    Trials without a value are at the bottom.
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
            title=trial_text(state, trial),
        )
        for trial, value in zip(state.trials, values, strict=True)
    ]
    label = f"{state.definition.metric} of each trial, and the best value"
    names = frame(
        x, y, "trial", state.definition.metric, [tick for tick in x.ticks() if tick == int(tick)]
    )

    return picture(
        WIDTH,
        HEIGHT,
        label,
        names,
        line(steps(best, x.end), "so-far"),
        *marks,
    )


def curves(state: SweepState) -> str:
    """Draw every report of every trial, with the rungs; the best trial is the thick line."""
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
            line(
                [(x.at(report), y.at(value)) for report, value in piece],
                kind,
                trial_text(state, trial),
            )
            for piece in pieces(list(enumerate(trial.curve, 1)))
        ]
        if (value := value_of(trial)) is not None:
            place = x.at(trial.reports), y.at(value)
            parts.append(
                mark(trial.state, *place, best=trial is best, title=trial_text(state, trial))
            )

    return picture(
        WIDTH, HEIGHT, f"{state.definition.metric} over the reports of each trial", *parts
    )


def _rungs(at: Sequence[float]) -> Sequence[str]:
    """Draw a line at each rung; its name only if it fits before the next name."""
    parts = [line([(x, TOP - 4), (x, BOTTOM)], "rung") for x in at]
    free = RIGHT
    for number in range(len(at), 0, -1):
        x = at[number - 1]
        name = f"rung {number}"
        if x <= free - text_width(name) or free == RIGHT:
            free = min(x, RIGHT - text_width(name))
            parts.append(text(name, free, TOP - 7, class_="rung-name"))

    return parts
