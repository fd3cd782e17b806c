"""Phase, end and bill of a training job, from its description."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from cloudtrain.planning.sagemaker import instance_of
from cloudtrain.providers.shared.log_attempt import TIME_IS_UP, FinalState, with_billing
from cloudtrain.runs.state_names import WAITING
from cloudtrain_wire.events import Billing, Kept, Phase

if TYPE_CHECKING:
    from cloudtrain.runs.state import RunState

PHASES = {
    "Starting": "starting",
    "Pending": WAITING,
    "LaunchingMLInstances": "launching machines",
    "PreparingTrainingStack": "preparing machines",
    "Downloading": "downloading inputs",
    "DownloadingTrainingImage": "downloading the image",
    "Training": "training",
    "Uploading": "uploading the model",
    "Interrupted": "interrupted: the spot machines were taken away",
    "Restarting": "restarting after an internal error, billed again (limits.retries)",
    "Updating": "updating",
    "Stopping": "stopping",
    "Completed": "bringing the last lines",
    "Failed": "bringing the last lines",
    "Stopped": "bringing the last lines",
    "MaxRuntimeExceeded": "bringing the last lines",
    "MaxWaitTimeExceeded": "bringing the last lines",
}
"""Secondary status -> phase; an unknown one is shown unchanged, as AWS may add some."""

MESSAGE_PHASES = {
    "insufficient capacity": WAITING,
    "waiting for capacity": WAITING,
    "preparing the instances": "preparing machines",
    "launching requested ml instances": "launching machines",
    "downloading the training image": "downloading the image",
}
"""Part of a StatusMessage in lower case -> phase, which is finer than the secondary status.

SageMaker changes the message within a transition. `Pending` covers the wait for a machine and its
boot, `Starting` covers a spot job's wait, and `Downloading` the image (jobs observed 2023 to 2026).
"""

ENDED: Mapping[str, Literal["succeeded", "failed", "stopped"]] = {
    "Completed": "succeeded",
    "Failed": "failed",
    "Stopped": "stopped",
}
"""TrainingJobStatus -> final state. `Stopping` is not final."""

_STATUSES = {*ENDED, "InProgress", "Stopping"}
"""Each TrainingJobStatus whose secondary status tells more."""

_TIMED_OUT = {
    "MaxRuntimeExceeded": TIME_IS_UP,
    "MaxWaitTimeExceeded": "no capacity came in time (limits.max_wait)",
    "MaxPendingTimeExceeded": "no capacity came in time (limits.max_wait)",
}

_ERRORS = {
    "AlgorithmError": "",
    "ClientError": "SageMaker could not begin: ",
    "CapacityError": "no capacity: ",
    "InternalServerError": "SageMaker failed: ",
}
"""Prefix of a FailureReason -> words (developer guide, errors of training jobs)."""

_LARGE_CHECKPOINTS = (
    " SageMaker also says this if checkpoints of many GB cannot be copied or restored, and"
    " limits.retries pays for the same failure again: keep fewer or smaller checkpoints"
)
"""Seen in all four jobs whose checkpoints were too large (2021 to 2025)."""


def phase_of(described: Mapping[str, Any]) -> str:
    """Return the phase by message and secondary status.

    A status that is unknown, or `Deleting`, is shown as itself.
    """
    transitions = described.get("SecondaryStatusTransitions") or [{}]
    message = str(transitions[-1].get("StatusMessage") or "").lower()
    for text, phase in MESSAGE_PHASES.items():
        if text in message:
            return phase

    status = str(described.get("TrainingJobStatus", ""))
    if status and status not in _STATUSES:
        return status

    secondary = str(described.get("SecondaryStatus", ""))
    return PHASES.get(secondary, secondary)


def phase_since(described: Mapping[str, Any]) -> float:
    """Return the start of the phase as a Unix timestamp; 0 if unknown."""
    transitions = described.get("SecondaryStatusTransitions") or []
    if not transitions:
        return 0.0

    return timestamp(transitions[-1].get("StartTime"))


def phase_event(
    described: Mapping[str, Any],
    time_now: float,
    state: RunState | None = None,
) -> Phase:
    """Return the event for the current phase, with the instance type once it is selected.

    `state`: the state before; None for a run that is seen for the first time.
    """
    phase = phase_of(described)
    running = phase == PHASES["Training"]
    instance = selected_instance(described)
    since = phase_since(described)
    if state is not None and since <= state.phase_since:
        since = time_now  # the transition is the same, only its message has changed

    event = Phase(time=time_now, phase=phase, since=since or time_now)
    if running:
        event = event.replace(running=True)
    if not instance:
        return event

    return event.replace(instance=instance)


def selected_instance(described: Mapping[str, Any]) -> str:
    """Return the instance type of the job; empty until SageMaker has selected one."""
    resources = described.get("ResourceConfig") or {}
    return str(resources.get("SelectedInstanceType") or resources.get("InstanceType") or "")


def warm_pool_events(
    described: Mapping[str, Any],
    time_now: float,
    usd_per_hour: float | None,
) -> list[Kept]:
    """Return the event about a warm pool; empty if it was not requested or granted.

    If the quota for warm pools is 0, SageMaker returns no error and no WarmPoolStatus.
    """
    pool = described.get("WarmPoolStatus")
    seconds = keep_alive_seconds(described)
    if not pool:
        return []

    event = Kept(time=time_now, status=str(pool.get("Status", "")), seconds=seconds)
    if final_state(described) is not None:
        until = (ended_at(described) or time_now) + seconds
        event = with_billing(event.replace(until=until), billing(described, usd_per_hour))

    if pool.get("ReusedByJob"):
        event = event.replace(by=pool["ReusedByJob"])

    return [event]


def keep_alive_seconds(described: Mapping[str, Any]) -> int:
    """Return the seconds to keep the machines after the job; 0: not at all."""
    return int((described.get("ResourceConfig") or {}).get("KeepAlivePeriodInSeconds") or 0)


def final_state(described: Mapping[str, Any]) -> FinalState | None:
    """Return the final state and its reason; None for a running job or an unknown status."""
    state = ENDED.get(str(described.get("TrainingJobStatus")))
    if state is None:
        return None

    reason = str(described.get("FailureReason") or "")
    if state == "stopped":
        secondary = str(described.get("SecondaryStatus") or "Stopped")
        default = "stop requested" if secondary == "Stopped" else secondary
        reason = _TIMED_OUT.get(secondary, reason or default)
        if secondary == "MaxWaitTimeExceeded" and has_trained(described):
            reason = "the time for waiting and training together is over (limits.max_wait)"

    began = has_trained(described)
    words = ""
    if state != "succeeded":
        words = readable_reason(reason, began=began)

    if reason.startswith("InternalServerError") and described.get("CheckpointConfig"):
        words += _LARGE_CHECKPOINTS

    return FinalState(state, words)


def has_trained(described: Mapping[str, Any]) -> bool:
    """Return True if the job's program ever ran; if not, its log stays empty.

    A result of Search may lack the transitions: seconds of training decide then.
    """
    transitions = described.get("SecondaryStatusTransitions")
    if not transitions:
        return bool(described.get("TrainingTimeInSeconds"))

    return any(item.get("Status") == "Training" for item in transitions)


def readable_reason(reason: str, *, began: bool = False) -> str:
    """Return SageMaker's FailureReason without exception names.

    `began`: whether the job's program ever ran.
    """
    program = re.fullmatch(r"AlgorithmError: (.*), exit code: (-?\d+)", reason, re.DOTALL)
    if program:
        message = program[1].strip(" ,")
        code = program[2]
        if not message:
            return f"a container ended with exit code {code}"
        return f"{message} (exit code {code})"

    for name, words in _ERRORS.items():
        if reason.startswith(f"{name}: "):
            # a checkpoint, or the model, could not be stored
            if began and name == "ClientError":
                words = "SageMaker could not go on: "
            while reason.startswith(f"{name}: "):  # it is doubled at times
                reason = reason.removeprefix(f"{name}: ")
            return words + reason

    return reason


def billing(described: Mapping[str, Any], usd_per_hour: float | None) -> Billing | None:
    """Return the cost of the job, `usd` if the price is known; None before SageMaker reports it.

    `usd_per_hour`: on-demand price of all machines of the job together; None: unknown. SageMaker's
    billable seconds already include the spot discount. Machines of a training plan are paid.
    """
    if is_prepaid(described):
        usd_per_hour = 0.0
    billed = described.get("BillableTimeInSeconds")
    if billed is None:
        return None

    bill = Billing(billable_seconds=billed)
    if "TrainingTimeInSeconds" in described:
        bill = bill.replace(training_seconds=described["TrainingTimeInSeconds"])

    warm = (described.get("WarmPoolStatus") or {}).get("ResourceRetainedBillableTimeInSeconds")
    if warm:
        bill = bill.replace(kept_seconds=warm)
    if usd_per_hour is not None:
        bill = bill.replace(usd=round((billed + (warm or 0)) / 3600 * usd_per_hour, 4))

    return bill


def is_prepaid(described: Mapping[str, Any]) -> bool:
    """Return whether a job runs on the machines of a training plan."""
    resources = described.get("ResourceConfig") or {}
    instance, _ = instances_of(described)
    for choice in resources.get("InstancePreferences", ()):
        if choice["InstanceType"] == instance:
            return "TrainingPlanArns" in choice

    return "TrainingPlanArn" in resources


def instances_of(described: Mapping[str, Any]) -> tuple[str, int]:
    """Return the instance type and count; from a list, the ones that SageMaker selected."""
    resources = described.get("ResourceConfig") or {}
    instance, count = instance_of({"InstanceType": "", **resources})
    instance = resources.get("SelectedInstanceType") or instance
    count = resources.get("SelectedInstanceCount") or count
    return instance, int(count)


def ended_at(described: Mapping[str, Any]) -> float:
    """Return the end of the job as a Unix timestamp; 0 if unknown."""
    return timestamp(described.get("TrainingEndTime")) or timestamp(
        described.get("LastModifiedTime")
    )


def timestamp(value: Any) -> float:
    """Return the Unix timestamp of a datetime from boto3; 0 for None."""
    if not hasattr(value, "timestamp"):
        return 0.0

    return float(value.timestamp())
