"""The command `list`: all runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from cloudtrain.api.lookup import NOT_ASKED, import_remote_runs, list_runs
from cloudtrain.cli.options import data_dir, json_option, profile_option, provider_option
from cloudtrain.cli.output import (
    colour_state,
    command,
    format_age,
    print_json,
    print_message,
    print_output,
    table,
)
from cloudtrain.declaration import rehearsed_by
from cloudtrain.errors import StorageError
from cloudtrain.runs.state import ENDED, STATES
from cloudtrain.runs.store import sweep_ids, sweep_of_run
from cloudtrain.settings import data_folder
from cloudtrain.units import format_duration

DEFAULT_LIMIT = 20


@click.command("list", epilog="Example:\n\n  cloudtrain list --state failed --json")
@click.option(
    "--all",
    "-a",
    "everything",
    is_flag=True,
    help=f"All runs, not only the newest {DEFAULT_LIMIT}.",
)
@provider_option
@profile_option
@click.option("--state", type=click.Choice((*STATES, "damaged")), help="Only runs in this state.")
@json_option
@data_dir
def list_command(
    folder: str | None, /, everything: bool, state: str | None, provider: str | None, as_json: bool
) -> None:
    """List runs and sweeps, the newest first.

    For runs that have not ended the state comes from the cloud. With --provider aws or azure the list includes
    runs of other machines.

    A sweep is one line: `cloudtrain status SWEEP` shows its trials, and --all lists them as runs.
    """
    if provider is not None:
        try:
            import_remote_runs(provider, data_dir=folder, everything=everything)
        except StorageError as error:
            print_message(f"note: new runs of other machines are not listed: {error.message}")

    runs = [
        run
        for run in list_runs(data_dir=folder, provider=provider)
        if state in (None, run["state"])
    ]
    if as_json:
        print_json(runs)
        return

    if not runs:
        print_message(
            f"no runs{f' in state {state}' if state else ''} yet; {command('submit')} starts one"
        )
        return

    if not everything:
        runs = _with_sweeps(runs, folder)

    if everything:
        shown = runs
    else:
        shown = runs[:DEFAULT_LIMIT]

    print_output(_table_of(shown))

    for run in shown:
        if "ended_because" in run:
            print_message(f"{run['run']}: {run['ended_because']}")

    for reason in dict.fromkeys(run["reason"] for run in shown if _is_as_last_seen(run)):
        print_message(f"shown as last seen, {reason}")

    now = time.time()
    for run in runs:
        if (run["kept_until"] or 0) > now:
            print_message(f"{run['run']}: {_kept_machines(run['run'], run['kept_until'] - now)}")

    if len(shown) < len(runs):
        print_message(f"({len(runs) - len(shown)} older ones: {command('list', '--all')})")


def _with_sweeps(runs: list[dict[str, Any]], data_dir: str | None) -> list[dict[str, Any]]:
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
    lines = [
        as_listed(listed.status())
        for listed in list_sweeps(data_dir=data_dir)
        if listed.id in shown
    ]
    rows = [run for run in runs if run["run"] not in trials] + lines

    return sorted(rows, key=lambda run: -run["created"])


def _table_of(runs: Sequence[dict[str, Any]]) -> str:
    """Return a line for each run, with its owner if some are not yours."""
    now = time.time()
    rows = []
    foreign = any(run["owner"] for run in runs)

    for run in runs:
        begin = run["started"] or run["created"]
        if _is_as_last_seen(run):
            took = ""
        else:
            took = format_duration(max(0.0, (run["ended"] or now) - begin))

        owner = (run["owner"] or "you",) if foreign else ()
        rows.append(
            (
                run["run"],
                _format_state(run),
                *owner,
                run["provider"] + (f" as {run['contract']}" if _is_rehearsal(run) else ""),
                run.get("size") or f"{run['nodes']}x{run['processes']}",
                took,
                format_age(run["created"], now) if run["created"] else "",
            )
        )

    return table(
        rows,
        (
            "RUN",
            "STATE",
            *(("OWNER",) if foreign else ()),
            "PROVIDER",
            "NODES",
            "TOOK",
            "SUBMITTED",
        ),
    )


def _format_state(run: dict[str, Any]) -> str:
    """Return the state in a list: `not started` if a submit was refused."""
    never = run["state"] == "failed" and not run["submitted"]
    if never:
        return "not started"

    return colour_state(run["state"])


def _is_as_last_seen(run: dict[str, Any]) -> bool:
    """Return whether the provider was not asked: the run may have ended since."""
    return run["state"] not in ENDED and str(run.get("reason", "")).startswith(NOT_ASKED)


def _kept_machines(run_id: str, seconds: float) -> str:
    """Return how long machines are kept and billed, and how to release them."""
    release = command("stop", run_id, "--release")
    return (
        f"its machines are kept, and billed, for {format_duration(seconds)} more; {release} gives"
        " them back"
    )


def _is_rehearsal(run: dict[str, Any]) -> bool:
    return rehearsed_by(run["provider"], run["contract"]) is not None
