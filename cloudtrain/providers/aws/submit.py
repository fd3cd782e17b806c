"""Submit a request so that it creates exactly one job or none.

Upload, record, create, and look when in doubt.
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
"""Codes of ListTags for a missing permission, and for an ARN that it does not know yet."""


def submit_job(
    cloud: AwsClient,
    body: Mapping[str, Any],
    job: JobDocument,
    archive: Path,
    progress: Progress | None,
    record: Record,
) -> dict[str, Any]:
    """Upload the source archive and the job document, create the job, return its reference.

    Three calls if the archive exists already or is small. Raise CloudError with `Outcome.UNKNOWN`
    if it is unknown whether the job exists; `reconcile` finds out later.
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
    """Store the job document, and the source archive if it is new, for a request's channels.

    Raise CloudError with `Outcome.NOT_STARTED` if that fails.
    """
    key = body["OutputDataConfig"].get("KmsKeyId")
    try:
        bucket, folder = uri_parts(_channel(body, SOURCE))
        cloud.put_once(bucket, folder + ARCHIVE, archive, key, progress)
        bucket, folder = uri_parts(_channel(body, JOB))
        cloud.put(bucket, folder + JOB_FILE, as_text(job.to_json()).encode(), key)
    except CloudError as error:
        # the job was not requested, whether or not the object was stored
        error.outcome = Outcome.NOT_STARTED
        raise


def reconcile(cloud: AwsClient, run: RunFolder, time_now: float) -> list[Event]:
    """Return events about the result of an interrupted submission; empty while in progress."""
    body = request_of(run)

    def find() -> dict[str, Any] | None:
        reference = _find(cloud, run.run_id, body)
        if reference is None:
            require_same_account(cloud, body["RoleArn"], run.run_id)
        return reference

    return idempotent_create.reconcile(run, time_now, find, "SageMaker")


def describe(cloud: AwsClient, name: str) -> dict[str, Any] | None:
    """Return SageMaker's description of a job; None if it does not exist."""
    try:
        return cloud.call("sagemaker", "describe_training_job", TrainingJobName=name)
    except CloudError as error:
        if error.code == "NotFound":
            return None
        raise


def require_same_account(cloud: AwsClient, arn: str, name: str) -> None:
    """Raise CloudError unless the credentials belong to the account of the job with this ARN."""
    account = cloud.call("sts", "get_caller_identity")["Account"]
    job_account = arn.split(":")[4]
    if account != job_account:
        message = (
            f"these credentials belong to the account {account}, the run {name} to {job_account}"
        )
        raise CloudError(message, hint="look at AWS_PROFILE, then try again", code="OtherAccount")


def job_reference(cloud: AwsClient, name: str, arn: str) -> dict[str, Any]:
    """Return the reference of a job: name, ARN, region and the URL of the console.

    `name`: as requested. In ARNs the service may write it in lower case.
    """
    console = f"https://{cloud.region}.console.aws.amazon.com/sagemaker/home?region={cloud.region}#/jobs/{name}"
    return {"name": name, "arn": arn, "region": cloud.region, "url": console}


def tags_of(cloud: AwsClient, arn: str) -> dict[str, str]:
    """Return our tags of a job, without their prefix."""
    tags = [
        tag
        for page in cloud.pages("sagemaker", "list_tags", ResourceArn=arn)
        for tag in page.get("Tags", [])
    ]
    return own_tags({tag["Key"]: tag["Value"] for tag in tags})


def _find(cloud: AwsClient, name: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the job's reference if it is of this submission, or None.

    Raise RunExists if it is of another one.
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
    """Return True if the submission with these tags created the resource with this ARN.

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
    """Return True if a job was created from this request, as far as its description shows.

    The URIs of the channels contain the digests of the source and the job document and the run id,
    so another submission's job of the same name has different ones.
    """
    return all(
        contains(described.get(field), body[field])
        for field in ("InputDataConfig", "OutputDataConfig", "RoleArn")
    )


def contains(actual: Any, requested: Any) -> bool:
    """Return True if a description has all requested values; SageMaker adds fields."""
    if isinstance(requested, Mapping):
        return isinstance(actual, Mapping) and all(
            contains(actual.get(key), item) for key, item in requested.items()
        )
    if isinstance(requested, list):
        return (
            isinstance(actual, list)
            and len(requested) == len(actual)
            and all(map(contains, actual, requested))
        )
    return bool(requested == actual)


def _channel(body: Mapping[str, Any], name: str) -> str:
    channel = next(item for item in body["InputDataConfig"] if item["ChannelName"] == name)
    return str(channel["DataSource"]["S3DataSource"]["S3Uri"])
