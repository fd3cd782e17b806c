"""SageMaker's own service for sweeps: a tuning job, by the protocol of native sweeps."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.planning.launch import Request
from cloudtrain.planning.sagemaker import GRACE_SECONDS, instance_of
from cloudtrain.planning.tuned import parameters_of, sweep_of
from cloudtrain.providers.aws.config import AwsConfig, client_of_run, config_of
from cloudtrain.providers.aws.declaration import DECLARATION
from cloudtrain.providers.aws.phases import readable_reason, timestamp
from cloudtrain.providers.aws.results import trial_request
from cloudtrain.providers.aws.status import stop
from cloudtrain.providers.aws.submit import (
    TUNING,
    describe,
    job_reference,
    own_tag_values,
    reconcile,
    request_of,
    require_same_account,
    start,
)
from cloudtrain.providers.aws.tuning_request import (
    STRATEGIES,
    render,
    render_trial,
    training_definition,
)
from cloudtrain.providers.aws.tuning_rules import tuning_issues
from cloudtrain.providers.discovered_run import DiscoveredRun, adopted
from cloudtrain.providers.native_sweep import NativeSweepState, NativeTrial, State, TrialState
from cloudtrain.providers.progress import Progress
from cloudtrain.providers.shared.idempotent_create import is_new, settle
from cloudtrain.runs.logs import Observation, Record
from cloudtrain.runs.record import RunRecord
from cloudtrain_wire.events import Ended

if TYPE_CHECKING:
    from cloudtrain.planning.plan import Plan
    from cloudtrain.runs.folder import RunFolder
    from cloudtrain.runs.state import RunState


_STATES: Mapping[str, State] = {
    "Completed": "succeeded",
    "Failed": "failed",
    "DeleteFailed": "failed",
    "Stopped": "stopped",
    "Stopping": "stopping",
    "Deleting": "stopping",
}
"""HyperParameterTuningJobStatus -> state of the sweep; any other is `running`."""

_GONE = "SageMaker does not know this tuning job (any more)"


class SageMakerTuning:
    """Tuning jobs."""

    rules = staticmethod(tuning_issues)
    render = staticmethod(render)
    render_trial = staticmethod(render_trial)

    def method(self, plan: Plan) -> str:
        """Name SageMaker's strategy."""
        return f"SageMaker's {STRATEGIES[sweep_of(plan).method]} strategy"

    def stopping(self, plan: Plan) -> str:
        """Say if Hyperband or the early stopping of the request ends bad trials early."""
        config = render(plan).document["HyperParameterTuningJobConfig"]
        if config["Strategy"] == "Hyperband":
            return "SageMaker's Hyperband ends bad trials early"
        if config.get("TrainingJobEarlyStoppingType") == "Auto":
            return "SageMaker ends bad trials early"
        return ""

    def start(
        self,
        plan: Plan,
        request: Request,
        folder: RunFolder,
        archive: Path,
        progress: Progress | None,
        record: Record,
    ) -> dict[str, Any]:
        """Upload the source and the job document, then create the tuning job.

        That takes three calls if the source is small.
        """
        return start(plan, request, folder, archive, progress, record, TUNING)

    def observe(
        self,
        folder: RunFolder,
        state: RunState,
        record: Record,
    ) -> NativeSweepState | None:
        """Describe the tuning job, and list its trials in pages of 100."""
        cloud = client_of_run(folder)
        body = request_of(folder, TUNING)
        events = partial(reconcile, cloud, folder, body, time.time(), TUNING)
        if (ref := settle(state, record, events)) is None:
            return None

        described = describe(cloud, folder.run_id, TUNING)
        if described is None:
            require_same_account(cloud, ref["arn"], folder.run_id)
            if is_new(state, time.time()):
                return None
            record(Observation(events=[Ended(time=time.time(), state="failed", reason=_GONE)]))
            return None

        question = {
            "HyperParameterTuningJobName": folder.run_id,
            "MaxResults": 100,
            "SortBy": "CreationTime",
        }
        operation = "list_training_jobs_for_hyper_parameter_tuning_job"
        listed: list[Mapping[str, Any]] = []
        for page in cloud.pages("sagemaker", operation, **question):
            listed += page.get("TrainingJobSummaries", [])

        return sweep_state(
            folder, body, described, listed, stop_requested=bool(state.stop_requested)
        )

    def stop(self, folder: RunFolder, state: RunState, record: Record) -> bool:
        """Stop the tuning job: SIGTERM to the containers of all trials, and no new trials."""
        return stop(folder, state, record, TUNING)


def sweep_state(
    folder: RunFolder,
    body: Mapping[str, Any],
    described: Mapping[str, Any],
    listed: Sequence[Mapping[str, Any]],
    *,
    stop_requested: bool,
) -> NativeSweepState:
    """Return the sweep and its trials. `body`: the request; `listed`: the training jobs."""
    rules = folder.document("job.json", {"tuned": dict})["tuned"]
    config = config_of(folder)
    title = RunRecord(folder).name
    status = str(described["HyperParameterTuningJobStatus"])
    state: State = _STATES.get(status, "running")
    is_stopping = state in ("stopping", "stopped")

    trials = []
    for number, job in enumerate(sorted(listed, key=_age)):
        trials.append(
            NativeTrial(
                number=number,
                name=job["TrainingJobName"],
                parameters=parameters_of(rules, job["TunedHyperParameters"]),
                state=_trial_state(job, is_stopping=is_stopping),
                run=_run_of(title, config, body, job),
            )
        )

    reason = readable_reason(str(described.get("FailureReason") or ""))
    tuned = body["HyperParameterTuningJobConfig"]

    has_time_limit = "MaxRuntimeInSeconds" in tuned["ResourceLimits"]
    if state == "stopped" and has_time_limit and not stop_requested:
        state = "succeeded"
        reason = "the time of the budget is over"
    if state == "succeeded" and not any(map(_has_value, listed)):
        state = "failed"
        metric = tuned["HyperParameterTuningJobObjective"]["MetricName"]
        reason = reason or f"no trial reported {metric}"

    return NativeSweepState(state=state, reason=reason, trials=trials)


def _age(job: Mapping[str, Any]) -> tuple[float, int]:
    # Creation times are whole seconds, and the names hold a number of three digits that grows.
    return timestamp(job["CreationTime"]), _count(job)


def _count(job: Mapping[str, Any]) -> int:
    """Return the NNN of `<tuning job>-NNN-<letters>`."""
    count = str(job["TrainingJobName"]).split("-")[-2:][0]
    if not count.isdecimal():
        return 0

    return int(count)


def _trial_state(job: Mapping[str, Any], *, is_stopping: bool) -> TrialState:
    """Return a trial's state; without a stop of the sweep, Hyperband or the budget ended it."""
    match str(job["TrainingJobStatus"]):
        case "Completed":
            return "completed"
        case "Failed":
            return "failed"
        case "Stopped":
            return "stopped" if is_stopping else "pruned"

    return "running"


def _has_value(job: Mapping[str, Any]) -> bool:
    metric = job.get("FinalHyperParameterTuningJobObjectiveMetric") or {}
    return metric.get("Value") is not None


def _run_of(
    title: str,
    config: AwsConfig,
    body: Mapping[str, Any],
    job: Mapping[str, Any],
) -> DiscoveredRun:
    """Return an ordinary run of a trial; its request follows the tuning job's definition."""
    name = str(job["TrainingJobName"])
    definition = training_definition(body)
    instance, nodes = instance_of(definition["ResourceConfig"])
    request = {
        "TrainingJobName": name,
        **definition,
        "HyperParameters": dict(job["TunedHyperParameters"]),
        "Tags": body["Tags"],
    }
    submitting = adopted(
        DECLARATION,
        own_tag_values(body["Tags"]),
        title=title,
        nodes=nodes,
        created=timestamp(job["CreationTime"]),
    )
    return DiscoveredRun(
        run_id=name,
        config=config,
        instance=instance,
        grace_seconds=GRACE_SECONDS,
        request=trial_request(request),
        submitting=submitting,
        ref=job_reference(config.region, name, str(job["TrainingJobArn"])),
    )
