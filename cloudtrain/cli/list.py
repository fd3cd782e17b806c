"""The command `list`: all runs."""

from __future__ import annotations

import time

import click

from cloudtrain.api.lookup import import_remote_runs, list_runs
from cloudtrain.cli.options import data_dir, json_option, profile_option, provider_option
from cloudtrain.cli.output import command, print_json, print_message, print_output
from cloudtrain.cli.runs_table import is_as_last_seen, kept_machines, table_of, with_sweeps
from cloudtrain.errors import StorageError
from cloudtrain.runs.state import STATES

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

    runs = list_runs(data_dir=folder, provider=provider)
    if state is not None:
        runs = [run for run in runs if run["state"] == state]
    if as_json:
        print_json(runs)
        return

    if not runs:
        which = ""
        if state is not None:
            which = f" in state {state}"

        print_message(f"no runs{which} yet; {command('submit')} starts one")
        return

    if not everything:
        runs = with_sweeps(runs, folder)

    if everything:
        shown = runs
    else:
        shown = runs[:DEFAULT_LIMIT]

    print_output(table_of(shown))

    for run in shown:
        if "ended_because" in run:
            print_message(f"{run['run']}: {run['ended_because']}")

    for reason in dict.fromkeys(run["reason"] for run in shown if is_as_last_seen(run)):
        print_message(f"shown as last seen, {reason}")

    now = time.time()
    for run in runs:
        if (run["kept_until"] or 0) > now:
            print_message(f"{run['run']}: {kept_machines(run['run'], run['kept_until'] - now)}")

    if len(shown) < len(runs):
        print_message(f"({len(runs) - len(shown)} older ones: {command('list', '--all')})")
