"""Asking SageMaker to stop a job."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cloudtrain.errors import CloudError
from cloudtrain.providers.aws.phases import ending
from cloudtrain.providers.aws.submit import describe, reconcile
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.observation import Observation, Record
from cloudtrain.runs.state import RunState

if TYPE_CHECKING:
    from cloudtrain.providers.aws.client import Aws


def stop(cloud: Aws, run: RunFolder, state: RunState, record: Record) -> bool:
    """StopTrainingJob; a job that is stopping or over already is left as it is. False: not yet, ask again."""
    if state.ref is None:
        record(Observation(events=reconcile(cloud, run, time.time())))
    if state.ref is None:
        return state.has_ended
    try:
        cloud.call("sagemaker", "stop_training_job", TrainingJobName=run.run_id)
    except CloudError as error:
        if error.code not in ("ValidationException", "NotFound"):
            raise
        # SageMaker refuses to stop what has ended; observing tells how it did.
        if _needs_no_stop(cloud, run.run_id):
            return True
        raise
    record(Observation(events=[{"type": "stop_requested", "time": time.time(), "reason": "stop was asked"}]))
    return True


def _needs_no_stop(cloud: Aws, name: str) -> bool:
    """Whether the job is stopping, over or gone. False where that cannot be told: then the refusal is the news."""
    try:
        described = describe(cloud, name)
    except CloudError:
        return False
    return described is None or ending(described) is not None or described["TrainingJobStatus"] == "Stopping"
