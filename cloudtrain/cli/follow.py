"""Following a run: one progress line that redraws itself on a terminal, plain lines elsewhere, and the end's report."""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import NoReturn

import click

from cloudtrain.api.run import Run, Update
from cloudtrain.cli import github
from cloudtrain.cli.output import command, home, learning_curves, number, paint, print_json, say
from cloudtrain.cli.terminal import bar, indented, one_line, redraw, write_log
from cloudtrain.declaration import rehearsed_by
from cloudtrain.errors import CloudError
from cloudtrain.runs.events import Cause, Error, Metrics, Phase, Restarted, Resumed, StopRequested
from cloudtrain.runs.failure import explain
from cloudtrain.runs.failure_hints import hint_for, hint_for_message
from cloudtrain.runs.logs import LogLine
from cloudtrain.runs.state import RunState
from cloudtrain.units import format_duration

EXIT_CODES = {"succeeded": 0, "failed": 1, "stopped": 5}


def follow(run: Run) -> RunState:
    """Show a run until it has ended. Ctrl-C leaves it running, and says so."""
    view = _View(run)
    try:
        for update in run.watch():
            view.show(update)
    except KeyboardInterrupt:
        view.clear()
        say(f"\n{run.id} goes on without you")
        say(f"  follow   {command('logs', run.id, '-f')}\n  stop     {command('stop', run.id)}")
        raise click.exceptions.Exit(130) from None
    except CloudError as error:
        view.clear()
        hint = f"{error.hint + '; ' if error.hint else ''}the job goes on meanwhile: {command('wait', run.id)}"
        raise CloudError(error.message, hint=hint, code=error.code) from error
    view.finish()
    return update.state


class _View:
    """The screen while a run goes on. Rank 0 speaks for all ranks; the others are counted."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self.drawn = False
        self.others = 0
        self.error_time = 0.0
        self.erring: set[int] = set()
        self.attempt = 0
        self.trouble = ""

    def show(self, update: Update) -> None:
        """What is new."""
        if update.trouble != self.trouble:
            self.trouble = update.trouble
            if self.trouble:
                self._line(f"{self.trouble}; the job goes on, asking again")
        for event in update.events:
            match event:
                case Error():
                    self.error_time = self.error_time or event.time
                    if not event.consequence:
                        self.erring.add(event.rank)
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
        """All has been shown: what there is besides."""
        self.clear()
        if self.others:
            lines = "1 more line" if self.others == 1 else f"{self.others} more lines"
            say(f"  ({lines} from other ranks: {command('logs', self.run.id)})")

    def _restarted(self, event: Restarted) -> None:
        """Said once per attempt, though every node tells of it."""
        self.error_time = 0.0
        self.erring.clear()
        if event.attempt > self.attempt:
            self.attempt = event.attempt
            self._line(f"restart {self.attempt}: {event.why}")

    def clear(self) -> None:
        """Take the progress line away."""
        if self.drawn:
            redraw("")
            self.drawn = False

    def _log(self, line: LogLine) -> None:
        # After an error the other ranks' complaints follow; the report names the cause first, so they wait in the log.
        if self.error_time and line.time >= self.error_time and line.rank not in self.erring:
            return
        if line.rank == 0 or (not line.source and line.text):
            self.clear()
            write_log("  ", line.text, err=True)
        elif line.rank is not None:
            self.others += 1

    def _line(self, text: str) -> None:
        self.clear()
        say(f"  {one_line(text)}")

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
            parts.append(f"{name} {number(value)}")
    if progress.samples_per_s is not None:
        parts.append(f"{number(progress.samples_per_s)} samples/s")
    if isinstance(progress.steps, int) and progress.steps:
        parts.append(bar(progress.step or 0, progress.steps))
    return "  ".join([*parts, elapsed])


def _or_unknown(total: float | None) -> str:
    return "?" if total is None else str(total)


def _validation(state: RunState) -> dict[str, float]:
    return {name: value for name, value in state.metrics.items() if name.startswith("val_acc")}


def _metrics(event: Metrics) -> str:
    where = [f"{name} {value}" for name, value in (("epoch", event.epoch), ("step", event.step)) if value is not None]
    return "  ".join([*where, *(f"{name} {number(value)}" for name, value in event.values.items())])


def report(run: Run, state: RunState) -> None:
    """The end of a run, in words: what became of it, where things are, what to type next."""
    took = format_duration(state.seconds(time.time()))
    for warning in state.warnings:
        say(f"warning: {warning}")
    if state.state == "failed":
        _report_failure(run, state, took)
        return
    say(
        f"{paint(state.state)} {'in' if state.state == 'succeeded' else 'after'} {took}"
        + (f": {indented(state.reason, 4)}" if state.reason else "")
    )
    for line in learning_curves({name: curve.values for name, curve in state.curves.items()}):
        say(f"  {line}")
    left = run.places()
    rows = [(name, shown(place)) for name, place in left.items()]
    if money(state):
        rows.append(("cost", money(state)))
    if state.log_unread:
        rows.append(("note", f"its log could not be read: {state.log_unread.reason}"))
    if state.checkpoint and state.state == "stopped":
        rows.append(("at step", str(state.checkpoint.step)))
    rows.append(("logs", command("logs", run.id)))
    if state.state == "stopped":
        rows.append(
            (
                "next",
                command("rerun", run.id) + ("   goes on from the checkpoint" if state.checkpoint else ""),
            )
        )
    elif rehearsed := rehearsed_by(state.provider, state.contract):
        pay = command("rerun", run.id, "--provider", rehearsed.name)
        rows.append(("next", f"{command('fetch', run.id)}; or pay: {pay}"))
    elif left:
        rows.append(("next", command("fetch", run.id)))
    for name, text in rows:
        say(f"  {name:<11} {one_line(text)}")


def _report_failure(run: Run, state: RunState, took: str) -> None:
    cause = state.error
    say(f"{run.id} {paint('failed')} after {took}: {indented(explain(state), 4)}")
    if cause and cause.file:
        say(f"  {one_line(source_line(cause))}")
    hint = hint_for(cause) if cause else hint_for_message(state.reason)
    if hint:
        say(f"  hint: {indented(hint, 8)}")
    if state.log_unread:
        say(f"  {'note':<11} its log could not be read: {one_line(state.log_unread.reason)}")
    where = ("--rank", str(cause.rank)) if cause and cause.rank >= 0 else ()
    say(f"  {'logs':<11} {command('logs', run.id, *where)}")
    if money(state):
        say(f"  {'cost':<11} {money(state)}")
    if state.checkpoint:
        from_step = f"goes on from the checkpoint of step {state.checkpoint.step}"
        say(f"  {'next':<11} {command('rerun', run.id)}   {from_step}")


def source_line(cause: Cause) -> str:
    """`train.py:6  raise ValueError(…)`: the line of the program that failed."""
    return f"{cause.file}:{cause.line}  {cause.code}"


def shown(place: str) -> str:
    """A place as people read it: a folder of this machine with a slash, an address as it is."""
    return place if "://" in place else home(place) + "/"


def money(state: RunState) -> str:
    """`1 h 2 min billed, 25.40 USD at list price`; empty where nothing was billed."""
    bill = state.billing
    if "billable_seconds" not in bill:
        if "training_seconds" not in bill:
            return ""
        # Azure bills machines, not jobs: this is what their time on the job comes to.
        worked = f"{format_duration(max(1, bill['training_seconds']))} of machine time"
        return worked + (f", about {bill['usd']:.2f} USD at list price" if "usd" in bill else ", price unknown")
    saved = bill.get("training_seconds") or 0
    text = f"{format_duration(bill['billable_seconds'])} billed"
    if saved > bill["billable_seconds"]:
        text += f" of {format_duration(saved)}, spot saved {1 - bill['billable_seconds'] / saved:.0%}"
    return text + (f", {bill['usd']:.2f} USD at list price" if "usd" in bill else ", price unknown")


def conclude(run: Run, state: RunState, as_json: bool) -> NoReturn:
    """Report the end of a run and leave with its exit code."""
    report(run, state)
    github.annotate_failure(run, state)
    if as_json:
        print_json({**state.to_json(), "results": dict(run.places())})
    raise click.exceptions.Exit(EXIT_CODES[state.state])
