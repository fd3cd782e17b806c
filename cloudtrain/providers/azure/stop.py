"""Stop a job: ask it to save and end, and then cancel it.

Azure ML promises no signal before it removes a job's processes. So a stop file is written to the
job's own storage, where the launcher looks for it, and the job is cancelled once it has ended or
the grace period is over.
"""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING

from cloudtrain.errors import CloudError, StorageError
from cloudtrain.planning.azureml import STOP_FILE
from cloudtrain.providers.azure.config import client_of_run, config_of, request_of
from cloudtrain.providers.azure.phases import final_state, status_of
from cloudtrain.providers.azure.results import datastore_path
from cloudtrain.providers.azure.status import observe
from cloudtrain.providers.azure.submit import job_not_found, reconcile
from cloudtrain.providers.shared.idempotent_create import settle
from cloudtrain.providers.shared.log_attempt import all_nodes_reported
from cloudtrain.runs.logs import Observation, Record
from cloudtrain_wire.events import StopRequested, StopUntold

if TYPE_CHECKING:
    from cloudtrain.providers.azure.client import Workspace
    from cloudtrain.runs.folder import RunFolder
    from cloudtrain.runs.state import RunState

POLL_SECONDS = 2.0
"""Maximum interval between two status requests while waiting for the job to save."""

FINISHING_SECONDS = 15
"""Seconds for a job to end by itself once all its nodes have reported."""

NOTICE_SECONDS = 15
"""Seconds for nodes to notice the stop file; their grace period begins then."""


def stop(run: RunFolder, state: RunState, record: Record) -> bool:
    """Ask the job to save and end, wait, then cancel it. Return False if it does not exist yet.

    If it is interrupted while waiting, the job still ends by itself. If the stop file cannot be
    written, the job continues and CloudError is raised; a second call then cancels it at once.
    """
    cloud = client_of_run(run)
    if settle(state, record, lambda: reconcile(cloud, run, time.time())) is None:
        return state.has_ended

    reason = "stop requested"
    try:
        must_wait = _write_stop_file_if_running(cloud, run)
    except (CloudError, StorageError) as error:
        reason += (
            "; it could not be told to save, so what came after its last checkpoint is lost: "
            f"{error.message}"
        )
        if run.last_event(StopUntold) is None:
            record(Observation(events=[StopUntold(time=time.time(), reason=error.message)]))
            raise _undelivered_stop(run.run_id, error) from error
        must_wait = False

    record(_stop_requested(reason))
    problem = ""
    if must_wait:
        problem = _wait_until_saved(run, state, record)

    if problem:
        with suppress(StorageError):  # a full disk must not keep a job from being stopped
            record(_stop_requested(f"{reason}; {problem}"))

    cancel(cloud, run.run_id)
    return True


def _stop_requested(reason: str) -> Observation:
    return Observation(events=[StopRequested(time=time.time(), reason=reason)])


def _undelivered_stop(run_id: str, error: CloudError | StorageError) -> CloudError:
    """Return the error of a stop that did not reach the job, with what to do next."""
    hint = (
        f"it continues, and costs; once more `cloudtrain stop {run_id}` cancels it at once, and what"
        " came after its last checkpoint is lost"
    )
    if error.hint:
        hint = f"{error.hint}; {hint}"

    code = error.code if isinstance(error, CloudError) else ""
    message = f"{run_id} cannot be told to save, so it was not stopped: {error.message}"
    return CloudError(message, hint=hint, code=code)


def _write_stop_file_if_running(cloud: Workspace, run: RunFolder) -> bool:
    """Write the stop file; return False if the job is not running.

    Transient errors are retried for NOTICE_SECONDS.
    """
    deadline = time.monotonic() + NOTICE_SECONDS
    while True:
        try:
            if not _is_running(cloud, run):
                return False
            datastore, folder = datastore_path(request_of(run)["outputs"]["output"]["path"])
            cloud.container(datastore).put(folder + STOP_FILE, b"")
        except CloudError as error:
            if not error.transient or time.monotonic() > deadline:
                raise
            time.sleep(min(1.0, POLL_SECONDS))
        else:
            return True


def _wait_until_saved(run: RunFolder, state: RunState, record: Record) -> str:
    """Wait for the end of the job or its grace period; return a note if it may not have saved.

    While its status cannot be read, the job still gets its whole grace period.
    """
    from cloudtrain.runs.record import RunRecord

    grace_seconds = RunRecord(run).grace_seconds
    deadline = time.monotonic() + NOTICE_SECONDS + grace_seconds

    last_error = ""
    while time.monotonic() < deadline:
        try:
            for observation in observe(run, state):
                record(observation)
            last_error = ""
        except (CloudError, StorageError) as error:
            last_error = error.message
        if state.has_ended:
            return ""
        if all_nodes_reported(state, state.nodes):
            deadline = min(deadline, time.monotonic() + FINISHING_SECONDS)
        time.sleep(min(config_of(run).poll, POLL_SECONDS))
    if last_error:
        return f"whether it has saved is not known: {last_error}"
    if all_nodes_reported(state, state.nodes):
        return ""

    after = f"after {grace_seconds:g} s"
    return (
        f"it was cancelled {after} without having said that it has saved (azure.stop_grace gives"
        " more)"
    )


def _is_running(cloud: Workspace, run: RunFolder) -> bool:
    """Return True if the job is running, or if its status cannot be read.

    The latter only delays the cancellation.
    """
    try:
        details = cloud.details(run.run_id)
    except CloudError:
        return True

    return details is not None and status_of(details) == "Running"


def cancel(cloud: Workspace, name: str) -> None:
    """Cancel the job. Ignore a refusal if the job is over or being cancelled."""
    try:
        cloud.cancel(name)
    except CloudError as refused:
        try:
            details = cloud.details(name)
        except CloudError:
            raise refused from None  # report the refusal, not that the status could not be read
        if details is None:
            raise job_not_found(cloud, name) from None
        if final_state(details) is None and status_of(details) != "CancelRequested":
            raise
