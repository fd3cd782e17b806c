"""Stopping a job: first so that it can save, then for good.

Azure ML promises no signal before it takes a job's processes away. So the job is told through its own storage, where
its launcher looks, and is cancelled when it has ended by itself, or the time for that is over.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from cloudtrain.contracts.azureml import STOP_FILE
from cloudtrain.errors import CloudError, StorageError
from cloudtrain.providers.azure.config import request_of
from cloudtrain.providers.azure.phases import ending, status_of
from cloudtrain.providers.azure.results import parts
from cloudtrain.providers.azure.status import observe
from cloudtrain.providers.azure.submit import gone, reconcile
from cloudtrain.providers.cloud.outcome import all_nodes_reported
from cloudtrain.runs.events import StopUntold
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.observation import Observation, Record
from cloudtrain.runs.record import RunRecord
from cloudtrain.runs.state import RunState

if TYPE_CHECKING:
    from cloudtrain.providers.azure.client import Workspace

LOOK_SECONDS = 2.0
FINISHING_SECONDS = 15
"""How long a job may take to end by itself once all its nodes have said their last words."""

HEARING_SECONDS = 15
"""How long its nodes may take to see that they are to stop: their grace period begins then."""

"""The event of a stop that could not be told to the job, which therefore goes on."""


def stop(cloud: Workspace, run: RunFolder, state: RunState, pause: float, record: Record) -> bool:
    """Ask it to save and end, wait for that, cancel it. False: not yet, ask again.

    An interrupt while it waits leaves the job to end by itself, as it was told to. A job that cannot be told to save
    goes on: CloudError. Whoever asks once more means it, and it is cancelled.
    """
    if state.ref is None:
        record(Observation(events=reconcile(cloud, run, time.time())))
    if state.ref is None:
        return state.has_ended
    reason = "stop was asked"
    try:
        told = _tell_if_it_runs(cloud, run)
    except (CloudError, StorageError) as error:
        reason = f"{reason}; it could not be told to save, so what came after its last checkpoint is lost: "
        reason += error.message
        if run.last_event(StopUntold) is None:
            record(Observation(events=[StopUntold(time=time.time(), reason=error.message)]))
            raise _untold(run.run_id, error) from error
        told = False
    record(_requested(reason))
    trouble = _let_it_save(cloud, run, state, pause, record) if told else ""
    if trouble:
        with suppress(StorageError):  # a full disk keeps no job from being stopped
            record(_requested(f"{reason}; {trouble}"))
    _cancel(cloud, run.run_id)
    return True


def _requested(reason: str) -> Observation:
    return Observation(events=[{"type": "stop_requested", "time": time.time(), "reason": reason}])


def _untold(run_id: str, error: CloudError | StorageError) -> CloudError:
    """That this stop was not told, and what there is to choose."""
    again = (
        f"it goes on, and costs; once more `cloudtrain stop {run_id}` cancels it at once, and what came after its "
        "last checkpoint is lost"
    )
    return CloudError(
        f"{run_id} cannot be told to save, so it was not stopped: {error.message}",
        hint=f"{error.hint}; {again}" if error.hint else again,
        code=error.code if isinstance(error, CloudError) else "",
    )


def _tell_if_it_runs(cloud: Workspace, run: RunFolder) -> bool:
    """Put the stop file where its nodes look; False for a job that does not run. What passes is tried again."""
    deadline = time.monotonic() + HEARING_SECONDS
    while True:
        try:
            if not _is_running(cloud, run):
                return False
            _tell(cloud, run)
        except CloudError as error:
            if not error.transient or time.monotonic() > deadline:
                raise
            time.sleep(min(1.0, LOOK_SECONDS))
        else:
            return True


def _let_it_save(cloud: Workspace, run: RunFolder, state: RunState, pause: float, record: Record) -> str:
    """Wait until a job that was told is over, or the grace period is; what is to be said where it was not seen to save.

    Where it cannot be looked at, it still has its time.
    """
    grace = _grace(run)
    deadline, blind = time.monotonic() + HEARING_SECONDS + grace, ""
    while time.monotonic() < deadline:
        try:
            for seen in observe(cloud, run, state, pause):
                record(seen)
            blind = ""
        except (CloudError, StorageError) as error:
            blind = error.message
        if state.has_ended:
            return ""
        if all_nodes_reported(state, state.nodes):
            deadline = min(deadline, time.monotonic() + FINISHING_SECONDS)
        time.sleep(min(pause, LOOK_SECONDS))
    if blind:
        return f"whether it has saved is not known: {blind}"
    if all_nodes_reported(state, state.nodes):
        return ""
    return f"it was cancelled after {grace:g} s without having said that it has saved (azure.stop_grace gives more)"


def _grace(run: RunFolder) -> float:
    """How long the job was promised, in seconds."""
    return RunRecord(run).grace_seconds


def _is_running(cloud: Workspace, run: RunFolder) -> bool:
    """Where that cannot be told it is taken to run: a job that does not is cancelled later for that, and no worse."""
    try:
        details = cloud.details(run.run_id)
    except CloudError:
        return True
    return details is not None and status_of(details) == "Running"


def _tell(cloud: Workspace, run: RunFolder) -> None:
    datastore, folder = parts(request_of(run)["outputs"]["output"]["path"])
    cloud.container(datastore).put(folder + STOP_FILE, b"")


def _cancel(cloud: Workspace, name: str) -> None:
    """A job that is over already cannot be cancelled, and need not be."""
    try:
        cloud.cancel(name)
    except CloudError as refused:
        try:
            details = cloud.details(name)
        except CloudError:
            raise refused from None  # that it was not cancelled is the news, not that nobody can tell how it stands
        if details is None:
            raise gone(cloud, name) from None
        if ending(details) is None and status_of(details) != "CancelRequested":
            raise
