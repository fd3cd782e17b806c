"""The command `diagnose`: why a run, or the program behind a log, failed or is slow."""

from __future__ import annotations

import re
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from cloudtrain.api.run import Run
from cloudtrain.cli.chosen_run import best_trial, chosen
from cloudtrain.cli.next_command import next_commands
from cloudtrain.cli.options import data_dir, json_option
from cloudtrain.cli.output import print_json, print_prose
from cloudtrain.cli.run_end import result_rows
from cloudtrain.cli.terminal import indented, one_line, progress_bar
from cloudtrain.diagnosis.failure import (
    Diagnosis,
    diagnose_limit,
    diagnose_lines,
    diagnose_run,
)
from cloudtrain.diagnosis.log_text import Evidence, read_log
from cloudtrain.diagnosis.slowness import Slowness, diagnose_slowness
from cloudtrain.errors import CloudError, RunNotFound, StorageError, UsageError
from cloudtrain.runs.state import RunState
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
        with _opened(path) as file:
            return diagnose_lines(read_log(file, path.name, notes), notes)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None


def _opened(path: Path) -> BinaryIO:
    if path.is_file():
        return open_regular_file(path)

    return path.open("rb")


def _show_log(diagnosis: Diagnosis, name: str, as_json: bool) -> None:
    if as_json:
        print_json({"log": name, "failure": diagnosis.to_json()})
        return

    headline = diagnosis.headline or diagnosis.cause
    print_prose(f"{one_line(name)}: {indented(headline, 4)}")

    rows = diagnosis_rows(diagnosis)
    if diagnosis.cause != headline:
        rows.insert(0, ("cause", diagnosis.cause))

    _print(rows)


def _show_sweep(sweep: Sweep, as_json: bool) -> None:
    """Show why trials failed, or the diagnosis of the best trial if none did."""
    from cloudtrain.cli.sweep_view import show_failed_trials

    if not show_failed_trials(sweep, as_json=as_json):
        _show_run(best_trial(sweep), as_json)


def _show_run(run: Run, as_json: bool) -> None:
    state, failure = _as_known(run)
    diagnosis = None
    if state.state == "failed":
        bar = progress_bar("reading the log", bytes_=True)
        diagnosis = diagnose_run(run.folder, state, bar)
    elif state.state == "stopped":
        diagnosis = diagnose_limit(run.folder, state)

    slowness = diagnose_slowness(run.folder, state)
    if as_json:
        if failure is not None:
            raise failure

        commands = next_commands(run, state, diagnosis)
        print_json(
            {
                "run": run.id,
                "state": state.state,
                "failure": diagnosis and diagnosis.to_json(),
                "slowness": slowness.to_json(),
                "next": commands[0] if commands else None,
            }
        )

        return

    why = diagnosis.headline if diagnosis else ""
    print_prose(_headline(run, state, why, is_current=failure is None))
    rows = []
    if diagnosis:
        rows = diagnosis_rows(diagnosis)
        if diagnosis.cause not in why:
            rows.insert(0, ("cause", diagnosis.cause))

    if slowness.is_slow or (diagnosis is None and state.started):
        rows += slowness_rows(slowness)

    if state.phase and not state.started and not state.has_ended:
        seconds = max(0.0, time.time() - state.phase_since)
        rows.append(("phase", f"{state.phase} for {format_duration(seconds)}"))

    if state.log_unread:
        rows.append(("note", f"its log could not be read: {state.log_unread.reason}"))

    if failure is not None:
        _print(rows)
        raise failure

    if state.has_ended:
        rows += result_rows(run)

    rows += [("next", text) for text in next_commands(run, state, diagnosis)]
    _print(rows)


def _as_known(run: Run) -> tuple[RunState, CloudError | None]:
    """Return the current state, or the state last seen and the error of the cloud."""
    try:
        return run.status(), None
    except (CloudError, StorageError) as error:
        state = run.cached_status()
        if isinstance(error, StorageError):
            if state.ref is None:
                raise

            return state, None
        if state.has_ended:
            return state, None

        return state, error


def _headline(run: Run, state: RunState, why: str, *, is_current: bool) -> str:
    took = format_duration(state.seconds(time.time()))
    if state.state == "failed":
        return f"{run.id} failed after {took}: {indented(why, 4)}"
    if state.state == "succeeded":
        return f"{run.id} succeeded in {took}: nothing failed"

    if state.has_ended:
        text = f"{run.id} was stopped after {took}, and did not fail"
        if state.reason:
            text += f": {state.reason}"

        return text

    if not is_current:
        return f"{run.id} was {state.state} when it was last seen; asking again failed"

    return f"{run.id} is {state.state}, and has not failed"


def diagnosis_rows(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Return rows about a failure besides its cause: a label and a text each."""
    rows = [("evidence", _shown_line(line)) for line in diagnosis.evidence]
    rows += [("last lines", _shown_line(line)) for line in diagnosis.last_lines]
    rows += [("followed by", consequence.sentence) for consequence in diagnosis.consequences]

    if diagnosis.remedy:
        rows.append(("remedy", diagnosis.remedy))
    if diagnosis.restart:
        rows.append(("restart", _RESTART_TEXTS[diagnosis.restart]))
    if diagnosis.rule:
        rows.append(("rule", f"{diagnosis.rule.name}  {diagnosis.rule.source}"))

    rows += [("note", note) for note in diagnosis.notes]
    return rows


def _shown_line(line: Evidence) -> str:
    return f"{line.place}  {line.text[:_SHOWN_CHARACTERS]}"


def slowness_rows(slowness: Slowness) -> list[tuple[str, str]]:
    """Return rows that explain why a run is slow: a label and a text each."""
    speed = slowness.sentence
    if slowness.is_slow and slowness.confidence < CLEAR_FROM:
        speed = f"not clear; most likely: {speed}"

    rows = [("speed", speed)]

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


def _print(rows: list[tuple[str, Any]]) -> None:
    before = ""
    for name, text in rows:
        label = "" if name == before else name
        print_prose(f"  {label:<11} {one_line(str(text))}")
        before = name
