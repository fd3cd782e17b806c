"""Sending a request so that exactly one job comes of it, or none: store, record, create, and ask when in doubt."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.aws.request import ARCHIVE, JOB, JOB_FILE, SOURCE, ours, uri_parts
from cloudtrain.errors import CloudError, RunExists
from cloudtrain.provider import Progress
from cloudtrain.runs.store import RunFolder, as_text

if TYPE_CHECKING:
    from cloudtrain.clouds.aws import Aws

ARRIVAL_SECONDS = 60
"""A request that was sent and has made no job after this long will make none."""

_NOTHING = "nothing was started"


def send(
    cloud: Aws,
    body: Mapping[str, Any],
    job: Mapping[str, Any],
    run: RunFolder,
    archive: Path,
    progress: Progress | None,
) -> dict[str, Any]:
    """Store source and job document, then create the job. The answer finds it again.

    Three calls when the source is there already or small, however many files it has. CloudError with `unsure` when
    it cannot be told whether the job exists; `settle` tells later.
    """
    key = body["OutputDataConfig"].get("KmsKeyId")
    try:
        bucket, folder = uri_parts(_channel(body, SOURCE))
        cloud.put_once(bucket, folder + ARCHIVE, archive, key, progress)
        bucket, folder = uri_parts(_channel(body, JOB))
        cloud.put(bucket, folder + JOB_FILE, as_text(dict(job)).encode(), key)
    except CloudError as error:
        error.unsure = False  # of the object perhaps, of the job not: it was not asked for
        raise
    run.append({"type": "creating", "time": time.time()}, durable=True)
    return _create(cloud, body)


def settle(cloud: Aws, run: RunFolder, now: float) -> list[dict[str, Any]]:
    """What became of a submission that nobody has seen the end of. Nothing, while it may still be under way."""
    if run.is_being_submitted():
        return []
    creating = run.last_event("creating")
    if creating is None:  # the request was never sent: there is nothing to ask for
        return [_never(now, f"submit was interrupted before the job was created; {_NOTHING}")]
    body = run.document("request.json")
    described = describe(cloud, run.run_id)
    if described is not None:
        if _is_ours(cloud, described, body):
            return [{"type": "submitted", "time": now, "ref": ref_of(cloud, described)}]
        return [_never(now, f"another job of the name {run.run_id} exists; {_NOTHING}")]
    same_account(cloud, body["RoleArn"], run.run_id)
    if now - creating["time"] < ARRIVAL_SECONDS:
        return []
    return [_never(now, f"submit was interrupted, and SageMaker knows no job {run.run_id}; {_NOTHING}")]


def describe(cloud: Aws, name: str) -> dict[str, Any] | None:
    """What SageMaker says of a job; None when there is none of that name."""
    try:
        return cloud.call("sagemaker", "describe_training_job", TrainingJobName=name)
    except CloudError as error:
        if error.code in ("ValidationException", "ResourceNotFound") and "not found" in error.message.lower():
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
    return ours(found)


def _create(cloud: Aws, body: Mapping[str, Any]) -> dict[str, Any]:
    """Try, and after each failure that may pass ask whether the job is there, until it is or patience ends.

    boto3's own retries would hide that an earlier try may have been the one that counted.
    """
    name, unsure = body["TrainingJobName"], False
    for attempt in range(cloud.attempts):
        if attempt:
            time.sleep(random.random() * 2**attempt / 2)
        try:
            return ref_of(cloud, cloud.call_once("sagemaker", "create_training_job", **body))
        except CloudError as error:
            unsure |= error.unsure or error.code == "ResourceInUse"
            failure = error
        if not unsure and not failure.transient:
            raise failure
        if unsure:
            found = _ours_of_that_name(cloud, name, body, failure)
            if found is not None:
                return found
            if not failure.transient:
                break
    raise _unsure(name, failure) if unsure else failure


def _ours_of_that_name(cloud: Aws, name: str, body: Mapping[str, Any], failure: CloudError) -> dict[str, Any] | None:
    """The job, if it is there and ours: perhaps from a try whose answer was lost. RunExists if it is another's."""
    try:
        described = describe(cloud, name)
        if described is None:
            return None
        if _is_ours(cloud, described, body):
            return ref_of(cloud, described)
    except CloudError as error:
        raise _unsure(name, failure) from error
    hint = "choose another --run-id"
    raise RunExists(f"a training job {name} exists already in {cloud.region}; {_NOTHING}", hint=hint)


def _unsure(name: str, failure: CloudError) -> CloudError:
    hint = f"cloudtrain status {name} asks again; the same name never starts a second job"
    message = f"{failure.message}; whether the job {name} exists is not known yet"
    return CloudError(message, hint=hint, code=failure.code, unsure=True)


def _is_ours(cloud: Aws, described: Mapping[str, Any], body: Mapping[str, Any]) -> bool:
    mine, theirs = ours(body["Tags"]), tags_of(cloud, described["TrainingJobArn"])
    return all(mine.get(key) == theirs.get(key) for key in ("run", "planned", "spec"))


def _never(now: float, reason: str) -> dict[str, Any]:
    return {"type": "ended", "time": now, "state": "failed", "reason": reason}


def _channel(body: Mapping[str, Any], name: str) -> str:
    found = next(item for item in body["InputDataConfig"] if item["ChannelName"] == name)
    return str(found["DataSource"]["S3DataSource"]["S3Uri"])
