"""The command `wait`: wait until a run has ended."""

from __future__ import annotations

import click

from cloudtrain.api.run import Run
from cloudtrain.cli.chosen_run import chosen
from cloudtrain.cli.follow import follow
from cloudtrain.cli.follow_sweep import follow_and_exit
from cloudtrain.cli.options import data_dir, json_option, last_run_argument
from cloudtrain.cli.output import print_json, print_message
from cloudtrain.cli.run_end import report_and_exit
from cloudtrain.errors import UsageError
from cloudtrain.units import parse_duration


@click.command("wait", epilog="Example:\n\n  cloudtrain wait && cloudtrain fetch")
@last_run_argument
@click.option(
    "--timeout", metavar="T", help="Stop waiting after this time, e.g. 10 min; the run continues."
)
@json_option
@data_dir
def wait_command(
    folder: str | None, /, run: str | None, timeout: str | None, as_json: bool
) -> None:
    """Wait until RUN (default: the newest of this folder) has ended.

    Its metrics are shown, and its exit code is returned.
    """
    seconds = None
    try:
        if timeout is not None:
            seconds = parse_duration(timeout)
    except ValueError as error:
        raise UsageError(f"--timeout: {error}") from None

    target = chosen(run, folder)
    if not isinstance(target, Run):
        follow_and_exit(target, as_json, timeout=seconds)

    try:
        state = follow(
            target, tail=0, timeout=seconds, output=False, on=f"{target.id} keeps running"
        )
    except TimeoutError as error:
        print_message(str(error))
        if as_json:
            print_json(target.status().to_json())
        raise click.exceptions.Exit(5) from None
    report_and_exit(target, state, as_json)
