"""The commands about results: metrics, compare, report and sweep export."""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloudtrain.cli.chosen_run import chosen, chosen_run
from cloudtrain.cli.options import (
    data_dir,
    force_option,
    json_option,
    last_run_argument,
    output_option,
    runs_argument,
)
from cloudtrain.cli.output import (
    colour_state,
    format_age,
    print_json,
    print_message,
    print_output,
    sparkline,
    table,
)
from cloudtrain.cli.run_end import format_cost
from cloudtrain.cli.terminal import one_line, write_csv
from cloudtrain.errors import UsageError
from cloudtrain.runs.files import replace_text, storing
from cloudtrain.runs.series import MetricPoint, Series, series_of
from cloudtrain.runs.state import RunState
from cloudtrain.submission.compare import Compared, compare
from cloudtrain.submission.run import Run
from cloudtrain.sweeps.suggest import importance
from cloudtrain.sweeps.sweep import find_sweep
from cloudtrain.units import format_duration, format_number

if TYPE_CHECKING:
    from cloudtrain.sweeps.state import SweepState


COLUMNS = ("trial", "state", "reports", "value", "usd", "seconds", "run")
"""Columns of every table; the settings follow the trial's number."""


@click.command("report", epilog="Example:\n\n  cloudtrain report last -o run.html")
@click.argument("run", required=False)
@output_option
@force_option
@data_dir
def report_command(
    folder: str | None, /, run: str | None, output: Path | None, force: bool
) -> None:
    """Write RUN (default: the newest of this folder) as one HTML page.

    The page is standalone: open it, send it, keep it.

    It has results, settings, curves, throughput, the cost, the failure, spec and request. For a
    sweep: the objective over trials, the curves of all trials with the rungs, and the importance
    of each setting. It also works before the end.
    """
    from cloudtrain.pages import run_page, sweep_page  # with a library of templates

    target = chosen(run, folder)
    file = output_file(output, target.folder.path / f"{target.id}.html", force)

    if isinstance(target, Run):
        target.last_known()
        html = run_page.page(target, time.time())
    else:
        state = target.status()
        html = sweep_page.page(state, importance(state))

    with storing(file, "write it elsewhere with -o"):
        replace_text(file, html)

    print_output(str(file))


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


MAX_CELL = 40
"""Maximum characters of a setting; JSON has all of them."""


@click.command("metrics", epilog="Example:\n\n  cloudtrain metrics --csv > metrics.csv")
@last_run_argument
@click.option(
    "--csv", "as_csv", is_flag=True, help="Every reported point as CSV, a column for each metric."
)
@json_option
@data_dir
def metrics_command(folder: str | None, /, run: str | None, as_csv: bool, as_json: bool) -> None:
    """Show the metrics of RUN (default: the newest of this folder).

    Each has its first, latest and best value, and its curve.
    """
    if as_csv and as_json:
        raise UsageError("--csv and --json ask for different things")

    shown_run = chosen_run(run, folder)
    shown_run.last_known()  # a cloud's log is read first
    points = shown_run.metrics()

    if as_json:
        print_json({"run": shown_run.id, "points": [point.to_json() for point in points]})
    elif as_csv:
        write_csv(_csv(points))
    elif not points:
        print_message(f"{shown_run.id} has reported no metrics")
    else:
        curves = shown_run.cached_status().curves
        rows = [
            (
                name,
                format_number(series.first[0]),
                sparkline(curves[name].values if name in curves else []),
                format_number(series.last[0]),
                best_text(series),
            )
            for name, series in series_of(points).items()
        ]
        print_output(table(rows, ("METRIC", "FIRST", "", "LAST", "BEST")))


def _csv(points: Iterable[MetricPoint]) -> str:
    """Return a header, and one line per report."""
    points = list(points)
    names = list(dict.fromkeys(name for point in points for name in point.values))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["time", "step", "epoch", *(_column(name) for name in names)])

    for point in points:
        row = [point.time, point.step, point.epoch, *(point.values.get(name) for name in names)]
        writer.writerow(["" if cell is None else cell for cell in row])

    return text.getvalue()


def _column(name: str) -> str:
    """Return the name of a column.

    A quotation mark in front keeps a spreadsheet from running it as a formula.
    """
    return one_line(f"'{name}" if name[:1] in "=+-@" else name)


def best_text(series: Series) -> str:
    """Return `0.93 at step 100`, or the range if the better direction is unknown."""
    if series.best is None:
        return f"{format_number(series.low[0])} to {format_number(series.high[0])}"
    value, step = series.best
    return format_number(value) + (f" at step {format_number(step)}" if step is not None else "")


@click.command("compare", epilog="Example:\n\n  cloudtrain compare digits-ab12 digits-cd34")
@runs_argument
@json_option
@data_dir
def compare_command(folder: str | None, /, runs: tuple[str, ...], as_json: bool) -> None:
    """Show RUNs side by side: settings that differ, metrics, time and cost.

    For a sweep, show all of its trials.
    """
    compared_runs = [found_run for run in runs for found_run in _runs_of(run, folder)]
    if len({run.id for run in compared_runs}) < 2:
        raise UsageError("two or more runs are compared", hint="cloudtrain list shows them")

    for run in compared_runs:
        run.last_known()

    compared = compare(compared_runs)
    if as_json:
        print_json(compared.to_json())
    else:
        print_output(table(list(_rows(compared, time.time())), ("", *compared.runs)))


def _runs_of(name: str, folder: str | None) -> list[Run]:
    """Return the run of that name, or the latest run of each trial of a sweep."""
    target = chosen(name, folder)
    if isinstance(target, Run):
        return [target]
    return [target.run_of(trial) for trial in target.status().trials if trial.run]


def _rows(compared: Compared, timestamp: float) -> Iterable[Sequence[str]]:
    states = compared.states
    yield "state", *(colour_state(state.state) for state in states)
    yield "submitted", *(format_age(state.created, timestamp) for state in states)
    yield "took", *(format_duration(state.seconds(timestamp)) for state in states)

    if any(map(format_cost, states)):
        yield "cost", *(format_cost(state) for state in states)

    for name, values in compared.settings.items():
        yield name, *("" if value is None else _setting_cell(value) for value in values)

    for name in compared.metrics:
        series = [metrics.get(name) for metrics in compared.series]
        yield name, *("" if values is None else format_number(values.last[0]) for values in series)
        yield "  best", *("" if values is None else best_text(values) for values in series)

    if any(_rate(state) for state in states):
        yield "samples/s", *map(_rate, states)


def _rate(state: RunState) -> str:
    rate = state.progress.samples_per_s if state.progress else None
    return "" if rate is None else format_number(rate)


def _setting_cell(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    if isinstance(value, Mapping):
        text = ", ".join(f"{key}: {item}" for key, item in value.items())
    return text if len(text) <= MAX_CELL else f"{text[: MAX_CELL - 1]}…"
