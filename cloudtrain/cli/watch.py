"""The commands that watch runs: attach and top."""

from __future__ import annotations

import shutil
import sys
import time
from collections import deque
from contextlib import suppress
from typing import Any

import click

from cloudtrain.cli.chosen_run import chosen, chosen_run
from cloudtrain.cli.follow import follow
from cloudtrain.cli.options import data_dir, json_option, last_run_argument
from cloudtrain.cli.output import print_output
from cloudtrain.cli.report import report_and_exit
from cloudtrain.cli.terminal import full_screen
from cloudtrain.cli.top_view import screen
from cloudtrain.runs.logs import LogLine
from cloudtrain.runs.record import Terms, terms_of
from cloudtrain.submission.run import Run
from cloudtrain.submission.updates import Update

DRAW_SECONDS = 0.5
MAX_LOG_LINES = 200
DEFAULT_HEIGHT = 40
"""Lines of the screen without a terminal."""


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
        from cloudtrain.cli.sweep import follow_and_exit

        follow_and_exit(target, as_json)
    state = target.status()
    if not state.has_ended:
        state = follow(target, tail=tail)
    report_and_exit(target, state, as_json)


@click.command("top", epilog="Example:\n\n  cloudtrain top")
@last_run_argument
@data_dir
def top_command(folder: str | None, /, run: str | None) -> None:
    """Show RUN (default: the newest of this folder) on one screen, until it has ended.

    It shows curves, throughput, the time left and its forecast, usage of each node, GPU and rank,
    the cost until now, and the last lines of the log. Ctrl-C closes it. Without a terminal the screen
    is printed once.
    """
    target = chosen_run(run, folder)
    terms = terms_of(target.folder)
    lines: deque[LogLine] = deque(maxlen=MAX_LOG_LINES)
    if not sys.stdout.isatty() or target.status().has_ended:
        update = next(target.watch(tail=MAX_LOG_LINES))
        print_output("\n".join(_frame(update, update.lines, terms, DEFAULT_HEIGHT)))
        return
    with suppress(KeyboardInterrupt):
        _watch(target, lines, terms)
    print_output(
        "\n".join(_frame(Update(target.cached_status(), [], []), lines, terms, DEFAULT_HEIGHT))
    )


def _watch(run: Run, lines: deque[LogLine], terms: Terms) -> None:
    drawn_at = 0.0
    with full_screen() as draw:
        for update in run.watch(tail=MAX_LOG_LINES):
            lines.extend(update.lines)
            if time.monotonic() - drawn_at >= DRAW_SECONDS:
                drawn_at = time.monotonic()
                draw(_frame(update, lines, terms, shutil.get_terminal_size().lines - 1))


def _frame(update: Update, lines: Any, terms: Terms, height: int) -> list[str]:
    width = shutil.get_terminal_size((100, DEFAULT_HEIGHT)).columns
    printed = [line for line in lines if not line.kind]
    found = screen(update.state, printed, terms, now=time.time(), width=width, height=height)
    return [*found, f"asking again: {update.last_error}"[:width]] if update.last_error else found
