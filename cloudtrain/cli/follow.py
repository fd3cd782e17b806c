"""Following a run: one progress line that redraws itself on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable

import click

from cloudtrain.cli import github
from cloudtrain.cli.output import command, print_message
from cloudtrain.cli.progress import activity_text, progress_line
from cloudtrain.cli.terminal import one_line, redraw, write_log
from cloudtrain.errors import CloudError, CloudtrainError, StorageError
from cloudtrain.runs.forecast import TOLD_FROM_SECONDS, forecast
from cloudtrain.runs.forecast_words import shown
from cloudtrain.runs.logs import LogLine
from cloudtrain.runs.state import RunState
from cloudtrain.runs.terms import Terms, terms_of
from cloudtrain.submission.run import Run
from cloudtrain.submission.updates import Update
from cloudtrain_launcher.events import (
    RESTART_ELSEWHERE,
    Activity,
    Error,
    LimitTooLow,
    Phase,
    Restarted,
    Resumed,
    StopRequested,
)

PROGRESS_SECONDS = 30.0
"""Without a terminal, a line of progress is shown this long after the last line with numbers, by
the job's clock.
"""

MAX_BURST = 20
"""So many lines with metrics are shown at once, and after them one a second; `logs` has them all.
"""

ACTIVITY_SECONDS = 20.0
"""Without a terminal, what a run does besides training is told when it has taken this long."""


def follow(
    run: Run,
    *,
    tail: int | None = None,
    timeout: float | None = None,
    output: bool = True,
    on: str = "",
) -> RunState:
    """Show a run until it has ended, and return its state. Ctrl-C exits with 130 and leaves the run
    going on.

    `tail`: of what is there already show only the last so many lines. `output`: whether to show
    what the job prints, not only its metrics. `on`: what is said after Ctrl-C in place of the ways
    to go on. TimeoutError after `timeout` seconds.
    """
    view = View(run, output=output)
    try:
        for update in run.watch(tail=tail, timeout=timeout):
            view.show(update)
    except KeyboardInterrupt:
        view.clear()
        print_message(f"\n{on or f'{run.id} goes on without you'}")
        if not on:
            print_message(
                f"  follow   {command('attach', run.id)}\n  stop     {command('stop', run.id)}"
            )
        raise click.exceptions.Exit(130) from None
    except TimeoutError:
        view.clear()
        raise
    except CloudError as error:
        view.clear()
        raise CloudError(error.message, hint=_goes_on(run, error), code=error.code) from error
    except StorageError as error:
        view.clear()
        hint = _goes_on(run, error) if run.folder.path.is_dir() else error.hint
        raise StorageError(error.message, hint=hint) from error
    view.finish()
    return update.state


def _goes_on(run: Run, error: CloudtrainError) -> str:
    before = f"{error.hint}; " if error.hint else ""
    return f"{before}the job goes on meanwhile: {command('wait', run.id)}"


class ProgressDisplay:
    """The progress line at the bottom of a terminal's standard error; nothing where that is no
    terminal.
    """

    def __init__(self, clock: Callable[[], float] = time.time, *, wanted: bool = True) -> None:
        self.clock = clock
        self.live = wanted and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._drawn = ""

    def draw(self, state: RunState) -> None:
        """Show how the run stands, below what was printed."""
        if not self.live or state.has_ended:
            return
        width = shutil.get_terminal_size().columns
        text = progress_line(state, self.clock(), max(10, width - 3))
        if text != self._drawn:
            redraw(text)
            self._drawn = text

    def clear(self) -> None:
        """Take the line away, so that something can be printed."""
        if self._drawn:
            redraw("")
            self._drawn = ""


class View:
    """What is on the screen while a run goes on: the lines of rank 0, and how many there are of
    other ranks.
    """

    def __init__(
        self, run: Run, *, output: bool = True, clock: Callable[[], float] = time.time
    ) -> None:
        self.run = run
        self.output = output
        self.clock = clock
        self.display = ProgressDisplay(clock)
        self.other_lines = 0
        self.error_time = 0.0
        self.failed_ranks: set[int] = set()
        self.attempt = 0
        self.last_error = ""
        self._numbers_at = 0.0
        """The time of the last line with numbers that was shown, or of the first one."""
        self._metrics_at = 0.0
        """The time of the last line with metrics, shown or not."""
        self._allowance: float = MAX_BURST
        """How many lines with metrics may be shown now."""
        self._activity: Activity | None = None
        self._forecast_told = False
        self._terms: Terms | None = None

    def show(self, update: Update) -> None:
        """Show an update."""
        if update.last_error != self.last_error:
            self.last_error = update.last_error
            if self.last_error:
                self._line(f"{self.last_error}; the job goes on, asking again")
        limits = list[str]()
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
                case Phase() if event.phase and not self.display.live:
                    self._line(event.phase)
                case StopRequested():
                    self._line(f"stopping: {event.reason}")
                case LimitTooLow():
                    limits.append(event.message)
        for line in update.lines:
            self._log(line)
        self._tell_activity(update.state)
        self._tell_forecast(update.state)
        for message in limits:
            self._line(f"warning: {message}")
        github.annotate("warning", limits)
        self.display.draw(update.state)

    def finish(self) -> None:
        """Take the progress line away, and say how many lines of other ranks there are."""
        self.clear()
        if self.other_lines and self.output:
            lines = "1 more line" if self.other_lines == 1 else f"{self.other_lines} more lines"
            print_message(f"  ({lines} from other ranks: {command('logs', self.run.id)})")

    def clear(self) -> None:
        """Take the progress line away."""
        self.display.clear()

    def _restarted(self, event: Restarted) -> None:
        """Shown once per attempt, by the node that knows the reason, though every node reports it."""
        self.error_time = 0.0
        self.failed_ranks.clear()
        if event.attempt > self.attempt and event.why != RESTART_ELSEWHERE:
            self.attempt = event.attempt
            self._line(f"restart {self.attempt}: {event.why}")

    def _log(self, line: LogLine) -> None:
        # After an error, errors of other ranks follow from it: the report names the cause first,
        # they stay in the log.
        if self.error_time and line.time >= self.error_time and line.rank not in self.failed_ranks:
            return
        if line.kind:
            self._numbers(line)
        elif not self.output:
            return
        elif line.rank == 0 or (not line.source and line.text):
            self.clear()
            write_log("  ", line.text, err=True)
        elif line.rank is not None:
            self.other_lines += 1

    def _numbers(self, line: LogLine) -> None:
        """Metrics, unless there are too many of them; progress only where there is no progress
        line, and seldom.
        """
        since = max(0.0, line.time - self._numbers_at) if self._numbers_at else 0.0
        if line.kind == "progress":
            self._numbers_at = self._numbers_at or line.time
            if self.display.live or since < PROGRESS_SECONDS:
                return
        else:
            passed = max(0.0, line.time - self._metrics_at) if self._metrics_at else 0.0
            self._allowance = min(MAX_BURST, self._allowance + passed)
            self._metrics_at = line.time
            if self._allowance < 1:
                return
            self._allowance -= 1
        self._numbers_at = line.time
        self._line(line.text)

    def _tell_activity(self, state: RunState) -> None:
        """Without a terminal: what takes its time is told, once."""
        doing = state.activity
        if doing is None or doing == self._activity or self.display.live or state.has_ended:
            return
        if self.clock() - doing.time >= ACTIVITY_SECONDS:
            self._activity = doing
            self._line(activity_text(state, self.clock()))

    def _tell_forecast(self, state: RunState) -> None:
        """Once, after the first minute of training."""
        begun = state.laps.first
        if self._forecast_told or not begun or state.laps.time - begun < TOLD_FROM_SECONDS:
            return
        self._terms = self._terms or terms_of(self.run.folder)
        if found := forecast(state, self._terms, now=self.clock()):
            self._forecast_told = True
            self._line(f"forecast: {shown(found)}")

    def _line(self, text: str) -> None:
        self.clear()
        print_message(f"  {one_line(text)}")
