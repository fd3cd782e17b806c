"""The command `logs`: the lines that a run or a sweep has printed."""

from __future__ import annotations

import sys
from typing import Any

import click

from cloudtrain.api.run import Run
from cloudtrain.cli.chosen_run import chosen
from cloudtrain.cli.follow import ProgressDisplay
from cloudtrain.cli.options import data_dir, json_option, last_run_argument, parse_since
from cloudtrain.cli.output import LogPrinter, command, print_message
from cloudtrain.runs.state import RunState


@click.command("logs", epilog="Example:\n\n  cloudtrain logs -f --rank 0 --grep loss")
@last_run_argument
@click.option(
    "--follow",
    "-f",
    "following",
    is_flag=True,
    help="Follow until the run or the sweep has ended.",
)
@click.option("--node", type=click.IntRange(0), metavar="N", help="Only this node.")
@click.option("--rank", type=click.IntRange(0), metavar="R", help="Only this rank.")
@click.option(
    "--tail", type=click.IntRange(0), metavar="N", help="Only the last N lines (before following)."
)
@click.option(
    "--since",
    metavar="T",
    help="Only lines younger than a duration (10 min) or after a time (2026-11-21T10:00).",
)
@click.option("--grep", metavar="RE", help="Only lines that match this regular expression.")
@click.option(
    "--metrics/--no-metrics", default=True, help="Also the lines of metrics and progress (default)."
)
@json_option
@data_dir
def logs_command(
    folder: str | None,
    /,
    run: str | None,
    following: bool,
    since: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Print the log lines of RUN (default: the newest of this folder).

    By default of all nodes and ranks. The lines of a sweep begin with the number of their trial.
    """
    since_time = None
    if since is not None:
        since_time = parse_since(since)

    target = chosen(run, folder)
    if not isinstance(target, Run):
        from cloudtrain.cli.sweep_view import print_logs

        print_logs(target, following=following, as_json=as_json, since=since_time, **options)
        return
    display = ProgressDisplay(enabled=following and not as_json and sys.stdout.isatty())
    block = None
    with LogPrinter(as_json=as_json, names_source=options["rank"] is None) as printer:

        def wait(state: RunState) -> None:
            printer.flush()
            display.draw(state)

        try:
            blocks = target.log_blocks(follow=following, since=since_time, waiting=wait, **options)
            for block in blocks:
                display.clear()
                printer.print(block)
        except KeyboardInterrupt:
            display.clear()
            raise click.exceptions.Exit(130) from None
        display.clear()

    if block is not None:
        return

    filters = [since, *options.values()]
    if any(value is not None and value is not True for value in filters):
        print_message(f"no such lines; {command('logs', target.id)} shows all of them")
    else:
        print_message(_no_lines(target.cached_status()))


def _no_lines(state: RunState) -> str:
    if not state.has_ended:
        return "no lines yet"
    if state.ref is None:
        return f"{state.run_id} was never started: {state.reason}"
    return f"{state.run_id} {state.state} and printed nothing"
