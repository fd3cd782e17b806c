"""Commands to type next for a run: decided here alone, so that no two views contradict each other."""

from __future__ import annotations

from pathlib import Path

from cloudtrain.api.run import Run
from cloudtrain.cli.output import command
from cloudtrain.declaration import rehearsed_by
from cloudtrain.diagnosis.failure import Diagnosis, diagnose_limit, was_refused
from cloudtrain.diagnosis.rules import rule_of
from cloudtrain.diagnosis.rules.clouds import CAPACITY
from cloudtrain.runs.record import RunRecord
from cloudtrain.runs.state import RunState
from cloudtrain.settings import DEFAULT_PROVIDER


def next_commands(run: Run, state: RunState, diagnosis: Diagnosis | None = None) -> list[str]:
    """Return the commands, the most likely first.

    `diagnosis`: why it failed; None if the log was not read. Then `diagnose` reads it first.
    """
    if state.state == "failed":
        return _after_failure(run, state, diagnosis)
    if state.state == "succeeded":
        return _fetch(run)
    if not state.has_ended:
        return [command("attach", run.id)]

    limit = diagnosis or diagnose_limit(run.folder, state)
    is_change_needed = limit is not None and limit.restart == "after a change"
    if is_change_needed and state.checkpoint is None:
        return _rerun_commands(run, state, as_it_is=False)[:1]

    return _rerun_commands(run, state, as_it_is=True)


def fetch_words(run: Run) -> str:
    """Return the command that copies what a run has left; empty if there is nothing to copy."""
    artifacts = run.artifacts()
    if not artifacts:
        return ""
    if set(artifacts) == {"checkpoints"}:
        return command("fetch", run.id, "--checkpoints")

    return command("fetch", run.id)


def _fetch(run: Run) -> list[str]:
    words = fetch_words(run)
    return [words] if words else []


def _after_failure(run: Run, state: RunState, diagnosis: Diagnosis | None) -> list[str]:
    has_no_machine = not state.started and not state.error and rule_of(state.reason) in CAPACITY
    if has_no_machine and (elsewhere := rerun_elsewhere(run)):
        return [elsewhere]
    if was_refused(state):  # there is no log
        return _rerun_commands(run, state, as_it_is=False)
    if diagnosis is None:
        return [command("diagnose", run.id)]
    if diagnosis.restart is None:
        return [_logs_command(run, state, diagnosis)]
    if diagnosis.restart == "never":
        return _fetch(run)

    commands = _rerun_commands(run, state, as_it_is=diagnosis.restart == "retry")
    if diagnosis.rule is not None and diagnosis.rule.is_symptom:  # it says little
        commands.insert(0, _logs_command(run, state, diagnosis))

    return commands


def rerun_elsewhere(run: Run) -> str:
    """Return the command for the other machines of the run's list; empty if there are none."""
    words = ["rerun", run.id]
    for text in RunRecord(run.folder).other_machines:
        words += ["--set", text]

    return command(*words) if words[2:] else ""


def _logs_command(run: Run, state: RunState, diagnosis: Diagnosis) -> str:
    """Return the command that shows the log; of one rank if the cause is there."""
    is_elsewhere = diagnosis.rule is not None and diagnosis.rule.is_consequence
    if state.error is None or is_elsewhere or state.error.rank < 0:
        return command("logs", run.id)

    return command("logs", run.id, "--rank", str(state.error.rank))


def _rerun_commands(run: Run, state: RunState, *, as_it_is: bool) -> list[str]:
    """Return how to run it again.

    A rerun has the source and the spec of the run, without later changes.
    """
    rerun = command("rerun", run.id)
    if as_it_is:
        if state.checkpoint:
            rerun += f"   continues from the checkpoint of step {state.checkpoint.step}"
        return [rerun]

    from cloudtrain.spec.sources import FILE  # it loads the reader of YAML

    words = ["submit"]
    if not Path(FILE).is_file():
        words.append("JOB")

    rehearsed = rehearsed_by(state.provider, state.contract)
    if rehearsed:
        words += ["--as", rehearsed.name]
    elif state.provider != DEFAULT_PROVIDER:
        words += ["--provider", state.provider]

    return [
        f"{rerun}   after that change; of a setting: --set KEY=VALUE",
        f"{command(*words)}   if the program or job.yaml has changed: a rerun runs what was sent",
    ]
