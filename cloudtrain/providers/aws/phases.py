"""Translates the description of a training job: its phase, final state, instances and billing.
Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from cloudtrain.planning.sagemaker import instance_of
from cloudtrain.providers.shared.outcome import FinalState, with_billing
from cloudtrain_launcher.events import Billing, Kept, Phase

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
    **dict.fromkeys(
        ("Completed", "Failed", "Stopped", "MaxRuntimeExceeded", "MaxWaitTimeExceeded"),
        "bringing the last lines",
    ),
}
"""Secondary status -> phase. AWS may add statuses ("subject to change"); an unknown one is shown as
it is.
"""

ENDED: Mapping[str, Literal["succeeded", "failed", "stopped"]] = {
    "Completed": "succeeded",
    "Failed": "failed",
    "Stopped": "stopped",
}
"""TrainingJobStatus -> final state. `Stopping` is not final."""

_TIMED_OUT = {
    "MaxRuntimeExceeded": (
        "the time limit is over (limits.max_runtime, or what limits.max_cost pays for)"
    ),
    "MaxWaitTimeExceeded": "no capacity came in time (limits.max_wait)",
}


_ERRORS = {
    "AlgorithmError": "",
    "ClientError": "SageMaker could not begin: ",
    "CapacityError": "no capacity: ",
    "InternalServerError": "SageMaker failed: ",
}
"""Beginning of a FailureReason -> words (developer guide, errors of training jobs)."""


def phase_of(described: Mapping[str, Any]) -> str:
    """The phase in words; an unknown secondary status as it is."""
    secondary = str(described.get("SecondaryStatus", ""))
    return PHASES.get(secondary, secondary)


def phase_since(described: Mapping[str, Any]) -> float:
    """When the phase began, as a Unix timestamp; 0 if SageMaker does not say."""
    transitions = described.get("SecondaryStatusTransitions") or []
    return timestamp(transitions[-1].get("StartTime")) if transitions else 0.0


def phase_event(described: Mapping[str, Any], now: float) -> Phase:
    """The event for the current phase, with the instance type once SageMaker has selected it."""
    running = described.get("SecondaryStatus") == "Training"
    instance = selected_instance(described)
    event = Phase(time=now, phase=phase_of(described), since=phase_since(described) or now)
    event = event.replace(running=True) if running else event
    return event.replace(instance=instance) if instance else event


def selected_instance(described: Mapping[str, Any]) -> str:
    """The instance type that the job runs on; empty while SageMaker has selected none of a list."""
    resources = described.get("ResourceConfig") or {}
    return str(resources.get("SelectedInstanceType") or resources.get("InstanceType") or "")


def warm_pool_events(
    described: Mapping[str, Any], now: float, usd_per_hour: float | None
) -> list[Kept]:
    """The event about machines that are kept after the job (a warm pool); empty if none were
    requested or granted.

    If the quota for warm pools is 0, SageMaker returns no error and no WarmPoolStatus: nothing is
    kept.
    """
    pool = described.get("WarmPoolStatus")
    seconds = keep_alive_seconds(described)
    if not pool:
        return []
    event = Kept(time=now, status=str(pool.get("Status", "")), seconds=seconds)
    if final_state(described) is not None:
        until = (ended_at(described) or now) + seconds
        event = with_billing(event.replace(until=until), billing(described, usd_per_hour))
    return [event.replace(by=pool["ReusedByJob"]) if pool.get("ReusedByJob") else event]


def keep_alive_seconds(described: Mapping[str, Any]) -> int:
    """For how many seconds the machines are to be kept after the job; 0: not at all."""
    return int((described.get("ResourceConfig") or {}).get("KeepAlivePeriodInSeconds") or 0)


def final_state(described: Mapping[str, Any]) -> FinalState | None:
    """The final state and its reason; None while the job is not over, including unknown statuses."""
    state = ENDED.get(str(described.get("TrainingJobStatus")))
    if state is None:
        return None
    reason = str(described.get("FailureReason") or "")
    if state == "stopped":
        secondary = str(described.get("SecondaryStatus") or "Stopped")
        default = "stop was asked" if secondary == "Stopped" else secondary
        reason = _TIMED_OUT.get(secondary, reason or default)
        if secondary == "MaxWaitTimeExceeded" and has_trained(described):
            reason = "the time for waiting and training together is over (limits.max_wait)"
    began = has_trained(described)
    return FinalState(state, readable_reason(reason, began=began) if state != "succeeded" else "")


def has_trained(described: Mapping[str, Any]) -> bool:
    """Return True if the job's program ever ran; if not, its log stays empty."""
    return any(
        item.get("Status") == "Training"
        for item in described.get("SecondaryStatusTransitions") or ()
    )


def readable_reason(reason: str, *, began: bool = False) -> str:
    """SageMaker's FailureReason without the names of its exceptions. `began`: whether the job's
    program ever ran.
    """
    program = re.fullmatch(r"AlgorithmError: (.*), exit code: (-?\d+)", reason, re.DOTALL)
    if program:
        message = program[1].strip(" ,")
        code = program[2]
        return (
            f"{message} (exit code {code})"
            if message
            else f"a container ended with exit code {code}"
        )
    for name, words in _ERRORS.items():
        if reason.startswith(f"{name}: "):
            if (
                began and name == "ClientError"
            ):  # a checkpoint, or the model, that could not be stored
                words = "SageMaker could not go on: "
            return words + reason.removeprefix(f"{name}: ")
    return reason


def billing(described: Mapping[str, Any], usd_per_hour: float | None) -> Billing | None:
    """What the job cost, `usd` where the price is known; None if SageMaker does not report it yet.

    `usd_per_hour`: on-demand price of all machines of the job together; None: unknown. SageMaker's
    billable seconds already include the spot discount.
    """
    billed = described.get("BillableTimeInSeconds")
    if billed is None:
        return None
    found = Billing(billable_seconds=billed)
    if "TrainingTimeInSeconds" in described:
        found = found.replace(training_seconds=described["TrainingTimeInSeconds"])
    warm = (described.get("WarmPoolStatus") or {}).get("ResourceRetainedBillableTimeInSeconds")
    if warm:
        found = found.replace(kept_seconds=warm)
    if usd_per_hour is not None:
        found = found.replace(usd=round((billed + (warm or 0)) / 3600 * usd_per_hour, 4))
    return found


def instances_of(described: Mapping[str, Any]) -> tuple[str, int]:
    """The instance type and count; of a list of preferences those that SageMaker selected, once it
    has.
    """
    resources = described.get("ResourceConfig") or {}
    instance, count = instance_of({"InstanceType": "", **resources})
    return resources.get("SelectedInstanceType") or instance, int(
        resources.get("SelectedInstanceCount") or count
    )


def ended_at(described: Mapping[str, Any]) -> float:
    """When the job ended, as a Unix timestamp; 0 if SageMaker does not say."""
    return timestamp(described.get("TrainingEndTime")) or timestamp(
        described.get("LastModifiedTime")
    )


def timestamp(value: Any) -> float:
    """The Unix timestamp of a datetime from boto3; 0 for None."""
    return float(value.timestamp()) if hasattr(value, "timestamp") else 0.0
