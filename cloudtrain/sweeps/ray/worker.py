"""Work of a Ray worker: start the run of a trial, and stay until it has ended.

Driver and workers share the data folder: a worker reads the journal of the sweep there, and the
driver reads the events of the run. Only the driver writes the journal.
"""

from __future__ import annotations

import socket
import time
from dataclasses import replace
from pathlib import Path

from cloudtrain.errors import CloudtrainError, StorageError, UsageError
from cloudtrain.providers.local.processes import end_runs_with_this_process
from cloudtrain.sweeps.definition import Definition
from cloudtrain.sweeps.driver import PAUSE_SECONDS, to_be_stopped
from cloudtrain.sweeps.journal import RunEnded, SweepFolder
from cloudtrain.sweeps.ray.trials import Placement, WorkerLost
from cloudtrain.sweeps.state import SweepState, Trial, state_of
from cloudtrain.sweeps.trials import RunTrials, run_ended
from cloudtrain_wire.cores import available_cores


def work(path: Path, placement: Placement) -> RunEnded | None:
    """Carry out a run of the sweep at `path`. Return the end of a run that was not started.

    Raise WorkerLost if another worker has started it.
    """
    end_runs_with_this_process()
    folder = SweepFolder(path)
    try:
        definition = _definition(folder)
        state = _state(folder, definition)
        trial = _announced(state, placement)
        if not _is_wanted(state, trial):
            return run_ended(trial, "stopped", "it had not begun")

        at_once = min(definition.parallel, max(1, available_cores() // placement.cpus))
        runs = RunTrials(folder, replace(definition, parallel=at_once))
        if runs.has_run(trial):
            raise WorkerLost(f"a worker of an earlier driver has started run {trial.run}")

        refusal = runs.start(trial)
    except CloudtrainError as error:
        return _refusal(placement, error)

    if refusal is not None:
        return refusal

    # The driver may have withdrawn the run before it saw the start.
    state = _state(folder, definition)
    if not _is_wanted(state, state.trials[trial.number]):
        runs.request_stop(trial)

    while not any(isinstance(event, RunEnded) for event in runs.observe(trial)):
        time.sleep(PAUSE_SECONDS)

    return None


def _definition(folder: SweepFolder) -> Definition:
    try:
        return folder.definition()
    except StorageError as error:
        hint = "setting data_dir: a folder on a disk that all nodes of the cluster share"
        message = f"{socket.gethostname()} does not see {folder.path}"
        raise UsageError(message, hint=hint) from error


def _state(folder: SweepFolder, definition: Definition) -> SweepState:
    return state_of(definition, (event for event, _ in folder.events_from()))


def _announced(state: SweepState, placement: Placement) -> Trial:
    """Return the trial of a run. Raise UsageError if the journal does not announce it."""
    for trial in state.trials:
        if trial.run == placement.run:
            return trial

    sweep_id = state.definition.sweep_id
    raise UsageError(f"run {placement.run} is not announced in the journal of sweep {sweep_id}")


def _is_wanted(state: SweepState, trial: Trial) -> bool:
    return trial.state == "running" and trial not in to_be_stopped(state)


def _refusal(placement: Placement, error: CloudtrainError) -> RunEnded:
    reason = error.message
    if error.hint:
        reason = f"{error.message} ({error.hint})"

    return RunEnded(
        time=time.time(),
        trial=placement.trial,
        run=placement.run,
        outcome="refused",
        reason=reason,
        usd=0.0,
    )
