"""The commands about numbers: metrics of one run, and several runs side by side."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from cloudtrain.cli.chosen_run import chosen, chosen_run
from cloudtrain.cli.options import data_dir, json_option, last_run_argument, runs_argument
from cloudtrain.cli.output import (
    colour_state,
    format_age,
    print_json,
    print_message,
    print_output,
    sparkline,
    table,
)
from cloudtrain.cli.report import format_cost
from cloudtrain.cli.terminal import one_line, write_csv
from cloudtrain.errors import UsageError
from cloudtrain.runs.series import MetricPoint, Series, series_of
from cloudtrain.runs.state import RunState
from cloudtrain.submission.compare import Compared, compare
from cloudtrain.submission.run import Run
from cloudtrain.units import format_duration, format_number

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
        yield name, *("" if value is None else _cell(value) for value in values)
    for name in compared.metrics:
        series = [metrics.get(name) for metrics in compared.series]
        yield name, *("" if values is None else format_number(values.last[0]) for values in series)
        yield "  best", *("" if values is None else best_text(values) for values in series)
    if any(_rate(state) for state in states):
        yield "samples/s", *map(_rate, states)


def _rate(state: RunState) -> str:
    rate = state.progress.samples_per_s if state.progress else None
    return "" if rate is None else format_number(rate)


def _cell(value: Any) -> str:
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    if isinstance(value, Mapping):
        text = ", ".join(f"{key}: {item}" for key, item in value.items())
    return text if len(text) <= MAX_CELL else f"{text[: MAX_CELL - 1]}…"
