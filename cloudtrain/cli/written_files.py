"""The commands that write a file: `report`, `sweep plot` and `sweep export`."""

from __future__ import annotations

import csv
import io
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cloudtrain.cli.chosen_run import chosen
from cloudtrain.cli.options import data_dir
from cloudtrain.cli.output import print_output
from cloudtrain.errors import UsageError
from cloudtrain.pages import run_page, sweep_page
from cloudtrain.runs.files import replace_text, storing
from cloudtrain.submission.run import Run
from cloudtrain.sweeps.suggest import importance
from cloudtrain.sweeps.sweep import find_sweep

if TYPE_CHECKING:
    from cloudtrain.sweeps.state import SweepState
    from cloudtrain.sweeps.sweep import Sweep

COLUMNS = ("trial", "state", "reports", "value", "usd", "seconds", "run")
"""Columns of every table; the settings follow the trial's number."""
FORCE = click.option("--force", is_flag=True, help="Overwrite an existing file.")


@click.command("report", epilog="Example:\n\n  cloudtrain report last -o run.html")
@click.argument("run", required=False)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Default: in the folder of the run.",
)
@FORCE
@data_dir
def report_command(
    folder: str | None, /, run: str | None, output: Path | None, force: bool
) -> None:
    """Write RUN (default: the newest of this folder) as one HTML page.

    The page is standalone: open it, send it, keep it.

    It has results, settings, curves, throughput, the cost, the failure, spec and request. For a
    sweep: the page of `sweep plot`. It also works before the run has ended.
    """
    target = chosen(run, folder)
    if not isinstance(target, Run):
        write_plot(target, output, force)
        return
    target.last_known()
    file = output_file(output, target.folder.path / f"{target.id}.html", force)
    with storing(file, "write it elsewhere with -o"):
        replace_text(file, run_page.page(target, time.time()))
    print_output(str(file))


@click.command("plot", epilog="Example:\n\n  cloudtrain sweep plot digits-k2x9 -o digits.html")
@click.argument("sweep", metavar="SWEEP")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Default: in the folder of the sweep.",
)
@FORCE
@data_dir
def plot_command(folder: str | None, /, sweep: str, output: Path | None, force: bool) -> None:
    """Draw SWEEP as one standalone HTML page.

    It has the objective over trials, the curves of all trials with the rungs, and the importance of
    each setting. It also works before the sweep has ended.
    """
    write_plot(find_sweep(sweep, data_dir=folder), output, force)


def write_plot(sweep: Sweep, output: Path | None, force: bool) -> None:
    """Write the page of a sweep, and print its path.

    Raise UsageError if the file exists already.
    """
    file = output_file(output, sweep.folder.path / f"{sweep.id}.html", force)
    state = sweep.status()
    with storing(file, "write it elsewhere with -o"):
        replace_text(file, sweep_page.page(state, importance(state)))
    print_output(str(file))


@click.command("export", epilog="Example:\n\n  cloudtrain sweep export digits-k2x9 -o trials.csv")
@click.argument("sweep", metavar="SWEEP")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Default: in the folder of the sweep.",
)
@FORCE
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


def output_file(named: Path | None, default: Path, force: bool) -> Path:
    """Return the named file to write, or `default`.

    The default is not in the current folder, which the next job would send along. Raise UsageError
    if a named file cannot be written, or exists already.
    """
    if named is None:
        return default
    check_writable(named, force)
    return named


def check_writable(file: Path, force: bool) -> None:
    """Raise UsageError if a file cannot be written, or exists and `force` is not set."""
    if file.is_dir():
        raise UsageError(f"{file} is a folder", hint=f"-o {file / 'page.html'} names a file in it")
    if not file.absolute().parent.is_dir():
        raise UsageError(
            f"{file}: there is no folder {file.parent}",
            hint="make it first, or name another file with -o",
        )
    if file.exists() and not force:
        raise UsageError(
            f"{file} is there already", hint="--force writes over it, -o names another file"
        )
