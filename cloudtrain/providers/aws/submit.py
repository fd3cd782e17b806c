"""Sending a request so that exactly one job comes of it, or none: store, record, create, and ask when in doubt."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import CloudError, Outcome, RunExists
from cloudtrain.providers import Progress
from cloudtrain.providers.aws.config import request_of
from cloudtrain.providers.aws.request import JOB, JOB_FILE, SOURCE, uri_parts
from cloudtrain.providers.cloud import idempotent_create as arrival
from cloudtrain.providers.cloud.request import ARCHIVE, ours, same_submission
from cloudtrain.runs.files import as_text
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.observation import Observation, Record

if TYPE_CHECKING:
    from cloudtrain.providers.aws.client import Aws

DENIALS = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation")
"""AWS's names for a right that is missing."""


def send(
    cloud: Aws,
    body: Mapping[str, Any],
    job: Mapping[str, Any],
    archive: Path,
    progress: Progress | None,
    record: Record,
) -> dict[str, Any]:
    """Store source and job document, then create the job. The answer finds it again.

    Three calls when the source is there already or small, however many files it has. CloudError with
    `Outcome.UNKNOWN` when it cannot be told whether the job exists; `reconcile` tells later.
    """
    key = body["OutputDataConfig"].get("KmsKeyId")
    try:
        bucket, folder = uri_parts(_channel(body, SOURCE))
        cloud.put_once(bucket, folder + ARCHIVE, archive, key, progress)
        bucket, folder = uri_parts(_channel(body, JOB))
        cloud.put(bucket, folder + JOB_FILE, as_text(dict(job)).encode(), key)
    except CloudError as error:
        error.outcome = Outcome.NOT_STARTED  # whatever became of the object: the job was not asked for
        raise
    record(Observation(events=[{"type": "creating", "time": time.time()}]))
    return arrival.create(
        body["TrainingJobName"],
        lambda: ref_of(cloud, cloud.call_once("sagemaker", "create_training_job", **body)),
        lambda: _find(cloud, body["TrainingJobName"], body),
        attempts=cloud.attempts,
        taken=("ResourceInUse",),
    )


def reconcile(cloud: Aws, run: RunFolder, now: float) -> list[dict[str, Any]]:
    """What became of a submission that nobody has seen the end of. Nothing, while it may still be under way."""
    body = request_of(run)

    def find() -> dict[str, Any] | None:
        found = _find(cloud, run.run_id, body)
        if found is None:
            same_account(cloud, body["RoleArn"], run.run_id)
        return found

    return arrival.reconcile(run, now, find, "SageMaker")


def describe(cloud: Aws, name: str) -> dict[str, Any] | None:
    """What SageMaker says of a job; None when there is none of that name."""
    try:
        return cloud.call("sagemaker", "describe_training_job", TrainingJobName=name)
    except CloudError as error:
        if error.code == "NotFound":
            return None
        raise


def same_account(cloud: Aws, arn: str, name: str) -> None:
    """CloudError unless these credentials belong to the account of a job: others see nothing of it."""
    mine, its = cloud.call("sts", "get_caller_identity")["Account"], arn.split(":")[4]
    if mine != its:
        message = f"these credentials belong to the account {mine}, the run {name} to {its}"
        raise CloudError(message, hint="look at AWS_PROFILE, then try again", code="OtherAccount")


def ref_of(cloud: Aws, described: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a job to find it again."""
    arn, name = described["TrainingJobArn"], described["TrainingJobArn"].rpartition("/")[2]
    console = f"https://{cloud.region}.console.aws.amazon.com/sagemaker/home?region={cloud.region}#/jobs/{name}"
    return {"name": name, "arn": arn, "region": cloud.region, "url": console}


def tags_of(cloud: Aws, arn: str) -> dict[str, str]:
    """Our tags on a job, without their prefix."""
    found = [tag for page in cloud.pages("sagemaker", "list_tags", ResourceArn=arn) for tag in page.get("Tags", [])]
    return ours({tag["Key"]: tag["Value"] for tag in found})


def _find(cloud: Aws, name: str, body: Mapping[str, Any]) -> dict[str, Any] | None:
    """The job, if it is there and ours: perhaps from a try whose answer was lost. RunExists if it is another's."""
    described = describe(cloud, name)
    if described is None:
        return None
    mine = ours({tag["Key"]: tag["Value"] for tag in body["Tags"]})
    try:
        is_ours = same_submission(mine, tags_of(cloud, described["TrainingJobArn"]))
    except CloudError as error:
        if error.transient or error.code not in DENIALS:
            raise
        is_ours = _same_request(described, body)
    if is_ours:
        return ref_of(cloud, described)
    message = f"a training job {name} exists already in {cloud.region}"
    raise RunExists(message, hint="choose another --run-id")


def _same_request(described: Mapping[str, Any], body: Mapping[str, Any]) -> bool:
    """Whether a job was made of this very request, for those who may not read its tags.

    The channels name the source by its digest, the job document by its own, and the storage by the run: a stranger's
    job of the same name has others.
    """
    return all(
        _within(body[field], described.get(field)) for field in ("InputDataConfig", "OutputDataConfig", "RoleArn")
    )


def _within(asked: Any, found: Any) -> bool:
    """Whether all that was asked for is found again; SageMaker adds fields of its own."""
    if isinstance(asked, Mapping):
        return isinstance(found, Mapping) and all(_within(value, found.get(key)) for key, value in asked.items())
    if isinstance(asked, list):
        return isinstance(found, list) and len(asked) == len(found) and all(map(_within, asked, found))
    return bool(asked == found)


def _channel(body: Mapping[str, Any], name: str) -> str:
    found = next(item for item in body["InputDataConfig"] if item["ChannelName"] == name)
    return str(found["DataSource"]["S3DataSource"]["S3Uri"])
