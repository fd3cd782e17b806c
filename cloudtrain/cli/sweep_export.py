"""The command `sweep export`: a sweep's trials as CSV."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cloudtrain.cli.csv_table import csv_table
from cloudtrain.cli.options import data_dir, force_option, output_option
from cloudtrain.cli.output import print_output
from cloudtrain.cli.output_file import output_file
from cloudtrain.runs.files import replace_text, storing
from cloudtrain.sweeps.sweep import find_sweep

if TYPE_CHECKING:
    from cloudtrain.sweeps.state import SweepState


COLUMNS = ("trial", "state", "reports", "value", "usd", "seconds", "run")
"""Columns of every table; the settings follow the trial's number."""


@click.command("export", epilog="Example:\n\n  cloudtrain sweep export digits-k2x9 -o trials.csv")
@click.argument("sweep", metavar="SWEEP")
@output_option
@force_option
@data_dir
def export_command(folder: str | None, /, sweep: str, output: Path | None, force: bool) -> None:
    """Write the trials of SWEEP into a file, as a table with one line for each (CSV)."""
    exported = find_sweep(sweep, data_dir=folder)
    file = output_file(output, exported.folder.path / f"{exported.id}.csv", force)
    with storing(file, "write it elsewhere with -o"):
        replace_text(file, _as_csv(exported.status()))

    print_output(str(file))


def _as_csv(state: SweepState) -> str:
    """Return a header and one line for each trial (RFC 4180).

    `value` is the latest report of the objective, empty if it is not finite. A setting with the
    name of a column becomes `parameters.NAME`.
    """
    keys = list(state.definition.space)
    header = [f"parameters.{key}" if key in COLUMNS else key for key in keys]
    header.insert(0, COLUMNS[0])
    header += COLUMNS[1:]
    rows: list[list[object]] = [[*header]]

    for trial in state.trials:
        row: list[object] = [trial.number]
        row += [trial.parameters[key] for key in keys]
        value = trial.value if trial.value is not None and math.isfinite(trial.value) else ""
        row += [trial.state, trial.reports, value, trial.spent_usd, trial.seconds, trial.run]
        rows.append(row)

    return csv_table(rows, line_end="\r\n")
