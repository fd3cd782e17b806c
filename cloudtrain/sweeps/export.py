"""Export of the trials of a sweep as CSV, for a spreadsheet or pandas."""

from __future__ import annotations

import csv
import io
import math

from cloudtrain.sweeps.state import SweepState

COLUMNS = ("trial", "state", "reports", "value", "usd", "seconds", "run")
"""Columns of every table; the settings follow the trial's number."""


def as_csv(state: SweepState) -> str:
    """Return a header and one line for each trial (RFC 4180).

    `value` is the latest report of the objective, empty if it is not finite. A setting with the
    name of a column becomes `parameters.NAME`.
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
    """Return a value as a program receives it: true and false as in job.yaml."""
    return str(value).lower() if isinstance(value, bool) else value
