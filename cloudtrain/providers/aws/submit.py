"""Submits a request so that it creates exactly one job or none: upload, record, create, and look
when in doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import CloudError, Outcome, RunExists
from cloudtrain.providers import Progress
from cloudtrain.providers.aws.config import request_of
from cloudtrain.providers.aws.request import JOB, JOB_FILE, SOURCE, uri_parts
from cloudtrain.providers.shared import idempotent_create
from cloudtrain.providers.shared.idempotent_create import Attempt
from cloudtrain.providers.shared.paths import ARCHIVE
from cloudtrain.providers.shared.tags import own_tags, same_submission
from cloudtrain.runs.files import as_text
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.observation import Record
from cloudtrain_launcher.events import Event

if TYPE_CHECKING:
    from cloudtrain.planning.launch import JobDocument
    from cloudtrain.providers.aws.client import AwsClient

UNREADABLE_TAGS_CODES = (
    "AccessDenied",
    "AccessDeniedException",
    "UnauthorizedOperation",
    "ValidationException",
    "NotFound",
)
"""Codes of ListTags for a missing permission, and for an ARN that it does not know (yet)."""


def submit_job(
    cloud: AwsClient,
    body: Mapping[str, Any],
    job: JobDocument,
    archive: Path,
    progress: Progress | None,
    record: Record,
) -> dict[str, Any]:
    """Upload the source archive and the job document, then create the job; returns the job's
    reference.

    Three calls if the archive exists already or is small. CloudError with `Outcome.UNKNOWN` if it
    is unknown whether the job exists; `reconcile` finds out later.
    """
    upload(cloud, body, job, archive, progress)
    name = body["TrainingJobName"]

    def send(attempt: Attempt) -> dict[str, Any]:
        answer = cloud.create(attempt, "sagemaker", "create_training_job", body)
        return job_reference(cloud, name, answer["TrainingJobArn"])

    return idempotent_create.create(
        name,
        send,
        lambda: _find(cloud, name, body),
        record=record,
        attempts=cloud.attempts,
        name_taken_codes=("ResourceInUse",),
    )


def upload(
    cloud: AwsClient,
    body: Mapping[str, Any],
    job: JobDocument,
    archive: Path,
    progress: Progress | None,
) -> None:
    """Store the source archive, unless it is there, and the job document, where the channels of a
    request expect them.

    CloudError with `Outcome.NOT_STARTED` if that fails.
    """
    key = body["OutputDataConfig"].get("KmsKeyId")
    try:
        bucket, folder = uri_parts(_channel(body, SOURCE))
        cloud.put_once(bucket, folder + ARCHIVE, archive, key, progress)
        bucket, folder = uri_parts(_channel(body, JOB))
        cloud.put(bucket, folder + JOB_FILE, as_text(job.to_json()).encode(), key)
    except CloudError as error:
        error.outcome = (
            Outcome.NOT_STARTED
        )  # whether or not the object was stored, the job was not requested
        raise


def reconcile(cloud: AwsClient, run: RunFolder, now: float) -> list[Event]:
    """Events that say what became of an interrupted submission; none while it may still be in
    progress.
    """
    body = request_of(run)

    def find() -> dict[str, Any] | None:
        found = _find(cloud, run.run_id, body)
        if found is None:
            require_same_account(cloud, body["RoleArn"], run.run_id)
        return found

    return idempotent_create.reconcile(run, now, find, "SageMaker")


def describe(cloud: AwsClient, name: str) -> dict[str, Any] | None:
    """SageMaker's description of a job; None if no job has that name."""
    try:
        return cloud.call("sagemaker", "describe_training_job", TrainingJobName=name)
    except CloudError as error:
        if error.code == "NotFound":
            return None
        raise


def require_same_account(cloud: AwsClient, arn: str, name: str) -> None:
    """CloudError unless the credentials belong to the account of the job with this ARN."""
    account = cloud.call("sts", "get_caller_identity")["Account"]
    job_account = arn.split(":")[4]
    if account != job_account:
        message = (
            f"these credentials belong to the account {account}, the run {name} to {job_account}"
        )
        raise CloudError(message, hint="look at AWS_PROFILE, then try again", code="OtherAccount")


def job_reference(cloud: AwsClient, name: str, arn: str) -> dict[str, Any]:
    """Return what finds a job again: name, ARN, region and the URL of the console.

    `name`: as it was requested. In ARNs the service may write it in lower case.
    """
    console = f"https://{cloud.region}.console.aws.amazon.com/sagemaker/home?region={cloud.region}#/jobs/{name}"
    return {"name": name, "arn": arn, "region": cloud.region, "url": console}


def tags_of(cloud: AwsClient, arn: str) -> dict[str, str]:
    """Our tags of a job, without their prefix."""
    found = [
        tag
        for page in cloud.pages("sagemaker", "list_tags", ResourceArn=arn)
        for tag in page.get("Tags", [])
    ]
    return own_tags({tag["Key"]: tag["Value"] for tag in found})


def _find(cloud: AwsClient, name: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
    """The reference of the job if it exists and is of this submission, else None. RunExists if it
    is of another one.
    """
    described = describe(cloud, name)
    if described is None:
        return None
    arn = described["TrainingJobArn"]
    if is_own(cloud, arn, body["Tags"], lambda: _same_request(described, body)):
        return job_reference(cloud, name, arn)
    message = f"a training job {name} exists already in {cloud.region}"
    raise RunExists(message, hint="choose another --run-id")


def is_own(
    cloud: AwsClient, arn: str, tags: Sequence[Mapping[str, str]], same_request: Callable[[], bool]
) -> bool:
    """Return True if what has this ARN was created by the submission with these tags.

    The tags decide. If they are not visible, for want of a permission or because the service does
    not show them yet, `same_request` compares what was requested.
    """
    expected = own_tags({tag["Key"]: tag["Value"] for tag in tags})
    try:
        visible = tags_of(cloud, arn)
    except CloudError as error:
        if error.transient or error.code not in UNREADABLE_TAGS_CODES:
            raise
        visible = {}
    return same_submission(expected, visible) if visible else same_request()


def _same_request(described: Mapping[str, Any], body: Mapping[str, Any]) -> bool:
    """Return True if a job was created from this request, by what its description repeats.

    The URIs of the channels contain the digests of the source and the job document and the run id,
    so another submission's job of the same name has different ones.
    """
    return all(
        contains(described.get(field), body[field])
        for field in ("InputDataConfig", "OutputDataConfig", "RoleArn")
    )


def contains(found: Any, requested: Any) -> bool:
    """Return True if a description has everything that was requested; SageMaker adds fields of its own."""
    if isinstance(requested, Mapping):
        return isinstance(found, Mapping) and all(
            contains(found.get(key), item) for key, item in requested.items()
        )
    if isinstance(requested, list):
        return (
            isinstance(found, list)
            and len(requested) == len(found)
            and all(map(contains, found, requested))
        )
    return bool(requested == found)


def _channel(body: Mapping[str, Any], name: str) -> str:
    found = next(item for item in body["InputDataConfig"] if item["ChannelName"] == name)
    return str(found["DataSource"]["S3DataSource"]["S3Uri"])
