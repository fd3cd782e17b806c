"""The command `diagnose`: why a run, or the program behind a log, failed or is slow."""

from __future__ import annotations

import re
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloudtrain.api.run import Run
from cloudtrain.cli.chosen_run import best_trial, chosen
from cloudtrain.cli.options import data_dir, json_option
from cloudtrain.cli.output import command, print_json, print_prose
from cloudtrain.cli.terminal import indented, one_line
from cloudtrain.declaration import rehearsed_by
from cloudtrain.diagnosis.failure import (
    Diagnosis,
    diagnose_limit,
    diagnose_lines,
    diagnose_run,
    was_refused,
)
from cloudtrain.diagnosis.log_text import read_log
from cloudtrain.diagnosis.slowness import Slowness, diagnose_slowness
from cloudtrain.errors import CloudError, RunNotFound, StorageError, UsageError
from cloudtrain.runs.state import RunState, explain
from cloudtrain.settings import DEFAULT_PROVIDER
from cloudtrain.spec.sources import FILE
from cloudtrain.units import format_duration
from cloudtrain_wire.bounded_files import open_regular_file

if TYPE_CHECKING:
    from cloudtrain.sweeps.sweep import Sweep

_RESTART_TEXTS = {
    "retry": "the same may succeed: start it again",
    "never": "no restart is needed",
    "after a change": "the same would fail again: change something first",
}
_SHOWN_CHARACTERS = 300
_SHOWN_SHARE = 0.005
CLEAR_FROM = 0.5
"""Minimum confidence of a verdict on the speed that is not a guess."""


@click.command(
    "diagnose",
    epilog="""\b
Examples:
  cloudtrain diagnose last
  kubectl logs job | cloudtrain diagnose -""",
)
@click.argument("target", metavar="[RUN|LOGFILE|-]", required=False)
@json_option
@data_dir
def diagnose_command(folder: str | None, /, target: str | None, as_json: bool) -> None:
    """Explain why RUN (default: the newest of this folder) failed, or why it is slow.

    It shows the root cause, its evidence, and what to do.

    A log file of any program, or - for standard input, needs no run. For a sweep: the
    failed trials by cause, with the settings that set them apart, or its best trial if none failed.
    """
    if target == "-":
        _show_log(diagnose_log(None), "standard input", as_json)
    elif target and _is_log(Path(target)):
        _show_log(diagnose_log(Path(target)), target, as_json)
    else:
        run = _run_or_sweep(target, folder)
        if isinstance(run, Run):
            _show_run(run, as_json)
        else:
            _show_sweep(run, as_json)


def _is_log(path: Path) -> bool:
    """Return whether the path is a file, or a pipe such as `<(zstdcat train.log.zst)`."""
    with suppress(OSError, ValueError):  # a whole message is too long for a name
        return path.is_file() or path.is_fifo() or path.is_char_device()

    return False


def _run_or_sweep(target: str | None, folder: str | None) -> Run | Sweep:
    """Return the run or sweep that is meant.

    RunNotFound explains a name that looks like a file or a message.
    """
    try:
        return chosen(target, folder)
    except RunNotFound:
        if target and re.search(r"[\s/.]", target):
            raise RunNotFound(
                f"there is no file {target[:60]!r}, and no run of that name",
                hint="the text of a log is read from a file or a pipe: cloudtrain diagnose -",
            ) from None

        raise


def diagnose_log(path: Path | None) -> Diagnosis:
    """Return the root cause in a log file; None means standard input.

    Raise UsageError if it cannot be read.
    """
    notes: list[str] = []
    if path is None:
        return diagnose_lines(read_log(sys.stdin.buffer, "line", notes), notes)

    try:
        with open_regular_file(path) if path.is_file() else path.open("rb") as file:
            return diagnose_lines(read_log(file, path.name, notes), notes)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None


def _show_log(diagnosis: Diagnosis, name: str, as_json: bool) -> None:
    if as_json:
        print_json({"log": name, "failure": diagnosis.to_json()})
        return

    headline = diagnosis.headline or diagnosis.cause
    print_prose(f"{one_line(name)}: {indented(headline, 4)}")
    cause = [("cause", diagnosis.cause)] if diagnosis.cause != headline else []
    _print([*cause, *diagnosis_rows(diagnosis)])


def _show_sweep(sweep: Sweep, as_json: bool) -> None:
    """Show why trials failed, or the diagnosis of the best trial if none did."""
    from cloudtrain.cli.sweep_view import show_failed_trials

    if not show_failed_trials(sweep, as_json=as_json):
        _show_run(best_trial(sweep), as_json)


def _show_run(run: Run, as_json: bool) -> None:
    state, failure = _as_known(run)
    diagnosis = diagnose_run(run.folder, state) if state.state == "failed" else None

    if state.state == "stopped":
        diagnosis = diagnose_limit(run.folder, state)

    slowness = diagnose_slowness(run.folder, state)
    if as_json:
        if failure is not None:
            raise failure

        found_all = {
            "failure": diagnosis.to_json() if diagnosis else None,
            "slowness": slowness.to_json(),
        }
        following = next(iter(_next(run, state, diagnosis)), None)
        print_json({"run": run.id, "state": state.state, **found_all, "next": following})

        return

    print_prose(_headline(run, state, is_current=failure is None))
    rows = diagnosis_rows(diagnosis) if diagnosis else []

    if diagnosis and diagnosis.cause not in explain(state):
        rows.insert(0, ("cause", diagnosis.cause))
    if slowness.is_slow or (diagnosis is None and state.started):
        rows += slowness_rows(slowness)

    if state.phase and not state.started and not state.has_ended:
        rows.append(
            (
                "phase",
                f"{state.phase} for {format_duration(max(0.0, time.time() - state.phase_since))}",
            )
        )

    if state.log_unread:
        rows.append(("note", f"its log could not be read: {state.log_unread.reason}"))

    if failure is not None:
        _print(rows)
        raise failure

    _print([*rows, *(("next", text) for text in _next(run, state, diagnosis))])


def _as_known(run: Run) -> tuple[RunState, CloudError | None]:
    """Return the current state, or the state last seen and the error of the cloud."""
    try:
        return run.status(), None
    except (CloudError, StorageError) as error:
        state = run.cached_status()
        if isinstance(error, StorageError) and state.ref is None:
            raise
        return state, error if isinstance(error, CloudError) and not state.has_ended else None


def _headline(run: Run, state: RunState, *, is_current: bool = True) -> str:
    took = format_duration(state.seconds(time.time()))
    if state.state == "failed":
        return f"{run.id} failed after {took}: {indented(explain(state), 4)}"
    if state.state == "succeeded":
        return f"{run.id} succeeded in {took}: nothing failed"

    if state.has_ended:
        return f"{run.id} was stopped after {took}, and did not fail" + (
            f": {state.reason}" if state.reason else ""
        )

    if not is_current:
        return f"{run.id} was {state.state} when it was last seen; asking again failed"

    return f"{run.id} is {state.state}, and has not failed"


def diagnosis_rows(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Return rows about a failure besides its cause: a label and a text each."""
    rows = [
        ("evidence", f"{line.place}  {line.text[:_SHOWN_CHARACTERS]}")
        for line in diagnosis.evidence
    ]
    rows += [
        ("last lines", f"{line.place}  {line.text[:_SHOWN_CHARACTERS]}")
        for line in diagnosis.last_lines
    ]
    rows += [("followed by", consequence.sentence) for consequence in diagnosis.consequences]

    if diagnosis.remedy:
        rows.append(("remedy", diagnosis.remedy))
    if diagnosis.restart:
        rows.append(("restart", _RESTART_TEXTS[diagnosis.restart]))
    if diagnosis.rule:
        rows.append(("rule", f"{diagnosis.rule.name}  {diagnosis.rule.source}"))

    return [*rows, *(("note", note) for note in diagnosis.notes)]


def slowness_rows(slowness: Slowness) -> list[tuple[str, str]]:
    """Return rows that explain why a run is slow: a label and a text each."""
    is_clear = not slowness.is_slow or slowness.confidence >= CLEAR_FROM
    rows = [
        ("speed", slowness.sentence if is_clear else f"not clear; most likely: {slowness.sentence}")
    ]

    if slowness.is_slow:
        rows.append(
            (
                "gain",
                f"without it up to {slowness.gain:.1f}x as fast; confidence {slowness.confidence:.0%}",
            )
        )

    if slowness.shares:
        phases = {name: share for name, share in slowness.shares.items() if share >= _SHOWN_SHARE}
        largest_first = sorted(phases.items(), key=lambda phase: -phase[1])
        rows.append(("time", ", ".join(f"{name} {share:.0%}" for name, share in largest_first)))

    if slowness.change:
        rows.append(("change", slowness.change))

    return rows


def _next(run: Run, state: RunState, diagnosis: Diagnosis | None) -> list[str]:
    """Return the commands to type next, the most likely first."""
    if state.state == "failed":
        is_elsewhere = (
            diagnosis is not None and diagnosis.rule is not None and diagnosis.rule.is_consequence
        )
        rank = state.error.rank if state.error and not is_elsewhere else -1
        logs = command("logs", run.id, *(("--rank", str(rank)) if rank >= 0 else ()))

        if was_refused(state):  # there is no log
            return _rerun_commands(run, state, as_it_is=False)
        if diagnosis is None or diagnosis.restart is None:
            return [logs]
        if diagnosis.restart == "never":
            return [command("fetch", run.id)]

        says_little = diagnosis.rule is not None and diagnosis.rule.is_symptom
        return [
            *([logs] if says_little else []),
            *_rerun_commands(run, state, as_it_is=diagnosis.restart == "retry"),
        ]

    if state.state == "succeeded":
        return [command("fetch", run.id)]
    if diagnosis is not None and diagnosis.restart == "after a change" and state.checkpoint is None:
        return _rerun_commands(run, state, as_it_is=False)[:1]

    return [command("rerun", run.id) if state.has_ended else command("attach", run.id)]


def _rerun_commands(run: Run, state: RunState, *, as_it_is: bool) -> list[str]:
    """Return how to run it again.

    A rerun has the source and the spec of the run, without later changes.
    """
    rerun = command("rerun", run.id)
    if as_it_is:
        return [rerun]

    rehearsed = rehearsed_by(state.provider, state.contract)
    where = ("--as", rehearsed.name) if rehearsed else ("--provider", state.provider)
    job = () if Path(FILE).is_file() else ("JOB",)
    is_default = state.provider == DEFAULT_PROVIDER and rehearsed is None
    submit = command("submit", *job, *(() if is_default else where))

    return [
        f"{rerun}   after that change; of a setting: --set KEY=VALUE",
        f"{submit}   if the program or job.yaml has changed: a rerun runs what was sent",
    ]


def _print(rows: list[tuple[str, Any]]) -> None:
    before = ""
    for name, text in rows:
        print_prose(f"  {'' if name == before else name:<11} {one_line(str(text))}")
        before = name
