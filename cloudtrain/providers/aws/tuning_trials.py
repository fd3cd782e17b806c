"""Translate a tuning job and its training jobs into a sweep and its trials. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from cloudtrain.planning.sagemaker import GRACE_SECONDS, instance_of
from cloudtrain.planning.tuned import parameters_of
from cloudtrain.providers import DiscoveredRun
from cloudtrain.providers.aws.config import AwsConfig, config_of
from cloudtrain.providers.aws.phases import readable_reason, timestamp
from cloudtrain.providers.aws.results import trial_request
from cloudtrain.providers.native_sweep import NativeSweepState, NativeTrial
from cloudtrain.runs.record import RunRecord
from cloudtrain_launcher.events import Submitted, Submitting

if TYPE_CHECKING:
    from cloudtrain.runs.folder import RunFolder

State = Literal["running", "stopping", "succeeded", "failed", "stopped"]

_STATES: Mapping[str, State] = {
    "Completed": "succeeded",
    "Failed": "failed",
    "DeleteFailed": "failed",
    "Stopped": "stopped",
    "Stopping": "stopping",
    "Deleting": "stopping",
}
"""HyperParameterTuningJobStatus -> state of the sweep; any other is `running`."""

_NOT_REQUESTED = ("AlgorithmSpecification", "HyperParameterTuningResourceConfig")


def sweep_state(
    folder: RunFolder,
    body: Mapping[str, Any],
    described: Mapping[str, Any],
    listed: Sequence[Mapping[str, Any]],
    *,
    stop_requested: bool,
    url: str,
) -> NativeSweepState:
    """Return the sweep and its trials. `body`: the request; `listed`: the training jobs."""
    rules = folder.document("job.json", {"tuned": dict})["tuned"]
    config = config_of(folder)
    title = RunRecord(folder).name
    status = str(described["HyperParameterTuningJobStatus"])
    state: State = _STATES.get(status, "running")
    is_stopping = state in ("stopping", "stopped")
    trials = []
    # Creation times are whole seconds, and the names hold a number of three digits that grows.
    for number, job in enumerate(
        sorted(listed, key=lambda summary: (timestamp(summary["CreationTime"]), _count(summary)))
    ):
        trials.append(
            NativeTrial(
                number=number,
                name=job["TrainingJobName"],
                parameters=parameters_of(rules, job["TunedHyperParameters"]),
                state=_trial_state(job, is_stopping=is_stopping),
                reason=readable_reason(str(job.get("FailureReason") or "")),
                value=_value(job),
                seconds=_seconds(job),
                run=_run_of(title, config, body, job),
            )
        )
    reason = readable_reason(str(described.get("FailureReason") or ""))
    if state == "stopped" and not stop_requested and "MaxRuntimeInSeconds" in _limits(body):
        state = "succeeded"
        reason = "the time of the budget is over"
    if state == "succeeded" and all(trial.value is None for trial in trials):
        state = "failed"
        reason = reason or f"no trial reported {_metric(body)}"
    return NativeSweepState(state=state, reason=reason, trials=trials, url=url)


def _count(job: Mapping[str, Any]) -> int:
    """Return the NNN of `<tuning job>-NNN-<letters>`."""
    count = str(job["TrainingJobName"]).split("-")[-2:][0]
    return int(count) if count.isdecimal() else 0


def _trial_state(
    job: Mapping[str, Any], *, is_stopping: bool
) -> Literal["running", "completed", "pruned", "failed", "stopped"]:
    """Return a trial's state; without a stop of the sweep, Hyperband or the budget ended it."""
    match str(job["TrainingJobStatus"]):
        case "Completed":
            return "completed"
        case "Failed":
            return "failed"
        case "Stopped":
            return "stopped" if is_stopping else "pruned"
    return "running"


def _value(job: Mapping[str, Any]) -> float | None:
    value = (job.get("FinalHyperParameterTuningJobObjectiveMetric") or {}).get("Value")
    return None if value is None else float(value)


def _limits(body: Mapping[str, Any]) -> Mapping[str, Any]:
    limits: Mapping[str, Any] = body["HyperParameterTuningJobConfig"]["ResourceLimits"]
    return limits


def _metric(body: Mapping[str, Any]) -> str:
    return str(
        body["HyperParameterTuningJobConfig"]["HyperParameterTuningJobObjective"]["MetricName"]
    )


def _seconds(job: Mapping[str, Any]) -> float:
    began = timestamp(job.get("TrainingStartTime"))
    if not began:
        return 0.0
    return max(0.0, (timestamp(job.get("TrainingEndTime")) or time.time()) - began)


def _run_of(
    title: str, config: AwsConfig, body: Mapping[str, Any], job: Mapping[str, Any]
) -> DiscoveredRun:
    """Return an ordinary run of a trial; its request follows the tuning job's definition."""
    name = str(job["TrainingJobName"])
    definition = body["TrainingJobDefinition"]
    resources = definition.get("ResourceConfig")
    if resources is None:
        resources = {
            "InstancePreferences": definition["HyperParameterTuningResourceConfig"][
                "InstanceConfigs"
            ]
        }
    instance, nodes = instance_of(resources)
    request = {
        "TrainingJobName": name,
        **{key: value for key, value in definition.items() if key not in _NOT_REQUESTED},
        "AlgorithmSpecification": definition["AlgorithmSpecification"],
        "ResourceConfig": resources,
        "HyperParameters": dict(job["TunedHyperParameters"]),
        "Tags": body["Tags"],
    }
    submitting = Submitting(
        adopted=True,
        time=timestamp(job["CreationTime"]),
        name=title,
        provider="aws",
        contract="sagemaker",
        nodes=nodes,
        processes=_processes(body),
    )
    arn = str(job["TrainingJobArn"])
    console = f"https://{config.region}.console.aws.amazon.com/sagemaker/home?region={config.region}#/jobs/{name}"
    reference = {"name": name, "arn": arn, "region": config.region, "url": console}
    return DiscoveredRun(
        run_id=name,
        config=config,
        instance=instance,
        grace_seconds=GRACE_SECONDS,
        request=trial_request(request),
        submitting=submitting,
        submitted=Submitted(time=timestamp(job["CreationTime"]), ref=reference),
    )


def _processes(body: Mapping[str, Any]) -> int:
    count = next((tag["Value"] for tag in body["Tags"] if tag["Key"] == "cloudtrain-processes"), "")
    return int(count) if count.isdecimal() else 1
