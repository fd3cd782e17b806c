"""`logs` of a sweep: the lines of all of its trials, each with the trial's number in front, or those of one trial."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import click

from cloudtrain.cli.output import command, count, print_message
from cloudtrain.cli.run import line_as_json
from cloudtrain.cli.terminal import write_json, write_log
from cloudtrain.errors import UsageError
from cloudtrain.runs.logs import LogLine
from cloudtrain.sweeps.state import Trial
from cloudtrain.sweeps.sweep import Sweep

TrialLine = tuple[int, LogLine]


def print_logs(sweep: Sweep, *, trial: int | None, following: bool, as_json: bool, **options: Any) -> None:
    """Print the lines of a sweep's trials, oldest first; of one alone, until it has ended where that is `following`.

    `options` are those of `Run.logs`. UsageError for a trial that there is not.
    """
    shown = False
    try:
        for number, line in _lines(sweep, trial, following, options):
            shown = True
            if as_json:
                write_json({"trial": number, **line_as_json(line)}, indent=None)
            else:
                source = "" if options["rank"] is not None else f"[{line.source or f'node {line.node}'}] "
                write_log(f"[trial {number}] {source}", line.text)
    except KeyboardInterrupt:
        raise click.exceptions.Exit(130) from None
    if not shown:
        print_message(f"no such lines; {command('status', sweep.id)} shows the trials")


def _lines(sweep: Sweep, trial: int | None, following: bool, options: dict[str, Any]) -> Iterable[TrialLine]:
    trials = sweep.status().trials
    if trial is None:
        if following:
            hint = f"{command('attach', sweep.id)} follows the sweep; --trial 3 -f the lines of one trial"
            raise UsageError("-f follows the lines of one run, and a sweep has many", hint=hint)
        streams = [_lines_of(sweep, each, False, options) for each in trials]
        merged = heapq.merge(*streams, key=lambda found: found[1].time)
        return merged if options["tail"] is None else deque(merged, maxlen=options["tail"])
    if trial >= len(trials):
        raise UsageError(f"sweep {sweep.id} has no trial {trial}", hint=f"it has {count(len(trials), 'trial')}, from 0")
    lines = _lines_of(sweep, trials[trial], following, options)
    return lines if following or options["tail"] is None else deque(lines, maxlen=options["tail"])


def _lines_of(sweep: Sweep, trial: Trial, following: bool, options: dict[str, Any]) -> Iterator[TrialLine]:
    """The lines of all runs of a trial: a trial that was retried, or promoted, has several."""
    runs = sweep.runs_of(trial)
    for run in runs:
        for line in run.logs(follow=following and run is runs[-1], **options):
            yield trial.number, line
