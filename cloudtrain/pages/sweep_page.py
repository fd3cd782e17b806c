"""The page of a sweep: summary, charts, and a table of trials, in one HTML file."""

from __future__ import annotations

from cloudtrain.pages.document import chart, document, folded, table
from cloudtrain.pages.svg import element, line, picture, text, words
from cloudtrain.pages.sweep_charts import curves, legend, over_trials
from cloudtrain.sweeps.optuna_studies import Importance
from cloudtrain.sweeps.state import SweepState
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
