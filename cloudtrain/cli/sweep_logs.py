"""The output of `logs` for a sweep: lines of all trials, or of one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from cloudtrain.cli.output import command, count, print_log_line, print_message
from cloudtrain.errors import UsageError
from cloudtrain.sweeps.logs import SweepLogs, TrialLine

if TYPE_CHECKING:
    from cloudtrain.sweeps.sweep import Sweep


def print_logs(
    sweep: Sweep, *, trial: int | None, following: bool, as_json: bool, **options: Any
) -> None:
    """Print the lines of a sweep's trials, the oldest first.

    `following`: also print new lines until its end. `trial`: only lines of that trial. `options`:
    those of `Run.logs`. Raise UsageError for a trial that does not exist.
    """
    shown = False
    try:
        for number, line in _lines(sweep, trial, following, **options):
            shown = True
            print_log_line(
                line, as_json=as_json, names_source=options["rank"] is None, trial=number
            )
    except KeyboardInterrupt:
        if following and not sweep.has_ended:
            print_message(f"{sweep.id} keeps running; {command('stop', sweep.id)} stops it")
        raise click.exceptions.Exit(130) from None
    if not shown:
        print_message(f"no such lines; {command('status', sweep.id)} shows the trials")


def _lines(
    sweep: Sweep, trial: int | None, following: bool, *, tail: int | None, **filters: Any
) -> Iterator[TrialLine]:
    state = sweep.status()
    if (
        trial is not None
        and trial >= len(state.trials)
        and (sweep.has_ended or trial >= state.wanted)
    ):
        hint = f"it has {count(len(state.trials), 'trial')}, from 0"
        raise UsageError(f"sweep {sweep.id} has no trial {trial}", hint=hint)
    logs = SweepLogs(sweep, trial, **filters)
    yield from logs.stored(tail=tail, retry=following)
    if following:
        yield from logs.fresh()
