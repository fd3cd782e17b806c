"""The command `stop`: stop a run or a sweep."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import click

from cloudtrain.api.run import Run
from cloudtrain.cli.chosen_run import chosen
from cloudtrain.cli.options import data_dir, json_option, last_run_argument
from cloudtrain.cli.output import print_json, print_message
from cloudtrain.cli.run_end import EXIT_CODES, report_and_exit

if TYPE_CHECKING:
    from cloudtrain.sweeps.sweep import Sweep


@click.command("stop", epilog="Example:\n\n  cloudtrain stop --release")
@last_run_argument
@click.option(
    "--release",
    is_flag=True,
    help="Also release machines that are kept after it (aws.keep_alive).",
)
@json_option
@data_dir
def stop_command(folder: str | None, /, run: str | None, as_json: bool, release: bool) -> None:
    """Stop RUN (default: the newest of this folder); `rerun` continues from its checkpoint.

    Every rank gets SIGTERM, then the grace period. The shared trainer stops all ranks at the same
    step and saves; your own program decides for itself. A sweep stops all running trials. If
    several runs or sweeps of this folder are running, name one. The exit code is 0 if the run was
    stopped.
    """
    target = chosen(run, folder)
    if not isinstance(target, Run):
        _stop_sweep(target, as_json)
    state = target.last_known()
    owner = ""
    if state.owner:
        owner = f", which {state.owner} has started"

    if state.has_ended:
        print_message(f"{target.id} had ended already")
    else:
        print_message(f"stopping {target.id}{owner} …")
    try:
        state = target.stop(note=lambda text: print_message(f"{target.id}: {text} …"))
    except KeyboardInterrupt:
        _say_whether_requested(target)
        raise
    if release:
        target.release()
        print_message(f"{target.id}: its machines are given back")
    report_and_exit(target, state, as_json, success="stopped")


def _stop_sweep(sweep: Sweep, as_json: bool) -> NoReturn:
    """Stop all trials of a sweep; exit with 0 if it was stopped."""
    from cloudtrain.cli.sweep_view import report, sweep_as_json

    if sweep.status().ended:
        print_message(f"{sweep.id} had ended already")
        raise click.exceptions.Exit(0)
    print_message(f"stopping {sweep.id}: no new trials start, and running trials are stopped …")
    state = sweep.stop()
    if as_json:
        print_json(sweep_as_json(state))
    report(sweep, state)
    if state.state == "stopped":
        raise click.exceptions.Exit(0)

    raise click.exceptions.Exit(EXIT_CODES[state.state])


def _say_whether_requested(target: Run) -> None:
    """Report after an interrupted `stop` whether the run was asked to stop."""
    state = target.cached_status()
    if state.has_ended:
        return
    if state.stop_requested:
        print_message(f"{target.id}: stop requested, it saves and ends; no longer waiting")
    else:
        print_message(f"{target.id}: interrupted before the answer; it may not stop")
    print_message(
        f"cloudtrain stop {target.id} waits until it has ended; cloudtrain status {target.id}"
    )
