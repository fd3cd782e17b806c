"""The command `compare`: runs side by side."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from cloudtrain.api.compare import Compared, compare
from cloudtrain.api.run import Run
from cloudtrain.cli.best_value import best_text
from cloudtrain.cli.chosen_run import chosen
from cloudtrain.cli.options import data_dir, json_option, runs_argument
from cloudtrain.cli.output import colour_state, format_age, print_json, print_output, table
from cloudtrain.cli.run_end import format_cost
from cloudtrain.errors import UsageError
from cloudtrain.runs.state import RunState
from cloudtrain.units import format_duration, format_number

MAX_CELL = 40
"""Maximum characters of a setting; JSON has all of them."""


@click.command("compare", epilog="Example:\n\n  cloudtrain compare digits-ab12 digits-cd34")
@runs_argument
@json_option
@data_dir
def compare_command(folder: str | None, /, runs: tuple[str, ...], as_json: bool) -> None:
    """Show RUNs side by side: settings that differ, metrics, time and cost.

    For a sweep, show all of its trials.
    """
    compared_runs: list[Run] = []
    for name in runs:
        compared_runs += _runs_of(name, folder)

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
        yield name, *map(_setting_cell, values)

    for name in compared.metrics:
        latest = []
        best = []
        for metrics in compared.series:
            series = metrics.get(name)
            latest.append(format_number(series.last[0]) if series else "")
            best.append(best_text(series) if series else "")

        yield name, *latest
        yield "  best", *best

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
    if len(text) <= MAX_CELL:
        return text

    return f"{text[: MAX_CELL - 1]}…"
