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
"""Characters of a setting that are shown; JSON has all of them."""


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
    found = chosen_run(run, folder)
    found.last_known()  # a cloud's log is read first
    points = found.metrics()
    if as_json:
        print_json({"run": found.id, "points": [point.to_json() for point in points]})
    elif as_csv:
        write_csv(_csv(points))
    elif not points:
        print_message(f"{found.id} has reported no metrics")
    else:
        curves = found.cached_status().curves
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
    """A header, and one line per report."""
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
    """The name of a column; one that a spreadsheet would run as a formula begins with a quotation
    mark.
    """
    return one_line(f"'{name}" if name[:1] in "=+-@" else name)


def best_text(series: Series) -> str:
    """`0.93 at step 100`; the range where the name does not tell whether less or more is better."""
    if series.best is None:
        return f"{format_number(series.low[0])} to {format_number(series.high[0])}"
    value, step = series.best
    return format_number(value) + (f" at step {format_number(step)}" if step is not None else "")


@click.command("compare", epilog="Example:\n\n  cloudtrain compare digits-ab12 digits-cd34")
@runs_argument
@json_option
@data_dir
def compare_command(folder: str | None, /, runs: tuple[str, ...], as_json: bool) -> None:
    """Show RUNs side by side: the settings that differ, the metrics, time and cost. Of a sweep, all
    of its trials.
    """
    found = [each for run in runs for each in _runs_of(run, folder)]
    if len({run.id for run in found}) < 2:
        raise UsageError("two or more runs are compared", hint="cloudtrain list shows them")
    for run in found:
        run.last_known()
    compared = compare(found)
    if as_json:
        print_json(compared.to_json())
    else:
        print_output(table(list(_rows(compared, time.time())), ("", *compared.runs)))


def _runs_of(name: str, folder: str | None) -> list[Run]:
    """The run of that name or, of a sweep, the latest run of each trial."""
    found = chosen(name, folder)
    if isinstance(found, Run):
        return [found]
    return [found.run_of(trial) for trial in found.status().trials if trial.run]


def _rows(compared: Compared, now: float) -> Iterable[Sequence[str]]:
    states = compared.states
    yield "state", *(colour_state(state.state) for state in states)
    yield "submitted", *(format_age(state.created, now) for state in states)
    yield "took", *(format_duration(state.seconds(now)) for state in states)
    if any(map(format_cost, states)):
        yield "cost", *(format_cost(state) for state in states)
    for name, values in compared.settings.items():
        yield name, *("" if value is None else _cell(value) for value in values)
    for name in compared.metrics:
        series = [each.get(name) for each in compared.series]
        yield name, *("" if each is None else format_number(each.last[0]) for each in series)
        yield "  best", *("" if each is None else best_text(each) for each in series)
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
