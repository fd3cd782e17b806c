"""The command `status`: the state of a run or a sweep."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cloudtrain.api.listing import runs_going_on
from cloudtrain.api.notification import refusals
from cloudtrain.api.run import Run
from cloudtrain.cli.chosen_run import chosen
from cloudtrain.cli.follow import activity_text
from cloudtrain.cli.next_command import next_commands
from cloudtrain.cli.options import data_dir, json_option, last_run_argument
from cloudtrain.cli.output import (
    colour_state,
    command,
    count,
    format_age,
    learning_curves,
    print_json,
    print_message,
    print_output,
    print_prose,
)
from cloudtrain.cli.run_end import format_cost, result_rows, source_line
from cloudtrain.cli.runs_table import is_rehearsal, kept_machines, table_of, with_sweeps
from cloudtrain.cli.terminal import indented, one_line
from cloudtrain.diagnosis.failure import diagnose_run
from cloudtrain.errors import CloudError
from cloudtrain.runs.forecast import cost_parts, remaining_seconds
from cloudtrain.runs.state import RunState, explain
from cloudtrain.units import format_duration, format_number
from cloudtrain_wire.bounded_files import read_regular_text

if TYPE_CHECKING:
    from cloudtrain.sweeps.sweep import Sweep


@click.command("status", epilog="Example:\n\n  cloudtrain status --json")
@last_run_argument
@json_option
@data_dir
def status_command(folder: str | None, /, run: str | None, as_json: bool) -> None:
    """Show the state of RUN: an id, a unique prefix of one, or `last`.

    For a sweep, show all of its trials. Without RUN: the runs that are running, or else the newest
    run or sweep of this folder. With --json always one of them.
    """
    if (
        run is None
        and not as_json
        and (running := with_sweeps(runs_going_on(data_dir=folder), folder))
    ):
        if len(running) > 1:
            print_output(table_of(running))
            return

        run = running[0]["run"]

    target = chosen(run, folder)
    if not isinstance(target, Run):
        _print_sweep(target, as_json)
        return

    failure: CloudError | None = None
    try:
        state = target.status()
    except CloudError as error:  # what is known here is shown all the same
        state = target.cached_status()
        failure = error

    if as_json:
        if failure is not None:
            raise failure

        document = state.to_json()
        forecast = target.forecast()
        document["forecast"] = forecast and forecast.to_json()
        document["folder"] = str(target.folder.path)
        document["results"] = dict(target.artifacts())
        print_json(document)

        return

    size = f"{count(state.nodes, 'node')} x {count(state.processes, 'process')}"
    as_what = ""
    if is_rehearsal(state.to_json()):
        as_what = f" as {state.contract}"

    print_output(
        f"{target.id}  {colour_state(state.state)}  {size}, {one_line(state.provider + as_what)}"
    )

    rows = [*_status_rows(target, state), *_not_told(target.folder.path)]
    for name, text in rows:
        print_prose(f"  {name:<11} {indented(text, 14)}")

    if target.unstored:
        print_message(f"note: {target.unstored}")

    if failure is not None:
        print_message("that is what was last seen; asking again failed:")
        raise failure


def _not_told(folder: Path) -> list[tuple[str, str]]:
    """Return a row for each receiver that did not take the message of the end."""
    refused = refusals(folder.parents[1], folder.name)
    return [("not told", f"{one_line(line)}; cloudtrain tries again now") for line in refused]


def _print_sweep(sweep: Sweep, as_json: bool) -> None:
    from cloudtrain.cli.sweep_view import summary_line, sweep_as_json, trial_table
    from cloudtrain.sweeps.journal import RAY_DASHBOARD

    state = sweep.status()
    if as_json:
        print_json(sweep_as_json(state))
        return

    driven = "" if state.ended or sweep.folder.is_driven() else ", and nothing drives it"
    print_output(f"{sweep.id}  {colour_state(state.state)}{driven}  {summary_line(state)}")
    dashboard = sweep.folder.path / RAY_DASHBOARD

    if not state.ended and dashboard.is_file():
        with suppress(OSError):
            address = read_regular_text(dashboard, errors="replace")
            print_output(f"  Ray's dashboard    {one_line(address)}")

    if state.trials:
        print_output(trial_table(state))
    if state.why_ended:
        print_output(f"  ended    {one_line(state.why_ended)}")
    for name, text in _not_told(sweep.folder.path):
        print_output(f"  {name} {text}")
    if driven:
        print_message(f"{command('attach', sweep.id)} continues it")


def _status_rows(run: Run, state: RunState) -> list[tuple[str, str]]:
    rows = []
    if state.owner:
        rows.append(("owner", state.owner))

    rows.append(("submitted", format_age(state.created, time.time())))

    if state.ended:
        verb = "took"
    else:
        verb = "runs" if state.started else "waits"

    rows.append((verb, format_duration(state.seconds(time.time()))))

    if state.instance:
        rows.append(("machines", f"{state.nodes} x {state.instance}"))

    if state.image:
        digest = ""
        if state.image_digest and state.image_digest not in state.image:
            digest = f" ({state.image_digest})"

        rows.append(("image", one_line(state.image + digest)))

    if state.phase and not state.has_ended:
        seconds = max(0.0, time.time() - state.phase_since)
        rows.append(("phase", f"{state.phase} for {format_duration(seconds)}"))

    why = explain(state)
    if state.state == "failed":
        why = diagnose_run(run.folder, state, brief=True).headline
    if why:
        label = "note" if state.state == "succeeded" else "because"
        rows.append((label, why))
    if state.log_unread:
        rows.append(("log", f"cannot be read: {state.log_unread.reason}"))
    if state.kept_until > time.time():
        rows.append(("kept", kept_machines(run.id, state.kept_until - time.time())))
    if state.error and state.error.file:
        rows.append(("at", one_line(source_line(state.error))))

    rows += [("warning", warning) for warning in state.warnings]
    if run.damaged_lines:
        rows.append(("damaged", f"{count(run.damaged_lines, 'line')} of its events cannot be read"))

    at = state.position
    now = time.time()

    if state.activity and not state.has_ended:
        rows.append(("doing", one_line(activity_text(state, now))))

    if at.step is not None and not state.has_ended:
        eta = remaining_seconds(state, now)
        remaining = ""
        if eta is not None:
            remaining = f", {format_duration(eta)} left"

        steps = "?" if at.steps is None else at.steps
        rows.append(("step", f"{at.step}/{steps}{remaining}"))

    if state.metrics:
        latest = [f"{name} {format_number(value)}" for name, value in state.metrics.items()]
        rows.append(("metrics", one_line("  ".join(latest))))

    curves = {name: curve.values for name, curve in state.curves.items()}
    rows += [("", line) for line in learning_curves(curves)]

    if state.restarts:
        rows.append(("restarts", str(state.restarts)))
    if state.checkpoint:
        rows.append(("checkpoint", f"step {state.checkpoint.step}"))
    if cost := _cost(run, state):
        rows.append(("cost", cost))

    rows += result_rows(run)
    if state.ref and state.ref.get("url"):
        rows.append(("console", state.ref["url"]))

    rows.append(("logs", command("logs", run.id)))
    if state.state in ("failed", "stopped"):
        rows.append(("next", next_commands(run, state)[0]))

    return rows


def _cost(run: Run, state: RunState) -> str:
    """Return the billed cost, or the cost until now and at the end; empty if free or unknown."""
    if format_cost(state):
        return format_cost(state)

    forecast = run.forecast()
    if forecast is None:
        return ""

    parts = cost_parts(forecast)
    if not parts:
        return ""

    return f"{', '.join(parts)}, at list price"
