"""The command `compare`: runs side by side."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from cloudtrain.api.compare import Compared, compare
from cloudtrain.api.run import Run
from cloudtrain.cli.best_value import best_text
from cloudtrain.cli.chosen_run import chosen, newest_of_job
from cloudtrain.cli.options import data_dir, json_option, runs_argument
from cloudtrain.cli.output import (
    colour_state,
    format_age,
    print_json,
    print_output,
    shortened,
    table,
    text_width,
)
from cloudtrain.cli.run_end import format_cost
from cloudtrain.errors import UsageError
from cloudtrain.runs.state import RunState
from cloudtrain.units import format_duration, format_number

if TYPE_CHECKING:
    from cloudtrain.sweeps.sweep import Sweep

MAX_COLUMNS = 4
"""Most runs with a column each; more of them are rows."""
DEFAULT_RUNS = 4
"""Runs that are compared if none is named."""
MAX_CELL = 40
"""Maximum characters of a setting; JSON has all of them."""
BEST = "  best"
"""Label below a metric."""
MIN_CELL = 12
"""Minimum width of a column beside the names of runs."""


@click.command("compare", epilog="Example:\n\n  cloudtrain compare digits-ab12 digits-cd34")
@runs_argument
@json_option
@data_dir
def compare_command(folder: str | None, /, runs: tuple[str, ...], as_json: bool) -> None:
    """Show RUNs side by side: settings that differ, metrics, time and cost.

    For a sweep, show all of its trials. Without RUN: the newest sweep of this folder, or the newest
    runs of its job.
    """
    compared_runs: list[Run] = []
    for target in [chosen(name, folder) for name in runs] or newest_of_job(folder, DEFAULT_RUNS):
        compared_runs += _runs_of(target)

    if len({run.id for run in compared_runs}) < 2:
        raise UsageError("two or more runs are compared", hint="cloudtrain list shows them")

    for run in compared_runs:
        run.last_known()

    compared = compare(compared_runs)
    if as_json:
        print_json(compared.to_json())
    else:
        print_output(_tables(compared, shutil.get_terminal_size().columns))


def _runs_of(target: Run | Sweep) -> list[Run]:
    """Return the run, or the latest run of each trial of a sweep."""
    if isinstance(target, Run):
        return [target]
    return [target.run_of(trial) for trial in target.status().trials if trial.run]


def _tables(compared: Compared, width: int) -> str:
    """Return a column for each run, or a row if there are many runs or the columns are too wide.

    Rows that are too wide are tables below each other, each with the names of the runs.
    """
    rows = list(_rows(compared, time.time()))
    if len(compared.runs) <= MAX_COLUMNS:
        text = table(rows, ("", *compared.runs))
        if _width(text) <= width:
            return text

    names = ("RUN", *compared.runs)
    room = max(MIN_CELL, width - max(map(len, names)) - 2)
    tables: list[str] = []
    shown: list[Sequence[str]] = [names]
    metric = ""
    for label, *cells in rows:
        name = f"best {metric}" if label == BEST else label
        metric = label
        row = (name, *cells)
        column = [cell if text_width(cell) <= room else shortened(cell, room) for cell in row]
        if len(shown) > 1 and _width(_turned([*shown, column])) > width:
            tables.append(_turned(shown))
            shown = [names]

        shown.append(column)

    return "\n\n".join([*tables, _turned(shown)])


def _turned(columns: Sequence[Sequence[str]]) -> str:
    """Return a table of these columns, each with its header first."""
    header, *rows = zip(*columns, strict=True)
    return table(rows, header)


def _width(text: str) -> int:
    return max(map(text_width, text.splitlines()))


def _rows(compared: Compared, timestamp: float) -> Iterable[Sequence[str]]:
    states = compared.states
    yield "state", *(colour_state(state.state) for state in states)
    yield "submitted", *(format_age(state.created, timestamp) for state in states)
    yield "took", *(format_duration(state.seconds(timestamp)) for state in states)

    if any(map(format_cost, states)):
        yield "cost", *(format_cost(state) for state in states)

    for name, values in compared.settings.items():
        yield shortened(name, MAX_CELL), *map(_setting_cell, values)

    for name in compared.metrics:
        latest = []
        best = []
        for state in states:
            series = state.series.get(name)
            latest.append(format_number(series.last[0]) if series else "")
            best.append(best_text(series) if series else "")

        yield shortened(name, MAX_CELL), *latest
        yield BEST, *best

    if any(_rate(state) for state in states):
        yield "samples/s", *map(_rate, states)


def _rate(state: RunState) -> str:
    rate = state.progress.samples_per_s if state.progress else None
    if rate is None:
        return ""

    return format_number(rate)


def _setting_cell(value: Any) -> str:
    """Return the text of a setting; empty if the run does not have it."""
    if value is None:
        return ""

    if isinstance(value, list):
        text = ", ".join(map(str, value))
    elif isinstance(value, Mapping):
        text = ", ".join(f"{key}: {item}" for key, item in value.items())
    else:
        text = str(value)

    return shortened(text, MAX_CELL)
