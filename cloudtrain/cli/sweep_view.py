"""The screen of a sweep: its plan, its trials while they run, and the best at the end."""

from __future__ import annotations

import os
import shutil
import sys
import time
from typing import Any

import click

from cloudtrain.cli.output import (
    LogPrinter,
    colour_state,
    command,
    count,
    print_json,
    print_message,
    print_output,
    table,
)
from cloudtrain.cli.terminal import indented, one_line, redraw_lines
from cloudtrain.providers import get_provider
from cloudtrain.sweeps.journal import RunEnded
from cloudtrain.sweeps.logs import FailedTrials, SweepLogs, failed_trials
from cloudtrain.sweeps.planning import SweepPlan
from cloudtrain.sweeps.state import SweepState, Trial
from cloudtrain.sweeps.sweep import Extension, Sweep
from cloudtrain.units import format_duration, format_number

MAX_LIVE = 12
"""Maximum trials on a live screen: the latest."""
MAX_NUMBERS = 12
"""Maximum numbers of failed trials of one cause."""


def overview(plan: SweepPlan) -> str:
    """Return what a sweep does, and the most that it may cost."""
    definition = plan.definition
    where = definition.provider

    if definition.as_:
        where = f"{plan.job.target.provider} rehearsed on {definition.provider}"

    trials = count(definition.trials, "trial")
    until = ""

    if definition.target is not None:
        until = f", until {format_number(definition.target)} is reached"

    lines = [
        f"{definition.sweep_id}  {trials}, {definition.parallel} at once, on {where}",
        f"  objective   {definition.metric}, {definition.goal}{until}",
        f"  method      {_method(plan)}",
    ]
    label = "space"
    for key, dimension in definition.space.items():
        lines.append(f"  {label:<11} {one_line(f'{key}: {dimension.text()}')}")
        label = ""

    lines.append(f"  stopping    {_stopping(plan) or 'none: every trial trains to its end'}")
    lines.append(f"  cost        {_cost(plan)}")
    if definition.budget.seconds:
        lines.append(
            f"  time        every trial ends after {format_duration(definition.budget.seconds)}"
        )

    return "\n".join(lines)


def _method(plan: SweepPlan) -> str:
    definition = plan.definition
    if definition.engine == "native":
        return get_provider(plan.job.target.provider).native_sweeps().method(plan.job)

    if definition.engine == "portable":
        engine = ""
    else:
        engine = f", by the engine {definition.engine}"

    return definition.method + engine


def _stopping(plan: SweepPlan) -> str:
    definition = plan.definition
    if definition.engine == "native":
        return get_provider(plan.job.target.provider).native_sweeps().stopping(plan.job)
    if not definition.rungs:
        return ""

    shown = ", ".join(map(str, definition.rungs[:5]))
    if len(definition.rungs) > 5:
        shown += ", …"

    how = "from its checkpoints" if definition.promotes else "and the others end"
    return f"after report {shown} the best 1/{definition.eta} continues {how}"


def _cost(plan: SweepPlan) -> str:
    if not plan.is_billed:
        return "nothing: it runs here"

    trial_usd = plan.definition.trial_cap.usd
    if plan.worst_usd is None or trial_usd is None:
        return "unknown: no price of these machines is known"

    budget = plan.definition.budget.usd
    held = ""
    if budget is not None:
        held = f", the budget of {budget:.2f} USD holds"

    return f"at most {plan.worst_usd:.2f} USD: {trial_usd:.2f} USD a trial{held}"


def extension_lines(sweep: Sweep, extension: Extension) -> list[str]:
    """Return what an extension starts, and the most that it may cost."""
    parts = []
    if extension.new_trials:
        parts.append(count(extension.new_trials, "new trial"))
    if extension.resumed:
        parts.append(f"{count(len(extension.resumed), 'interrupted trial')} resumed")

    state = sweep.status()
    lines = [f"{sweep.id}  {' and '.join(parts) or 'no new trial'}"]

    if state.definition.trial_cap.usd is not None and extension.worst_usd is not None:
        spent = f", beside {state.spent_usd:.2f} USD spent before"
        lines.append(f"  cost        at most {extension.worst_usd:.2f} USD{spent}")

    return lines


def follow(sweep: Sweep, timeout: float | None = None) -> SweepState:
    """Show a sweep until it has ended, and return its state.

    Ctrl-C exits with 130; the sweep continues. Raise TimeoutError after `timeout` seconds.
    """
    screen = _Screen()
    began = time.monotonic()
    try:
        for update in sweep.watch():
            for event in update.events:
                if isinstance(event, RunEnded) and not screen.live:
                    print_message(trial_line(update.state, update.state.trials[event.trial]))

            screen.draw(update.state)
            if (
                timeout is not None
                and time.monotonic() > began + timeout
                and not update.state.ended
            ):
                screen.clear()
                raise TimeoutError(f"{sweep.id} has not ended after {format_duration(timeout)}")
    except KeyboardInterrupt:
        screen.clear()
        print_message(f"\n{sweep.id} keeps running\n{next_commands(sweep)}")
        raise click.exceptions.Exit(130) from None

    screen.clear()
    return update.state


def next_commands(sweep: Sweep) -> str:
    """Return the commands for a sweep that runs in the background."""
    return f"  follow   {command('attach', sweep.id)}\n  stop     {command('stop', sweep.id)}"


class _Screen:
    """The trials at the bottom of a terminal; nothing if stderr is not one."""

    def __init__(self) -> None:
        self.live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._lines: list[str] = []

    def draw(self, state: SweepState) -> None:
        """Replace the shown trials by the current ones."""
        if not self.live or state.ended:
            return

        width = shutil.get_terminal_size().columns
        shown = [summary_line(state), *trial_table(state, MAX_LIVE).splitlines()]
        lines = [line[: width - 1] for line in shown]
        if lines != self._lines:
            redraw_lines(lines, len(self._lines))
            self._lines = lines

    def clear(self) -> None:
        """Remove the lines."""
        if self._lines:
            redraw_lines([], len(self._lines))
            self._lines = []


def summary_line(state: SweepState) -> str:
    """Return `12 of 40 trials done, 4 running; best val_accuracy 0.98 (trial 7)`, and costs."""
    running = sum(trial.state == "running" for trial in state.trials)
    ended = sum(trial.state not in ("running", "waiting") for trial in state.trials)
    parts = [f"{ended} of {count(state.wanted, 'trial')} done, {running} running"]

    if state.best is not None and state.best.value is not None:
        parts.append(
            f"best {one_line(state.definition.metric)} {format_number(state.best.value)} (trial"
            f" {state.best.number})"
        )

    if state.definition.trial_cap.usd is not None:
        spent = f"{state.spent_usd:.2f}"
        if state.definition.budget.usd is not None:
            spent += f" of {state.definition.budget.usd:.2f}"

        parts.append(f"{spent} USD spent")

    return "; ".join(parts)


def trial_table(state: SweepState, most: int = 0) -> str:
    """Return a line for each trial; `most`: only for the latest ones."""
    definition = state.definition
    keys = list(definition.space)
    billed = definition.trial_cap.usd is not None
    header = [" TRIAL"]
    header += [key.upper() for key in keys]
    header += ["REPORTS", definition.metric.upper(), "STATE"]
    if billed:
        header.append("USD")

    rows = []
    for trial in state.trials[-most:]:
        mark = "*" if trial is state.best else " "
        row = [f"{mark}{trial.number}"]
        row += [_value(trial.parameters.get(key)) for key in keys]
        row += [str(trial.reports), _objective(trial), _trial_state(trial)]
        if billed:
            row.append(f"{trial.spent_usd:.2f}")

        rows.append(row)

    return table(rows, header)


def _objective(trial: Trial) -> str:
    if trial.value is None:
        return ""

    return format_number(trial.value)


def _trial_state(trial: Trial) -> str:
    if trial.state in ("running", "failed", "stopped"):
        return colour_state(trial.state)

    return trial.state


def trial_line(state: SweepState, trial: Trial) -> str:
    """Return `trial 3  lr=0.001  completed  val_accuracy 0.98`, for a log."""
    values = " ".join(f"{key}={_value(value)}" for key, value in trial.parameters.items())
    if trial.value is None:
        value = ""
    else:
        value = f"  {state.definition.metric} {format_number(trial.value)}"

    reason = ""
    if trial.reason:
        reason = f": {trial.reason}"

    return f"trial {trial.number}  {one_line(values)}  {trial.state}{value}{indented(reason, 4)}"


def report(sweep: Sweep, state: SweepState) -> None:
    """Print the result of a sweep, its best trial, and the next commands."""
    took = "0 s"
    if state.started:
        took = format_duration(max(0.0, (state.ended or time.time()) - state.started))

    print_message(
        f"{sweep.id} {colour_state(state.state)} after {took}: {indented(state.why_ended, 4)}"
    )
    print_message(f"  {summary_line(state)}")
    best = state.best
    if best is not None:
        values = ", ".join(f"{key}={_value(value)}" for key, value in best.parameters.items())
        print_message(f"  best     {one_line(values)}  ({best.run})")
        print_message(f"  fetch    {command('fetch', best.run)}")
    elif state.trials:
        print_message(f"  logs     {command('logs', state.trials[-1].run)}")

    if any(trial.state == "failed" for trial in state.trials):
        print_message(f"  why      {command('diagnose', sweep.id)}")

    print_message(f"  trials   {command('status', sweep.id)}")


def show_failed_trials(sweep: Sweep, *, as_json: bool) -> bool:
    """Show why trials failed, and return whether any did.

    Raise StorageError if a run cannot be read.
    """
    groups = failed_trials(sweep)
    if not groups:
        return False

    if as_json:
        print_json({"sweep": sweep.id, "failed": [group.to_json() for group in groups]})
        return True

    failed = sum(len(group.trials) for group in groups)
    all_trials = len(sweep.status().trials)
    print_output(f"{sweep.id}: {failed} of {count(all_trials, 'trial')} failed")

    for group in groups:
        print_output("\n".join(_failed_lines(group)))

    return True


def _failed_lines(group: FailedTrials) -> list[str]:
    diagnosis = group.diagnosis
    numbers = ", ".join(map(str, group.trials[:MAX_NUMBERS]))
    more = ", …" if len(group.trials) > MAX_NUMBERS else ""
    rows = [("cause", diagnosis.cause), ("trials", f"{numbers}{more}")]

    if diagnosis.evidence:
        rows.append(("evidence", f"{diagnosis.evidence[0].place}  {diagnosis.evidence[0].text}"))
    if diagnosis.remedy:
        rows.append(("remedy", diagnosis.remedy))
    if group.runs[0]:
        rows.append(("more", command("diagnose", group.runs[0])))

    shown = [f"    {name:<11} {indented(one_line(text), 16)}" for name, text in rows]
    return [f"  {count(len(group.trials), 'trial')}", *shown]


def print_logs(
    sweep: Sweep, *, following: bool, as_json: bool, tail: int | None, **filters: Any
) -> None:
    """Print the lines of a sweep's trials, the oldest first.

    `following`: also print new lines until its end. `filters`: as for `Run.logs`.
    """
    logs = SweepLogs(sweep, **filters)
    shown = False
    try:
        with LogPrinter(as_json=as_json, names_source=filters["rank"] is None) as printer:
            for number, block in logs.stored(tail=tail, retry=following):
                shown = True
                printer.print(block, trial=number)

            if following:
                printer.flush()
                for number, block in logs.fresh():
                    shown = True
                    printer.print(block, trial=number)
                    printer.flush()
    except KeyboardInterrupt:
        if following and not sweep.has_ended:
            print_message(f"{sweep.id} keeps running; {command('stop', sweep.id)} stops it")

        raise click.exceptions.Exit(130) from None

    if not shown:
        print_message(f"no such lines; {command('status', sweep.id)} shows the trials")


def sweep_as_json(state: SweepState) -> dict[str, Any]:
    """Return a sweep for scripts: its state, and all of its trials."""
    best = state.best
    return {
        "sweep": state.definition.sweep_id,
        "state": state.state,
        "reason": state.reason,
        "wanted": state.wanted,
        "best": best.number if best else None,
        "spent_usd": state.spent_usd,
        "trials": [_trial_as_json(trial) for trial in state.trials],
    }


def _trial_as_json(trial: Trial) -> dict[str, Any]:
    return {
        "trial": trial.number,
        "run": trial.run,
        "state": trial.state,
        "reason": trial.reason,
        "parameters": dict(trial.parameters),
        "value": trial.value,
        "curve": list(trial.curve),
        "usd": trial.spent_usd,
        "seconds": trial.seconds,
    }


def as_listed(state: SweepState) -> dict[str, Any]:
    """Return a sweep as a row of the list of runs."""
    ended = sum(trial.state not in ("running", "waiting") for trial in state.trials)
    reason = one_line(state.why_ended)
    listed: dict[str, Any] = {}
    metrics: dict[str, float | None] = {}
    if state.best is not None:
        metrics[state.definition.metric] = state.best.value
    if reason and (ended < state.wanted or state.state != "succeeded"):
        listed["ended_because"] = reason

    return listed | {
        "run": state.definition.sweep_id,
        "name": state.definition.sweep_id,
        "state": state.state,
        "reason": state.reason,
        "arguments": {},
        "metrics": metrics,
        "best": metrics,
        "provider": state.definition.provider,
        "contract": "plain",
        "size": f"{ended}/{state.wanted} trials",
        "created": state.started,
        "started": state.started,
        "ended": state.ended or None,
        "owner": "",
        "submitted": True,
        "kept_until": None,
    }


def _value(value: object) -> str:
    if isinstance(value, float):
        return format_number(value)

    return str(value)
