"""Following a run: one progress line that redraws itself on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
import time

import click

from cloudtrain.api.run import Run, Update
from cloudtrain.cli.output import (
    command,
    format_number,
    print_message,
)
from cloudtrain.cli.terminal import bar, one_line, redraw, write_log
from cloudtrain.errors import CloudError
from cloudtrain.runs.events import Error, Metrics, Phase, Restarted, Resumed, StopRequested
from cloudtrain.runs.logs import LogLine
from cloudtrain.runs.state import RunState
from cloudtrain.units import format_duration


def follow(run: Run) -> RunState:
    """Show a run until it has ended, and return its state. Ctrl-C exits with 130 and leaves the run going on."""
    view = _View(run)
    try:
        for update in run.watch():
            view.show(update)
    except KeyboardInterrupt:
        view.clear()
        print_message(f"\n{run.id} goes on without you")
        print_message(f"  follow   {command('logs', run.id, '-f')}\n  stop     {command('stop', run.id)}")
        raise click.exceptions.Exit(130) from None
    except CloudError as error:
        view.clear()
        hint = f"{error.hint + '; ' if error.hint else ''}the job goes on meanwhile: {command('wait', run.id)}"
        raise CloudError(error.message, hint=hint, code=error.code) from error
    view.finish()
    return update.state


class _View:
    """What is on the screen while a run goes on: the lines of rank 0, and how many there are of other ranks."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self.drawn = False
        self.other_lines = 0
        self.error_time = 0.0
        self.failed_ranks: set[int] = set()
        self.attempt = 0
        self.last_error = ""

    def show(self, update: Update) -> None:
        """Show an update."""
        if update.last_error != self.last_error:
            self.last_error = update.last_error
            if self.last_error:
                self._line(f"{self.last_error}; the job goes on, asking again")
        for event in update.events:
            match event:
                case Error():
                    self.error_time = self.error_time or event.time
                    if not event.consequence:
                        self.failed_ranks.add(event.rank)
                case Restarted():
                    self._restarted(event)
                case Resumed():
                    self._line(f"resumed from the checkpoint of step {event.step}")
                case Phase() if event.phase and not self.live:
                    self._line(event.phase)
                case StopRequested():
                    self._line(f"stopping: {event.reason}")
                case Metrics() if not self.live:
                    self._line(_metrics(event))
        for line in update.lines:
            self._log(line)
        if self.live and not update.state.has_ended:
            self._draw(update.state)

    def finish(self) -> None:
        """Take the progress line away, and say how many lines of other ranks there are."""
        self.clear()
        if self.other_lines:
            lines = "1 more line" if self.other_lines == 1 else f"{self.other_lines} more lines"
            print_message(f"  ({lines} from other ranks: {command('logs', self.run.id)})")

    def _restarted(self, event: Restarted) -> None:
        """Shown once per attempt, though every node reports it."""
        self.error_time = 0.0
        self.failed_ranks.clear()
        if event.attempt > self.attempt:
            self.attempt = event.attempt
            self._line(f"restart {self.attempt}: {event.why}")

    def clear(self) -> None:
        """Take the progress line away."""
        if self.drawn:
            redraw("")
            self.drawn = False

    def _log(self, line: LogLine) -> None:
        # After an error, errors of other ranks follow from it: the report names the cause first, they stay in the log.
        if self.error_time and line.time >= self.error_time and line.rank not in self.failed_ranks:
            return
        if line.rank == 0 or (not line.source and line.text):
            self.clear()
            write_log("  ", line.text, err=True)
        elif line.rank is not None:
            self.other_lines += 1

    def _line(self, text: str) -> None:
        self.clear()
        print_message(f"  {one_line(text)}")

    def _draw(self, state: RunState) -> None:
        width = shutil.get_terminal_size().columns
        redraw(one_line(_progress(state, time.time()))[: max(10, width - 3)])
        self.drawn = True


def _progress(state: RunState, now: float) -> str:
    progress, parts = state.progress, []
    elapsed = format_duration(state.seconds(now))
    total = state.nodes * state.processes
    if not progress:
        if state.state != "running":
            since = format_duration(max(0.0, now - state.phase_since)) if state.phase else elapsed
            return f"{state.phase or state.state}  {since}"
        return f"{len(state.ranks)} of {total} ranks up  {elapsed}"
    if progress.epoch is not None:
        parts.append(f"epoch {progress.epoch}/{_or_unknown(progress.epochs)}")
    if progress.step is not None:
        parts.append(f"step {progress.step}/{_or_unknown(progress.steps)}")
    for name, value in {"loss": progress.loss, **_validation(state)}.items():
        if value is not None:
            parts.append(f"{name} {format_number(value)}")
    if progress.samples_per_s is not None:
        parts.append(f"{format_number(progress.samples_per_s)} samples/s")
    if isinstance(progress.steps, int) and progress.steps:
        parts.append(bar(progress.step or 0, progress.steps))
    return "  ".join([*parts, elapsed])


def _or_unknown(total: float | None) -> str:
    return "?" if total is None else str(total)


def _validation(state: RunState) -> dict[str, float]:
    return {name: value for name, value in state.metrics.items() if name.startswith("val_acc")}


def _metrics(event: Metrics) -> str:
    where = [f"{name} {value}" for name, value in (("epoch", event.epoch), ("step", event.step)) if value is not None]
    return "  ".join([*where, *(f"{name} {format_number(value)}" for name, value in event.values.items())])
