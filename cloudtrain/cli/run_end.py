"""The report at the end of a run: result, artifacts, cost, and the next command."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NoReturn

import click

from cloudtrain.api.run import Run
from cloudtrain.cli.next_command import fetch_words, next_commands
from cloudtrain.cli.output import (
    abbreviate_home,
    colour_state,
    command,
    learning_curves,
    print_json,
    print_message,
)
from cloudtrain.cli.terminal import indented, one_line
from cloudtrain.declaration import rehearsed_by
from cloudtrain.diagnosis.failure import diagnose_run
from cloudtrain.diagnosis.slowness import clear_slowness
from cloudtrain.runs.state import RunState
from cloudtrain.units import format_duration
from cloudtrain_wire.events import Cause

EXIT_CODES = {"succeeded": 0, "failed": 1, "stopped": 5}


def report(run: Run, state: RunState) -> None:
    """Print the result of a run, its artifacts, and the next command."""
    took = format_duration(state.seconds(time.time()))
    for warning in state.warnings:
        print_message(f"warning: {warning}")

    if state.state == "failed":
        _report_failure(run, state, took)
        return

    before = "in" if state.state == "succeeded" else "after"
    result = f"{colour_state(state.state)} {before} {took}"
    if state.reason:
        result += f": {indented(state.reason, 4)}"

    print_message(result)
    for line in learning_curves({name: curve.values for name, curve in state.curves.items()}):
        print_message(f"  {line}")

    rows = result_rows(run)
    if format_cost(state):
        rows.append(("cost", format_cost(state)))
    if state.log_unread:
        rows.append(("note", f"its log could not be read: {state.log_unread.reason}"))
    if state.checkpoint and state.state == "stopped":
        rows.append(("at step", str(state.checkpoint.step)))
    if slow := clear_slowness(run.folder, state):
        rows.append(("slow", f"{slow.sentence}; {command('diagnose', run.id)}"))

    rows.append(("logs", command("logs", run.id)))
    if state.state == "stopped":
        rows.append(("next", next_commands(run, state)[0]))
    else:
        rows += _next_rows(run, state)

    for name, text in rows:
        print_message(f"  {name:<11} {one_line(text)}")


def result_rows(run: Run) -> list[tuple[str, str]]:
    """Return the places of what a run has left: a label and a text each."""
    rows = [(name, format_artifact(place)) for name, place in run.artifacts().items()]
    rows += [("left behind", format_artifact(folder)) for folder in run.left_behind()]
    return rows


def _next_rows(run: Run, state: RunState) -> Iterator[tuple[str, str]]:
    fetch = fetch_words(run)
    if rehearsed := rehearsed_by(state.provider, state.contract):
        pay = f"or pay: {command('rerun', run.id, '--provider', rehearsed.name)}"
        yield "next", f"{fetch}; {pay}" if fetch else pay
    elif fetch:
        yield "next", fetch


def _report_failure(run: Run, state: RunState, took: str) -> None:
    cause = state.error
    diagnosis = diagnose_run(run.folder, state, brief=True)
    why = diagnosis.headline
    print_message(f"{run.id} {colour_state('failed')} after {took}: {indented(why, 4)}")

    if cause and cause.file:
        print_message(f"  {one_line(source_line(cause))}")

    if diagnosis.remedy:
        print_message(f"  hint: {indented(diagnosis.remedy, 8)}")

    if state.log_unread:
        print_message(
            f"  {'note':<11} its log could not be read: {one_line(state.log_unread.reason)}"
        )

    for name, text in result_rows(run):
        print_message(f"  {name:<11} {one_line(text)}")

    logs = command("logs", run.id)
    if cause and cause.rank >= 0:
        logs = command("logs", run.id, "--rank", str(cause.rank))

    print_message(f"  {'logs':<11} {logs}")

    if format_cost(state):
        print_message(f"  {'cost':<11} {format_cost(state)}")

    print_message(f"  {'next':<11} {next_commands(run, state)[0]}")


def source_line(cause: Cause) -> str:
    """Return the line of the program that failed: `train.py:6  raise ValueError(…)`."""
    return f"{cause.file}:{cause.line}  {cause.code}"


def format_artifact(place: str) -> str:
    """Return the location of an artifact: a local folder with a slash, or a URI."""
    if "://" in place:
        return place

    return abbreviate_home(place) + "/"


def format_cost(state: RunState) -> str:
    """Return `1 h 2 min billed, 25.40 USD at list price`; empty without a bill."""
    bill = state.billing
    if bill is None:
        return ""

    trained = bill.training_seconds or 0
    billed = bill.billable_seconds
    if billed is not None and billed < 0:
        return ""  # of a damaged event
    if billed is not None:
        text = f"{format_duration(billed)} billed"
        if trained > billed:
            text += f" of {format_duration(trained)}, spot saved {1 - billed / trained:.0%}"
    elif bill.training_seconds is not None:
        # Azure bills machines, not jobs: this is what their time on the job comes to.
        text = f"{format_duration(max(1, trained))} of machine time"
    else:
        return ""

    if bill.usd is None:
        return f"{text}, price unknown"

    prefix = "about " if billed is None else ""
    return f"{text}, {prefix}{bill.usd:.2f} USD at list price"


def report_and_exit(
    run: Run, state: RunState, as_json: bool, *, success: str = "succeeded"
) -> NoReturn:
    """Print the report of an ended run, and exit with its code.

    `success`: the state whose exit code is 0.
    """
    report(run, state)

    if as_json:
        print_json({**state.to_json(), "results": dict(run.artifacts())})

    if state.state == success:
        raise click.exceptions.Exit(0)

    raise click.exceptions.Exit(EXIT_CODES[state.state])
