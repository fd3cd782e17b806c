"""Following a run: a live progress line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable

import click

from cloudtrain.api.monitor import Update
from cloudtrain.api.run import Run
from cloudtrain.cli.keyboard import Keyboard, keyboard_for
from cloudtrain.cli.next_command import rerun_elsewhere
from cloudtrain.cli.output import command, count, print_message
from cloudtrain.cli.terminal import bar, one_line, redraw, write_log
from cloudtrain.declaration import declaration_of
from cloudtrain.errors import CloudError, CloudtrainError, StorageError
from cloudtrain.runs.forecast import forecast, remaining_seconds, shown
from cloudtrain.runs.logs import LogLine, position_parts
from cloudtrain.runs.paths import RunPaths
from cloudtrain.runs.record import terms_of
from cloudtrain.runs.state import RunState
from cloudtrain.runs.state_names import WAITING
from cloudtrain.units import format_duration, format_number
from cloudtrain_wire.events import (
    RESTART_ELSEWHERE,
    Activity,
    Error,
    Phase,
    Restarted,
    Resumed,
    StopRequested,
)

PROGRESS_SECONDS = 30.0
"""Minimum time between lines of progress without a terminal, by the job's clock."""

MAX_BURST = 20
"""Maximum lines of metrics at once; then one per second. `logs` has all of them."""

WAIT_SECONDS = 600.0
"""Wait for a machine before other machines are suggested."""

ACTIVITY_SECONDS = 20.0
"""Minimum time of an activity besides training that is reported without a terminal."""

FORECAST_SECONDS = 60.0
"""Minimum training time, after the first step, before the forecast is shown."""

MAX_METRICS = 4

_Part = tuple[int, str]
"""Rank and text of a part; a line that is too long drops the highest ranks."""


def follow(
    run: Run,
    *,
    tail: int | None = None,
    timeout: float | None = None,
    output: bool = True,
    on: str = "",
) -> RunState:
    """Show a run until it has ended, and return its state.

    Ctrl-C exits with 130; the run continues. `tail`: show only the last stored lines.
    `output`: show what the job prints, not only its metrics. `on`: the message after Ctrl-C instead
    of the commands to continue. Raise TimeoutError after `timeout` seconds.
    """
    view = View(run, output=output)
    view.keyboard = _keyboard(run)
    try:
        for update in run.watch(tail=tail, timeout=timeout):
            view.show(update)
    except KeyboardInterrupt:
        view.clear()
        print_message(f"\n{on or _left(view)}")

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
        raise CloudError(error.message, hint=_keeps_running(run, error), code=error.code) from error
    except StorageError as error:
        view.clear()
        hint = error.hint
        if run.folder.path.is_dir():
            hint = _keeps_running(run, error)

        raise StorageError(error.message, hint=hint) from error
    finally:
        if view.keyboard is not None:
            view.keyboard.close()

    view.finish()
    return update.state


def _keyboard(run: Run) -> Keyboard | None:
    """Return the terminal for the program's questions, if its provider passes them on."""
    provider = run.cached_status().provider
    if not declaration_of(provider).has_keyboard:
        return None

    return keyboard_for(RunPaths(run.folder.path).keyboard)


def _left(view: View) -> str:
    if view.keyboard is not None and view.keyboard.is_asked:
        return f"{view.run.id} is left at its prompt: its input ends there"

    return f"{view.run.id} keeps running"


def _keeps_running(run: Run, error: CloudtrainError) -> str:
    hint = f"the job keeps running: {command('wait', run.id)}"
    if error.hint:
        return f"{error.hint}; {hint}"

    return hint


class ProgressDisplay:
    """The progress line at the bottom of a terminal; nothing if stderr is not one."""

    def __init__(self, clock: Callable[[], float] = time.time, *, enabled: bool = True) -> None:
        self.clock = clock
        self.live = enabled and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._drawn = ""

    def draw(self, state: RunState) -> None:
        """Show the state of the run below the printed lines."""
        if not self.live or state.has_ended:
            return

        width = shutil.get_terminal_size().columns
        text = progress_line(state, self.clock(), max(10, width - 3))
        if text != self._drawn:
            redraw(text)
            self._drawn = text

    def clear(self) -> None:
        """Remove the line, so that other text can be printed."""
        if self._drawn:
            redraw("")
            self._drawn = ""


class View:
    """The screen of a run: the lines of rank 0, and a count of lines of other ranks."""

    def __init__(
        self, run: Run, *, output: bool = True, clock: Callable[[], float] = time.time
    ) -> None:
        self.run = run
        self.output = output
        self.clock = clock
        self.display = ProgressDisplay(clock)
        self.other_lines = 0
        self._output: list[tuple[str, str]] = []
        """Lines of the job to be written, each with what stands in front of it."""
        self.error_time = 0.0
        self.failed_ranks: set[int] = set()
        self.attempt = 0
        self.last_error = ""
        self._numbers_at = 0.0
        """Time of the last shown line with numbers, or of the first one."""
        self._metrics_at = 0.0
        """Time of the last line of metrics, shown or not."""
        self._allowance: float = MAX_BURST
        """Number of lines of metrics that may be shown at once."""
        self._activity: Activity | None = None
        self._forecast_shown = False
        self._wait_shown = False
        self.keyboard: Keyboard | None = None

    def show(self, update: Update) -> None:
        """Show an update."""
        if update.last_error != self.last_error:
            self.last_error = update.last_error
            if self.last_error:
                self._line(f"{self.last_error}; the job still runs, asking again")

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
                case Activity() if self.keyboard is not None:
                    self.keyboard.note(event)

        for block in update.blocks:
            if block.kind or self.keyboard is not None:
                for line in block.lines():
                    self._log(line)
            else:
                self._log(block)

        self._write_output()
        self._show_wait(update.state)
        self._show_activity(update.state)
        self._show_forecast(update.state)

        if self.keyboard is None or not self.keyboard.is_asked:
            self.display.draw(update.state)
        elif not update.blocks and not update.events:  # lines before the question may come after it
            self.display.clear()
            self.keyboard.serve()

    def finish(self) -> None:
        """Remove the progress line, and print the number of lines of other ranks."""
        self.clear()
        if self.other_lines and self.output:
            lines = count(self.other_lines, "more line")
            print_message(f"  ({lines} from other ranks: {command('logs', self.run.id)})")

    def clear(self) -> None:
        """Remove the progress line."""
        self.display.clear()

    def _restarted(self, event: Restarted) -> None:
        """Show a restart once, though every node reports it: by the node that has the reason."""
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
        elif not self.output or self._is_typed(line.text):
            return
        elif line.source == "rank 0" or (not line.source and line.text):
            self._output.append(("  ", line.text))
        elif line.source.startswith("rank "):
            self.other_lines += line.text.count("\n") + 1

    def _is_typed(self, text: str) -> bool:
        return self.keyboard is not None and self.keyboard.is_echo(text)

    def _numbers(self, line: LogLine) -> None:
        """Show metrics at a limited rate, and progress only without a progress line."""
        if line.kind == "progress":
            since = _seconds_between(self._numbers_at, line.time)
            self._numbers_at = self._numbers_at or line.time
            if self.display.live or since < PROGRESS_SECONDS:
                return
        else:
            passed = _seconds_between(self._metrics_at, line.time)
            self._allowance = min(MAX_BURST, self._allowance + passed)
            self._metrics_at = line.time

            if self._allowance < 1:
                return

            self._allowance -= 1

        self._numbers_at = line.time
        self._line(line.text)

    def _show_wait(self, state: RunState) -> None:
        """Suggest other machines once, if the cloud has none for a long time."""
        if self._wait_shown or state.phase != WAITING or state.has_ended:
            return

        waiting = self.clock() - state.phase_since
        if waiting < WAIT_SECONDS:
            return

        self._wait_shown = True
        self._line(f"no machine for {format_duration(waiting)}; nothing is billed while it waits")
        then = rerun_elsewhere(self.run) or "choose in cloudtrain gpus"
        self._line(
            f"another machine or region may be free: {command('stop', self.run.id)}, then {then}"
        )

    def _show_activity(self, state: RunState) -> None:
        """Report a slow activity once, without a terminal."""
        doing = state.activity
        if doing is None or doing == self._activity or self.display.live or state.has_ended:
            return
        if self.clock() - doing.time >= ACTIVITY_SECONDS:
            self._activity = doing
            self._line(activity_text(state, self.clock()))

    def _show_forecast(self, state: RunState) -> None:
        """Show the forecast once, after the first minute of training."""
        begun = state.laps.first
        if self._forecast_shown or not begun or state.laps.time - begun < FORECAST_SECONDS:
            return

        now = self.clock()
        if remaining_seconds(state, now) is None:
            return
        if prediction := forecast(state, terms_of(self.run.folder, state.instance), now=now):
            self._forecast_shown = True
            self._line(f"forecast: {shown(prediction)}")

    def _write_output(self) -> None:
        """Write the lines of the job that wait, all at once."""
        if self._output:
            self.clear()
            write_log(self._output, err=True)
            self._output.clear()

    def _line(self, text: str) -> None:
        self._write_output()
        self.clear()
        print_message(f"  {one_line(text)}")


def _seconds_between(start: float, end: float) -> float:
    """Return the seconds from a Unix timestamp to another; 0 without the first."""
    if not start:
        return 0.0

    return max(0.0, end - start)


def progress_line(state: RunState, time: float, width: int) -> str:
    """Return the line, at most `width` characters long. `time`: a Unix timestamp."""
    elapsed = format_duration(state.seconds(time))
    parts = _training_parts(state, time)
    if not parts:
        return one_line(_before_training(state, time, elapsed))[:width]

    activity = activity_text(state, time)
    if activity:
        parts.insert(0, (0, activity))

    parts.append((1, elapsed))
    while _length(parts) > width and len(parts) > 1:
        least = max(rank for rank, _ in parts)
        at = max(index for index, (rank, _) in enumerate(parts) if rank == least)
        del parts[at]

    return one_line("  ".join(text for _, text in parts))[:width]


def _length(parts: list[_Part]) -> int:
    return len(one_line("  ".join(text for _, text in parts)))


def activity_text(state: RunState, time: float) -> str:
    """Return `restoring for 12 s`; empty while the run trains, or has not begun."""
    doing = state.activity
    if doing is None:
        return ""

    seconds = time - doing.time
    if seconds < 1:
        return doing.activity

    return f"{doing.activity} for {format_duration(seconds)}"


def _before_training(state: RunState, time: float, elapsed: str) -> str:
    if state.state == "running" and state.activity:
        return activity_text(state, time)
    if state.state != "running":
        since = elapsed
        if state.phase:
            since = format_duration(max(0.0, time - state.phase_since))

        return f"{state.phase or state.state}  {since}"

    return f"{len(state.ranks)} of {state.nodes * state.processes} ranks up  {elapsed}"


def _training_parts(state: RunState, time: float) -> list[_Part]:
    """Return the parts about training; nothing before the first report."""
    at = state.position
    parts = list[_Part]()

    if not state.progress and not state.metrics:
        return parts

    where = position_parts(at)
    for text in where:
        is_first = text.startswith("step") or len(where) == 1
        parts.append((0 if is_first else 3, text))

    parts += [(2 + min(number, 2), text) for number, text in enumerate(latest_metrics(state))]

    if rate_text(state):
        parts.append((3, rate_text(state)))
    if isinstance(at.steps, int) and at.steps:
        parts.append((6, bar(at.step or 0, at.steps)))

    eta = remaining_seconds(state, time)
    if eta is not None:
        parts.append((1, f"{format_duration(eta)} left"))

    return parts


def latest_metrics(state: RunState) -> list[str]:
    """Return `loss 0.25`, `val_accuracy 0.93`: the running loss, then validation first."""
    reported = sorted(state.metrics.items(), key=lambda item: not item[0].startswith("val"))
    values: dict[str, float] = {}
    if state.progress and state.progress.loss is not None:
        values["loss"] = state.progress.loss

    for name, value in reported:
        values.setdefault(name, value)

    if state.progress and state.progress.samples_per_s is not None:
        values.pop("samples_per_s", None)  # shown as the rate

    return [f"{name} {format_number(value)}" for name, value in list(values.items())[:MAX_METRICS]]


def rate_text(state: RunState) -> str:
    """Return `1.2k images/s` if reported, else `3.1 steps/s`; empty if unknown."""
    if state.progress and state.progress.samples_per_s is not None:
        return f"{format_number(state.progress.samples_per_s)} {state.progress.unit or 'samples'}/s"

    per_step = state.laps.seconds_per_step
    if not per_step:
        return ""

    if per_step < 1:
        return f"{format_number(1 / per_step)} steps/s"

    return f"{format_number(per_step)} s/step"
