"""The command `attach`: follow a run that was started before."""

from __future__ import annotations

import click

from cloudtrain.api.run import Run
from cloudtrain.cli.chosen_run import chosen
from cloudtrain.cli.follow import follow
from cloudtrain.cli.follow_sweep import follow_and_exit
from cloudtrain.cli.options import data_dir, json_option, last_run_argument
from cloudtrain.cli.run_end import report_and_exit


@click.command("attach", epilog="Example:\n\n  cloudtrain attach")
@last_run_argument
@click.option(
    "--tail",
    type=click.IntRange(0),
    default=20,
    help="Show the last N earlier lines (default 20).",
)
@json_option
@data_dir
def attach_command(folder: str | None, /, run: str | None, tail: int, as_json: bool) -> None:
    """Follow RUN (default: the newest of this folder) as `submit` does, until it has ended.

    The exit code of the run is returned. For a sweep, all trials are followed. Ctrl-C leaves it
    running.
    """
    target = chosen(run, folder)
    if not isinstance(target, Run):
        follow_and_exit(target, as_json)

    state = target.status()
    if not state.has_ended:
        state = follow(target, tail=tail)

    report_and_exit(target, state, as_json)
