"""The trials of a sweep as a table of comma-separated values, for a spreadsheet or pandas."""

from __future__ import annotations

import csv
import io
import math

from cloudtrain.sweeps.state import SweepState

COLUMNS = ("trial", "state", "reports", "value", "usd", "seconds", "run")
"""Beside the settings, which stand after the trial's number."""


def as_csv(state: SweepState) -> str:
    """One line for each trial (RFC 4180), after one with the names of the columns.

    `value` is the latest report of the objective, empty where that was not a finite number. A
    setting that is named like one of the columns is told as `parameters.NAME`.
    """
    keys = list(state.definition.space)
    file = io.StringIO()
    writer = csv.writer(file)
    writer.writerow(
        [
            COLUMNS[0],
            *(f"parameters.{key}" if key in COLUMNS else key for key in keys),
            *COLUMNS[1:],
        ]
    )
    for trial in state.trials:
        value = trial.value if trial.value is not None and math.isfinite(trial.value) else ""
        outcome = (trial.state, trial.reports, value, trial.spent_usd, trial.seconds, trial.run)
        writer.writerow([trial.number, *(_cell(trial.parameters[key]) for key in keys), *outcome])
    return file.getvalue()


def _cell(value: object) -> object:
    """A value as a program is given it: true and false as job.yaml writes them."""
    return str(value).lower() if isinstance(value, bool) else value
