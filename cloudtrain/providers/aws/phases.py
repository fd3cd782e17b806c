"""What SageMaker says of a job, in our words: its state, its phase, and how it ended. Pure."""

from __future__ import annotations

import re
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
    **dict.fromkeys(
        ("Completed", "Failed", "Stopped", "MaxRuntimeExceeded", "MaxWaitTimeExceeded"), "bringing the last lines"
    ),
}
"""Secondary statuses. They are "subject to change": an unknown one is shown as it is."""

ENDED = {"Completed": "succeeded", "Failed": "failed", "Stopped": "stopped"}
"""TrainingJobStatus -> state; `Stopping` is no end yet."""

_TIMED_OUT = {
    "MaxRuntimeExceeded": "the time limit is over (limits.max_runtime, or what limits.max_cost pays for)",
    "MaxWaitTimeExceeded": "no capacity came in time (limits.max_wait)",
}


_ERRORS = {
    "AlgorithmError": "",
    "ClientError": "SageMaker could not begin: ",
    "CapacityError": "no capacity: ",
    "InternalServerError": "SageMaker failed: ",
}
"""What a FailureReason begins with (the developer guide's page on errors of training jobs), in words."""


def phase_of(described: Mapping[str, Any]) -> str:
    """The phase in words."""
    secondary = str(described.get("SecondaryStatus", ""))
    return PHASES.get(secondary, secondary)


def phase_since(described: Mapping[str, Any]) -> float:
    """When that phase began, as a Unix timestamp; 0 when SageMaker does not say."""
    transitions = described.get("SecondaryStatusTransitions") or []
    return seconds(transitions[-1].get("StartTime")) if transitions else 0.0


def phase_event(described: Mapping[str, Any], now: float) -> dict[str, Any]:
    """The event that tells the phase, and the machine that SageMaker has chosen."""
    chosen = selected(described)
    return {
        "type": "phase",
        "time": now,
        "phase": phase_of(described),
        "since": phase_since(described) or now,
        **({"running": True} if described.get("SecondaryStatus") == "Training" else {}),
        **({"instance": chosen} if chosen else {}),
    }


def selected(described: Mapping[str, Any]) -> str:
    """The instance type that it runs on; empty while SageMaker has chosen none of a list."""
    resources = described.get("ResourceConfig") or {}
    return str(resources.get("SelectedInstanceType") or resources.get("InstanceType") or "")


def kept_event(described: Mapping[str, Any], now: float, usd_per_hour: float | None) -> list[dict[str, Any]]:
    """The event that tells of machines that are kept after the job; none where none were asked for or granted.

    Where the quota of kept machines is 0 SageMaker gives no error and no WarmPoolStatus: nothing is kept.
    """
    pool, seconds_kept = described.get("WarmPoolStatus"), kept_seconds(described)
    if not pool:
        return []
    event = {"type": "kept", "time": now, "status": str(pool.get("Status", "")), "seconds": seconds_kept}
    if ending(described) is not None:
        event |= {"until": (ended_at(described) or now) + seconds_kept}
        event |= {"billing": billing(described, usd_per_hour)}
    if pool.get("ReusedByJob"):
        event["by"] = pool["ReusedByJob"]
    return [event]


def kept_seconds(described: Mapping[str, Any]) -> int:
    """How long its machines are to be kept after it."""
    return int((described.get("ResourceConfig") or {}).get("KeepAlivePeriodInSeconds") or 0)


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
        if secondary == "MaxWaitTimeExceeded" and has_trained(described):
            reason = "the time for waiting and training together is over (limits.max_wait)"
    return state, in_words(reason) if state != "succeeded" else ""


def has_trained(described: Mapping[str, Any]) -> bool:
    """Whether its program ever ran: only then is there something to wait for in its logs."""
    return any(item.get("Status") == "Training" for item in described.get("SecondaryStatusTransitions") or ())


def in_words(reason: str) -> str:
    """SageMaker's FailureReason without the names of its own exceptions."""
    program = re.fullmatch(r"AlgorithmError: (.*), exit code: (-?\d+)", reason, re.DOTALL)
    if program:
        said, code = program[1].strip(" ,"), program[2]
        return f"{said} (exit code {code})" if said else f"a container ended with exit code {code}"
    for name, words in _ERRORS.items():
        if reason.startswith(f"{name}: "):
            return words + reason.removeprefix(f"{name}: ")
    return reason


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
    """When it ended, as a Unix timestamp; 0 when SageMaker does not say."""
    return seconds(described.get("TrainingEndTime")) or seconds(described.get("LastModifiedTime"))


def seconds(value: Any) -> float:
    """Seconds since 1970 of a time as boto3 gives it; 0 for none."""
    return float(value.timestamp()) if hasattr(value, "timestamp") else 0.0
