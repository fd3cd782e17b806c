"""The command `prune`: remove old runs, and unused sources and environments."""

from __future__ import annotations

import click

from cloudtrain.api.listing import list_runs
from cloudtrain.api.removal import prunable, with_remote
from cloudtrain.cli.options import data_dir, json_option
from cloudtrain.cli.output import print_message
from cloudtrain.cli.removal_view import (
    carry_out,
    removal_options,
    unended_sweeps,
)
from cloudtrain.errors import UsageError
from cloudtrain.runs.store import RunStore
from cloudtrain.settings import data_folder
from cloudtrain.units import parse_duration

DEFAULT_OLDER = "30d"
DEFAULT_KEEP = 3


@click.command("prune", epilog="Example:\n\n  cloudtrain prune --older 7d --keep 3 --dry-run")
@click.option(
    "--older",
    metavar="TIME",
    default=DEFAULT_OLDER,
    show_default=True,
    help="Only runs that ended longer ago.",
)
@click.option(
    "--keep",
    metavar="N",
    type=click.IntRange(0),
    default=DEFAULT_KEEP,
    show_default=True,
    help="Keep the newest N runs and sweeps of each job.",
)
@removal_options
@json_option
@data_dir
def prune_command(
    folder: str | None, /, older: str, keep: int, remote: bool, as_json: bool, **how: bool
) -> None:
    """Remove old runs and sweeps from this machine, unused sources and environments.

    A run that still runs, that another one continues from, or that a process watches or reads, stays.
    Clouds keep their jobs, and their files unless --remote removes the folders of these runs.
    """
    try:
        seconds = parse_duration(older)
    except ValueError as error:
        raise UsageError(f"--older: {error}", hint="a duration such as 7d") from None

    store = RunStore(data_folder(folder))
    things = prunable(
        store, list_runs(data_dir=folder), unended_sweeps(store), older=seconds, keep=keep
    )
    if remote:
        things = with_remote(store, things, print_message)

    carry_out(store, things, as_json=as_json, **how)
