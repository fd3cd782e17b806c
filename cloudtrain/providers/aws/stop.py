"""Stop a job, and release the machines that SageMaker keeps after it (a warm pool)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import CloudError, UsageError
from cloudtrain.providers.aws.phases import final_state, timestamp, warm_pool_events
from cloudtrain.providers.aws.status import usd_per_hour
from cloudtrain.providers.aws.submit import describe, reconcile
from cloudtrain.providers.shared.idempotent_create import is_new
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.observation import Observation, Record
from cloudtrain.runs.state import RunState
from cloudtrain_launcher.events import Kept, StopRequested

if TYPE_CHECKING:
    from cloudtrain.providers.aws.client import AwsClient

TAG_DELAY_SECONDS = 300
"""Maximum delay until policies about tags allow access to a new job (as in AWS's SDK)."""


def stop(cloud: AwsClient, run: RunFolder, state: RunState, record: Record) -> bool:
    """Call StopTrainingJob, unless the job is stopping or over. Return False to try again."""
    if state.ref is None:
        record(Observation(events=reconcile(cloud, run, time.time())))
    if state.ref is None:
        return state.has_ended
    try:
        cloud.call("sagemaker", "stop_training_job", TrainingJobName=run.run_id)
    except CloudError as error:
        if error.is_denied and has_new_tags(describe(cloud, run.run_id)):
            return False
        if error.code not in ("ValidationException", "NotFound"):
            raise
        # SageMaker refuses to stop a job that is over; the next observation reports its end.
        try:
            described = describe(cloud, run.run_id)
        except CloudError:
            raise error from None  # report the refusal, not that the status could not be read
        if described is None and is_new(state, time.time()):
            return False
        if described is not None and not _is_over_or_stopping(described):
            raise
        return True
    record(Observation(events=[StopRequested(time=time.time(), reason="stop was asked")]))
    return True


def has_new_tags(described: Mapping[str, Any] | None) -> bool:
    """Return True if a job is so new that AWS may deny what a policy allows for its tags."""
    created = timestamp((described or {}).get("CreationTime"))
    return time.time() < created + TAG_DELAY_SECONDS


def warm_pool_observation(cloud: AwsClient, run: RunFolder, state: RunState) -> Observation:
    """Return the state of the warm pool of an ended run; no events if it is unchanged."""
    described = describe(cloud, run.run_id) or {}
    pool_events = warm_pool_events(described, time.time(), usd_per_hour(described, run))
    if not pool_events:  # the description no longer mentions it
        pool_events = [Kept(time=time.time(), status="Terminated")]
    previous = (state.kept.status, state.kept.until) if state.kept else ("", 0.0)
    return Observation(
        events=[event for event in pool_events if (event.status, event.until) != previous]
    )


def release(cloud: AwsClient, run: RunFolder, state: RunState) -> Observation:
    """Release the machines kept after a job. Raise UsageError if there are none.

    UpdateTrainingJob with a KeepAlivePeriodInSeconds of 0, as the developer guide ends a warm pool.
    """
    described = describe(cloud, run.run_id)
    status = str(((described or {}).get("WarmPoolStatus") or {}).get("Status", ""))
    if described is None or status not in ("InUse", "Available"):
        why = {
            "Reused": "another job has taken them over",
            "Terminated": "they were given back",
        }.get(status)
        message = f"run {run.run_id} keeps no machines" + (f": {why}" if why else "")
        raise UsageError(message, hint="aws.keep_alive keeps them after a job")
    resources = {"KeepAlivePeriodInSeconds": 0}
    try:
        cloud.call(
            "sagemaker", "update_training_job", TrainingJobName=run.run_id, ResourceConfig=resources
        )
    except CloudError as error:
        if error.is_denied and has_new_tags(described):
            error.hint = (
                f"{error.hint}; or the job is too new: repeat it when the job is 5 minutes old"
            )
        raise
    time_now = time.time()
    released = (
        Kept(time=time_now, status="Terminated")
        if state.has_ended
        else Kept(time=time_now, status=status, seconds=0)
    )
    return Observation(events=[released])


def _is_over_or_stopping(described: Mapping[str, Any]) -> bool:
    """Return True if the job is stopping or over."""
    return final_state(described) is not None or described["TrainingJobStatus"] == "Stopping"
