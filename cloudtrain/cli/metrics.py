"""The command `metrics`: the numbers that a run has reported."""

from __future__ import annotations

from collections.abc import Iterable

import click

from cloudtrain.cli.best_value import best_text
from cloudtrain.cli.chosen_run import chosen_run
from cloudtrain.cli.csv_table import csv_table
from cloudtrain.cli.options import data_dir, json_option, last_run_argument
from cloudtrain.cli.output import print_json, print_message, print_output, sparkline, table
from cloudtrain.cli.terminal import write_csv
from cloudtrain.errors import UsageError
from cloudtrain.runs.metric_points import MetricPoint
from cloudtrain.units import format_number


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
        state = shown_run.cached_status()
        rows = []
        for name, series in state.series.items():
            curve = sparkline(state.curves[name].values)
            first = format_number(series.first[0])
            last = format_number(series.last[0])
            rows.append((name, first, curve, last, best_text(series)))

        print_output(table(rows, ("METRIC", "FIRST", "", "LAST", "BEST")))


def _csv(points: Iterable[MetricPoint]) -> str:
    """Return a header, and one line per report."""
    points = list(points)
    names: dict[str, None] = {}
    for point in points:
        names |= dict.fromkeys(point.values)

    rows: list[list[object]] = [["time", "step", "epoch", *names]]
    for point in points:
        rows.append([point.time, point.step, point.epoch, *map(point.values.get, names)])

    return csv_table(rows)
