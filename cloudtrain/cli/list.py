"""The command `list`: all runs."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import click

from cloudtrain.api.listing import list_runs, newest_runs
from cloudtrain.api.selected_runs import RunFilter, best_first, metric_of
from cloudtrain.cli.options import (
    data_dir,
    json_option,
    parse_since,
    profile_option,
    provider_option,
)
from cloudtrain.cli.output import command, print_json, print_message, print_output
from cloudtrain.cli.runs_table import is_as_last_seen, kept_machines, table_of, with_sweeps
from cloudtrain.errors import StorageError, UsageError
from cloudtrain.runs.state_names import STATES
from cloudtrain.runs.store import sweep_ids
from cloudtrain.settings import data_folder

DEFAULT_LIMIT = 20


@click.command(
    "list", epilog="Example:\n\n  cloudtrain list --name digits --since 7d --sort val_accuracy"
)
@click.option(
    "--all",
    "-a",
    "everything",
    is_flag=True,
    help=f"All runs, not only the first {DEFAULT_LIMIT}.",
)
@provider_option
@profile_option
@click.option("--state", type=click.Choice((*STATES, "damaged")), help="Only runs in this state.")
@click.option("--name", default="*", help="Only runs of this job; digits* is a pattern.")
@click.option("--since", metavar="T", help="Only runs of the last 7d, or after 2026-11-21.")
@click.option(
    "--tag",
    "tags",
    multiple=True,
    metavar="KEY[=VALUE]",
    help="Only runs with this tag; repeatable.",
)
@click.option("--sort", metavar="METRIC", help="The best run by this metric first.")
@click.option(
    "--best", is_flag=True, help="Only the best run by --sort (default: the newest run's metric)."
)
@json_option
@data_dir
def list_command(
    folder: str | None,
    /,
    everything: bool,
    state: str | None,
    provider: str | None,
    since: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """List runs and sweeps, the newest first.

    For runs that have not ended the state comes from the cloud. With --provider aws or azure the list includes
    runs of other machines.

    METRIC is the best value, or the last one of a metric whose name does not tell which is better. ARGUMENTS are
    those that differ between runs of one job; --json has all.

    A sweep is one line: `cloudtrain status SWEEP` shows its trials, and --all lists them as runs.
    """
    only = RunFilter(name=options["name"], tags=options["tags"])
    if since is not None:
        only = replace(only, since=parse_since(since))
    if provider is not None:
        from cloudtrain.api.lookup import import_remote_runs  # slow to import

        try:
            import_remote_runs(provider, data_dir=folder, everything=everything)
        except StorageError as error:
            print_message(f"note: new runs of other machines are not listed: {error.message}")

    chooses = options["sort"] or options["best"] or provider or state or only != RunFilter()
    left_out = 0
    if everything or as_json or chooses or sweep_ids(data_folder(folder)):
        runs = list_runs(data_dir=folder, provider=provider, only=only)
    else:
        runs, left_out = newest_runs(DEFAULT_LIMIT, folder)

    if state is not None:
        runs = [run for run in runs if run["state"] == state]

    if not runs and not as_json:
        message = "no runs yet"
        if state is not None or only != RunFilter():
            message = "no such runs"

        print_message(f"{message}; {command('submit')} starts one")
        return

    if not everything and not as_json:
        runs = with_sweeps(runs, folder)

    metric = options["sort"] or ""
    if options["best"] and not metric:
        metric = next(filter(None, map(metric_of, runs)), "")
    if runs and (metric or options["best"]):
        runs = best_first(runs, metric)
    if options["best"]:
        runs = _best(runs, metric)
    if as_json:
        print_json(runs)
        return

    if everything:
        shown = runs
    else:
        shown = runs[:DEFAULT_LIMIT]

    print_output(table_of(shown, metric))

    for run in shown:
        if "ended_because" in run:
            print_message(f"{run['run']}: {run['ended_because']}")

    for reason in dict.fromkeys(run["reason"] for run in shown if is_as_last_seen(run)):
        print_message(f"shown as last seen, {reason}")

    now = time.time()
    for run in runs:
        if (run["kept_until"] or 0) > now:
            print_message(f"{run['run']}: {kept_machines(run['run'], run['kept_until'] - now)}")

    left_out += len(runs) - len(shown)
    if left_out:
        print_message(f"({left_out} more: {command('list', '--all')})")


def _best(runs: list[dict[str, Any]], metric: str) -> list[dict[str, Any]]:
    """Return the first of sorted runs. Raise UsageError if its metric may be the worst."""
    if runs and metric not in runs[0]["best"]:
        raise UsageError(
            f"whether a low {metric} is better is not known from its name",
            hint=f"cloudtrain list --sort {metric} shows the highest first",
        )

    return runs[:1]
