"""The command `rm`: remove runs from this machine."""

from __future__ import annotations

import click

from cloudtrain.api.removal import removable, with_remote
from cloudtrain.api.run import Run
from cloudtrain.cli.chosen_run import chosen
from cloudtrain.cli.options import data_dir, json_option, runs_argument
from cloudtrain.cli.removal_view import (
    carry_out,
    removal_options,
    unended_sweeps,
)
from cloudtrain.errors import UsageError
from cloudtrain.runs.store import RunStore
from cloudtrain.settings import data_folder


@click.command("rm", epilog="Example:\n\n  cloudtrain rm digits-k2x9")
@runs_argument
@removal_options
@json_option
@data_dir
def rm_command(
    folder: str | None, /, runs: tuple[str, ...], remote: bool, as_json: bool, **how: bool
) -> None:
    """Remove RUNs, which have ended, from this machine: logs, model, output and checkpoints.

    A sweep goes with its trials. A run that another one continues from, or that any process watches
    or reads, stays. The cloud keeps its job, and its files unless --remote removes the folder of
    the run. Your own places, sources and uploaded inputs stay there: the cloud's tools, or rules
    of the account, delete these. `cloudtrain cost` still counts the run.
    """
    if not runs:
        raise UsageError("name the runs that may go", hint="cloudtrain prune removes old ones")

    names = []
    for name in runs:
        target = chosen(name, folder)
        names.append(target.id)
        if isinstance(target, Run):
            target.last_known()  # the cloud may know its end

    store = RunStore(data_folder(folder))
    things = removable(store, names, unended_sweeps(store))
    if remote:
        things = with_remote(store, things)

    carry_out(store, things, as_json=as_json, **how)
