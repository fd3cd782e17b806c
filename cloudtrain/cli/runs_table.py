"""The table of runs that `list` and `status` print."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from cloudtrain.api.selected_runs import metric_of, value_of
from cloudtrain.cli.output import (
    MAX_NAME,
    colour_state,
    command,
    format_age,
    shortened,
    table_of_columns,
    text_width,
)
from cloudtrain.cli.terminal import columns as terminal_columns
from cloudtrain.declaration import rehearsed_by
from cloudtrain.runs.state_names import ENDED, NOT_ASKED
from cloudtrain.runs.store import sweep_ids, sweep_of_run
from cloudtrain.settings import data_folder
from cloudtrain.units import format_duration, format_number
from cloudtrain_wire.sizes import format_size

MIN_ARGUMENTS = 20
"""Minimum width of the arguments on a terminal."""
MAX_ARGUMENTS = 80
"""Maximum width of the arguments elsewhere."""


def with_sweeps(runs: list[dict[str, Any]], data_dir: str | None) -> list[dict[str, Any]]:
    """Replace the trials of each sweep by one line."""
    folder = data_folder(data_dir)
    sweeps = sweep_ids(folder)
    trials = {}

    for run in runs:
        sweep = sweep_of_run(run["run"], sweeps)
        if sweep:
            trials[run["run"]] = sweep

    if not trials:
        return runs

    from cloudtrain.cli.sweep_view import as_listed
    from cloudtrain.sweeps.sweep import list_sweeps

    shown = {*trials.values()}
    rows = [run for run in runs if run["run"] not in trials]
    for listed in list_sweeps(data_dir=data_dir):
        if listed.id in shown:
            sizes = [run["bytes"] for run in runs if trials.get(run["run"]) == listed.id]
            rows.append(as_listed(listed.status()) | {"bytes": sum(sizes)})

    return sorted(rows, key=lambda run: -run["created"])


def table_of(runs: Sequence[dict[str, Any]], metric: str = "") -> str:
    """Return a line for each run, with its owner if some are not yours.

    The last columns are a metric (`metric`, or the one that judges the run), and the arguments that
    differ between runs of one job, as far as the terminal has room.
    """
    now = time.time()
    states = {(run["state"], run["submitted"]) for run in runs}
    state_cells = {each: _format_state(*each) for each in states}
    providers = {(run["provider"], run["contract"]) for run in runs}
    provider_cells = {each: _format_provider(*each) for each in providers}

    columns = [
        ["RUN", *(run["run"] for run in runs)],
        ["STATE", *(state_cells[run["state"], run["submitted"]] for run in runs)],
        ["PROVIDER", *(provider_cells[run["provider"], run["contract"]] for run in runs)],
        ["NODES", *(run.get("size") or f"{run['nodes']}x{run['processes']}" for run in runs)],
        ["TOOK", *(_duration_cell(run, now) for run in runs)],
        ["SIZE", *(format_size(run["bytes"]) for run in runs)],
        [
            "SUBMITTED",
            *((run["created"] and format_age(run["created"], now)) or "" for run in runs),
        ],
    ]
    if any(run["owner"] for run in runs):
        columns.insert(2, ["OWNER", *(run["owner"] or "you" for run in runs)])
    if any(run["metrics"] for run in runs):
        columns.append(["METRIC", *(_metric_cell(run, metric) for run in runs)])

    differing = _differing_arguments(runs)
    if any(differing):
        room = MAX_ARGUMENTS
        if terminal := terminal_columns(sys.stdout):
            width = max(map(text_width, table_of_columns(columns).splitlines()))
            room = max(MIN_ARGUMENTS, terminal - width - 2)

        columns.append(["ARGUMENTS", *(shortened(text, room) for text in differing)])

    return table_of_columns(columns)


def _duration_cell(run: dict[str, Any], now: float) -> str:
    """Return how long a run took, or has taken; "" if it may have ended since it was last seen."""
    if is_as_last_seen(run):
        return ""

    return format_duration(max(0.0, (run["ended"] or now) - (run["started"] or run["created"])))


def _format_provider(provider: str, contract: str) -> str:
    """Return a provider, and whose request it executes."""
    if rehearsed_by(provider, contract) is None:
        return provider

    return f"{provider} as {contract}"


def _metric_cell(run: Mapping[str, Any], metric: str) -> str:
    """Return `val_accuracy 0.93`: the best value, or the last one if no direction is known."""
    name = metric or metric_of(run)
    value = value_of(run, name)
    if value is None:
        return ""

    return f"{shortened(name, MAX_NAME)} {format_number(value)}"


def _differing_arguments(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return for each run `lr=0.1 epochs=3`: arguments that differ between runs of its name."""
    jobs: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        jobs.setdefault(run["name"], []).append(run["arguments"])

    differing: dict[str, set[str]] = {}
    for job, arguments in jobs.items():
        names = set().union(*arguments)
        differing[job] = {name for name in names if _differs(name, arguments)}

    texts = []
    for run in runs:
        names = differing[run["name"]]
        words = [f"{name}={value}" for name, value in run["arguments"].items() if name in names]
        texts.append(" ".join(words))

    return texts


def _differs(name: str, arguments: Sequence[Mapping[str, Any]]) -> bool:
    first = str(arguments[0].get(name))
    return any(str(each.get(name)) != first for each in arguments)


def _format_state(state: str, submitted: bool) -> str:
    """Return the state in a list: `not started` if a submit was refused."""
    if state == "failed" and not submitted:
        return "not started"

    return colour_state(state)


def is_as_last_seen(run: dict[str, Any]) -> bool:
    """Return whether the provider was not asked: the run may have ended since."""
    return run["state"] not in ENDED and str(run.get("reason", "")).startswith(NOT_ASKED)


def kept_machines(run_id: str, seconds: float) -> str:
    """Return how long machines are kept and billed, and how to release them."""
    release = command("stop", run_id, "--release")
    return (
        f"its machines are kept, and billed, for {format_duration(seconds)} more; {release} gives"
        " them back"
    )


def is_rehearsal(run: dict[str, Any]) -> bool:
    return rehearsed_by(run["provider"], run["contract"]) is not None
