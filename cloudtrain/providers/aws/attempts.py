"""The training jobs of a run: one, or several that its queue has started in turn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import CloudError
from cloudtrain.planning.launch import TAG_PREFIX
from cloudtrain.providers.aws import queue
from cloudtrain.providers.aws.phases import billing, final_state, has_trained, phase_event
from cloudtrain.providers.aws.submit import describe, own_tag_values
from cloudtrain.providers.shared.idempotent_create import own_tags, same_submission
from cloudtrain.providers.shared.log_attempt import FinalState
from cloudtrain_wire.events import Billing, Phase

if TYPE_CHECKING:
    from cloudtrain.providers.aws.client import AwsClient
    from cloudtrain.runs.state import RunState

_BILLED = ("billable_seconds", "training_seconds", "kept_seconds", "usd")


@dataclass(frozen=True, slots=True)
class Attempts:
    """Descriptions of a run by SageMaker, and by a queue if it has one."""

    described: dict[str, Any] | None
    """The last training job; None before the first one, or if the queue has deleted it."""
    arns: Sequence[str] = ()
    """Training jobs that a queue has started."""
    in_queue: Mapping[str, Any] = field(default_factory=dict)
    """Batch's description; empty without a queue."""
    waiting: str = ""
    """Phase of a job that waits in a queue."""

    @property
    def final(self) -> FinalState | None:
        """Final state and reason; None while the job or its last machines run."""
        final = final_state(self.described) if self.described else None
        job = self.in_queue
        if not job:
            return final
        if job["status"] not in queue.ENDED or (self.described and final is None):
            return None

        if final is None and job["status"] == "SUCCEEDED":
            return FinalState("succeeded", "")
        if job.get("isTerminated") and not (self.described and has_trained(self.described)):
            return FinalState("stopped", "stop requested")
        if final is None or self.arns[-1] in queue.preempted_arns(job):
            return FinalState("failed", str(job.get("statusReason") or "AWS Batch gave no reason"))

        return final

    def phases(self, time_now: float, state: RunState | None = None) -> list[Phase]:
        """Return the phase if it is new, once for each training job that `state` lacks.

        `state`: None for a run that is seen for the first time.
        """
        if self.waiting or not self.described:
            event = Phase(time=time_now, phase=self.waiting, since=time_now)
        else:
            event = phase_event(self.described, time_now, state)

        arns = [arn for arn in self.arns if state is None or arn not in state.attempts]
        if arns:
            return [event.replace(attempt=arn) for arn in arns]
        if state and event.phase == state.phase and event.instance in ("", state.instance):
            return []

        return [event]

    def bill(
        self, cloud: AwsClient, usd_per_hour: Callable[[Mapping[str, Any]], float | None]
    ) -> Billing | None:
        """Return the bill of all training jobs together; None without a bill.

        `usd_per_hour`: of all machines of a training job, by its description.
        """
        earlier = [describe(cloud, queue.name_of(arn)) for arn in self.arns[:-1]]
        sums: dict[str, float] = {}
        for described in (*earlier, self.described):
            bill = billing(described, usd_per_hour(described)) if described else None
            for name in _BILLED:
                value = getattr(bill, name, None)
                if value is not None:
                    sums[name] = round(sums.get(name, 0) + value, 4)

        return Billing(**sums) if sums else None


def attempts_in_queue(cloud: AwsClient, job: Mapping[str, Any]) -> Attempts:
    """Return the training jobs of a service job, by Batch's description."""
    arns = queue.attempt_arns(job)
    described = None
    if arns:
        described = describe(cloud, queue.name_of(arns[-1]))

    waiting = ""
    if described is None or job["status"] in queue.NO_JOB_YET:
        waiting = queue.phase_in_queue(cloud, job)

    return Attempts(described, arns, job, waiting)


def attempts_without_queue(
    cloud: AwsClient, run_id: str, tags: Mapping[str, str], known: Sequence[str]
) -> Attempts | None:
    """Return the training jobs of a service job that Batch has forgotten; None if none began.

    SageMaker remembers them, and finds them by the tags of the run. `known`: ARNs that were seen.
    """
    try:
        arns = list(dict.fromkeys((*known, *_arns_by_tags(cloud, run_id, tags))))
    except CloudError as error:
        if not known or error.transient:  # a later attempt may have ended otherwise
            problem = f"how {run_id} ended is unknown: AWS Batch has forgotten it; {error.what}"
            raise CloudError(
                problem, hint=error.hint, code=error.code, transient=error.transient
            ) from None
        arns = list(known)
    if not arns:
        return None

    described = describe(cloud, queue.name_of(arns[-1]))
    return Attempts(described, arns) if described else None


def _arns_by_tags(cloud: AwsClient, run_id: str, tags: Mapping[str, str]) -> list[str]:
    """Return the ARNs of all training jobs of a submission, the earliest first."""
    search = {
        "Resource": "TrainingJob",
        "SearchExpression": {
            "Filters": [{"Name": f"Tags.{TAG_PREFIX}run", "Operator": "Equals", "Value": run_id}]
        },
        "SortBy": "LastModifiedTime",
        "SortOrder": "Ascending",
    }
    arns = []
    for page in cloud.pages("sagemaker", "search", **search):
        for result in page.get("Results", []):
            job = result["TrainingJob"]
            if same_submission(own_tags(tags), own_tag_values(job.get("Tags", []))):
                arns.append(str(job["TrainingJobArn"]))

    return arns
