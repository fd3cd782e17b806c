"""What SageMaker says of a job, in our words: its state, its phase, and how it ended. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cloudtrain.contracts.sagemaker import instance_of

PHASES = {
    "Starting": "starting",
    "Pending": "waiting for capacity",
    "LaunchingMLInstances": "launching machines",
    "PreparingTrainingStack": "preparing machines",
    "Downloading": "downloading inputs",
    "DownloadingTrainingImage": "downloading the image",
    "Training": "training",
    "Uploading": "uploading the model",
    "Interrupted": "interrupted: the spot machines were taken away",
    "Restarting": "restarting",
    "Updating": "updating",
    "Stopping": "stopping",
}
"""Secondary statuses while a job lives. They are "subject to change": an unknown one is shown as it is."""

ENDED = {"Completed": "succeeded", "Failed": "failed", "Stopped": "stopped"}
"""TrainingJobStatus -> state; `Stopping` is no end yet."""

_TIMED_OUT = {
    "MaxRuntimeExceeded": "the time limit is over (limits.max_runtime, or what limits.max_cost pays for)",
    "MaxWaitTimeExceeded": "no capacity came in time (limits.max_wait)",
}


def phase_of(described: Mapping[str, Any]) -> str:
    """The phase in words."""
    secondary = str(described.get("SecondaryStatus", ""))
    return PHASES.get(secondary, secondary)


def phase_since(described: Mapping[str, Any]) -> float:
    """When that phase began, seconds since 1970; 0 when SageMaker does not say."""
    transitions = described.get("SecondaryStatusTransitions") or []
    return seconds(transitions[-1].get("StartTime")) if transitions else 0.0


def ending(described: Mapping[str, Any]) -> tuple[str, str] | None:
    """The final state and its reason; None while the job lives, whatever unknown status it may be in."""
    state = ENDED.get(str(described.get("TrainingJobStatus")))
    if state is None:
        return None
    reason = str(described.get("FailureReason") or "")
    if state == "stopped":
        secondary = str(described.get("SecondaryStatus") or "Stopped")
        asked = "stop was asked" if secondary == "Stopped" else secondary
        reason = _TIMED_OUT.get(secondary, reason or asked)
    return state, reason if state != "succeeded" else ""


def billing(described: Mapping[str, Any], usd_per_hour: float | None) -> dict[str, Any]:
    """Billed seconds and their price. SageMaker's billable seconds already hold the spot discount.

    `usd_per_hour`: of all machines of the job, on demand; None: unknown, and so is the cost.
    """
    billed = described.get("BillableTimeInSeconds")
    if billed is None:
        return {}
    found: dict[str, Any] = {"billable_seconds": billed, "training_seconds": described.get("TrainingTimeInSeconds")}
    warm = (described.get("WarmPoolStatus") or {}).get("ResourceRetainedBillableTimeInSeconds")
    if warm:
        found["kept_seconds"] = warm
    if usd_per_hour is not None:
        found["usd"] = round((billed + (warm or 0)) / 3600 * usd_per_hour, 4)
    return found


def machines_of(described: Mapping[str, Any]) -> tuple[str, int]:
    """The instance type and count: those that SageMaker selected from a list, once it has."""
    resources = described.get("ResourceConfig") or {}
    kind, count = instance_of({"InstanceType": "", **resources})
    return resources.get("SelectedInstanceType") or kind, int(resources.get("SelectedInstanceCount") or count)


def ended_at(described: Mapping[str, Any]) -> float:
    """When it ended, seconds since 1970; 0 when SageMaker does not say."""
    return seconds(described.get("TrainingEndTime")) or seconds(described.get("LastModifiedTime"))


def seconds(value: Any) -> float:
    """Seconds since 1970 of a time as boto3 gives it; 0 for none."""
    return float(value.timestamp()) if hasattr(value, "timestamp") else 0.0
