"""The table of runs that `list` and `status` print."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from cloudtrain.api.listing import NOT_ASKED
from cloudtrain.api.selected_runs import metric_of, value_of
from cloudtrain.cli.output import (
    MAX_NAME,
    colour_state,
    command,
    format_age,
    shortened,
    table,
    text_width,
)
from cloudtrain.cli.terminal import columns
from cloudtrain.declaration import rehearsed_by
from cloudtrain.runs.state_names import ENDED
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
    header = ["RUN", "STATE", "PROVIDER", "NODES", "TOOK", "SIZE", "SUBMITTED"]
    rows = []
    for run in runs:
        took = ""
        if not is_as_last_seen(run):
            begin = run["started"] or run["created"]
            took = format_duration(max(0.0, (run["ended"] or now) - begin))

        provider = run["provider"]
        if is_rehearsal(run):
            provider += f" as {run['contract']}"

        submitted = ""
        if run["created"]:
            submitted = format_age(run["created"], now)

        nodes = run.get("size") or f"{run['nodes']}x{run['processes']}"
        size = format_size(run["bytes"])
        rows.append([run["run"], _format_state(run), provider, nodes, took, size, submitted])

    if any(run["owner"] for run in runs):
        header.insert(2, "OWNER")
        for run, row in zip(runs, rows, strict=True):
            row.insert(2, run["owner"] or "you")

    if any(run["metrics"] for run in runs):
        header.append("METRIC")
        for run, row in zip(runs, rows, strict=True):
            row.append(_metric_cell(run, metric))

    differing = _differing_arguments(runs)
    if not any(differing):
        return table(rows, header)

    room = MAX_ARGUMENTS
    if terminal := columns(sys.stdout):
        width = max(map(text_width, table(rows, header).splitlines()))
        room = max(MIN_ARGUMENTS, terminal - width - 2)

    header.append("ARGUMENTS")
    for text, row in zip(differing, rows, strict=True):
        row.append(shortened(text, room))

    return table(rows, header)


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


def _format_state(run: dict[str, Any]) -> str:
    """Return the state in a list: `not started` if a submit was refused."""
    never = run["state"] == "failed" and not run["submitted"]
    if never:
        return "not started"

    return colour_state(run["state"])


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
