"""Service jobs of AWS Batch: put a training job into a queue exactly once, find it, follow it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import CloudError, Outcome, RunExists
from cloudtrain.providers.shared import idempotent_create
from cloudtrain.providers.shared.idempotent_create import Attempt, own_tags, same_submission

if TYPE_CHECKING:
    from cloudtrain.providers.aws.client import AwsClient
    from cloudtrain.runs.logs import Record

ENDED = ("SUCCEEDED", "FAILED")
NO_JOB_YET = ("SUBMITTED", "PENDING", "RUNNABLE")
"""Statuses of a service job that waits for a training job, its first or another one."""

NEEDED = {"jobName": str, "jobQueue": str, "serviceRequestPayload": str, "tags": dict}
"""Members of a stored request for later steps, with their types."""

CLIENT_ERROR = "ClientException"
"""Code of Batch for each mistake of the caller, a job that it does not know included."""


def submit(cloud: AwsClient, body: Mapping[str, Any], record: Record) -> dict[str, Any]:
    """Put a job into its queue, and return its reference.

    A queue takes several jobs of one name: a job of this name is looked for before the first
    request, and again before each further one. The token makes Batch reject a repeated request.
    """
    try:
        existing = find(cloud, body)
    except CloudError as error:
        error.outcome = Outcome.NOT_STARTED
        raise
    if existing is not None:
        return existing

    def send(attempt: Attempt) -> dict[str, Any]:
        answer = cloud.create(attempt, "batch", "submit_service_job", body)
        return reference(cloud.region, body["jobName"], answer["jobArn"])

    return idempotent_create.create(
        body["jobName"],
        send,
        lambda: find(cloud, body),
        record=record,
        attempts=cloud.attempts,
        name_taken_codes=(),
    )


def reference(region: str, name: str, arn: str) -> dict[str, Any]:
    """Return the reference of a service job. The address of its page is unknown."""
    return {"name": name, "arn": arn, "region": region, "url": ""}


def find(cloud: AwsClient, body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the job's reference if the queue has it, or None.

    Raise RunExists if only another submission's job has its name. The tags decide; if they are not
    visible, the requests are compared.
    """
    name = body["jobName"]
    queue = body["jobQueue"]
    is_taken = False
    for summary in listed(cloud, queue, "JOB_NAME", name):
        described = describe(cloud, summary["jobArn"])
        if described is None:
            continue

        visible = own_tags(described.get("tags", {}))
        is_own = described.get("serviceRequestPayload") == body["serviceRequestPayload"]
        if visible:
            is_own = same_submission(own_tags(body["tags"]), visible)
        if is_own:
            return reference(cloud.region, name, summary["jobArn"])
        is_taken = True

    if is_taken:
        message = f"a job {name} exists already in the queue {queue} in {cloud.region}"
        raise RunExists(message, hint="choose another --run-id")

    return None


def listed(cloud: AwsClient, queue: str, by: str, value: str) -> Iterator[Mapping[str, Any]]:
    """Yield the summaries of a queue's jobs by a filter, the newest first.

    Batch compares names without case; of those only the exact ones are yielded.
    """
    filters = [{"name": by, "values": [value]}]
    for page in cloud.pages("batch", "list_service_jobs", jobQueue=queue, filters=filters):
        for summary in page["jobSummaryList"]:
            if by != "JOB_NAME" or summary["jobName"] == value:
                yield summary


def describe(cloud: AwsClient, arn: str) -> dict[str, Any] | None:
    """Return Batch's description of a service job; None if it does not know it."""
    try:
        return cloud.call("batch", "describe_service_job", jobId=arn)
    except CloudError as error:
        if error.code == CLIENT_ERROR and "not found" in error.what.lower():
            return None
        raise


def preempted_arns(job: Mapping[str, Any]) -> list[str]:
    """Return the ARNs of the training jobs that lost their machines to another share."""
    return _arns(job.get("preemptionSummary", {}).get("recentPreemptedAttempts", []))


def attempt_arns(job: Mapping[str, Any]) -> list[str]:
    """Return the ARNs of the training jobs that Batch tells of, the latest one at the end."""
    latest = _arns([job.get("latestAttempt", {})])
    ended = dict.fromkeys(preempted_arns(job) + _arns(job.get("attempts", [])))
    return [arn for arn in ended if arn not in latest] + latest


def _arns(attempts: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the ARNs of attempts, the earliest first."""
    begun = [attempt for attempt in attempts if attempt.get("serviceResourceId")]
    begun.sort(key=lambda attempt: attempt.get("startedAt", 0))
    return [str(attempt["serviceResourceId"]["value"]) for attempt in begun]


def name_of(arn: str) -> str:
    """Return the name of a training job."""
    return arn.rpartition("/")[2]


def phase_in_queue(cloud: AwsClient, job: Mapping[str, Any]) -> str:
    """Return the phase of a job that waits: its place among the first 100, and Batch's reason."""
    queue = name_of(job["jobQueue"])
    phase = f"waiting in the queue {queue}"
    try:
        snapshot = cloud.call("batch", "get_job_queue_snapshot", jobQueue=queue)
    except CloudError:  # it needs a separate right
        snapshot = {}

    arns = [item.get("jobArn") for item in snapshot.get("frontOfQueue", {}).get("jobs", [])]
    if job["jobArn"] in arns:
        phase += f", place {arns.index(job['jobArn']) + 1}"
    if job.get("statusReason"):
        phase += f": {job['statusReason']}"

    return phase


def terminate(cloud: AwsClient, arn: str) -> None:
    """Stop a service job, wherever it is."""
    cloud.call("batch", "terminate_service_job", jobId=arn, reason="stop requested")
