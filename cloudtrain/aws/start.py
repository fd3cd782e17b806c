"""Sending a request so that exactly one job comes of it, or none: store, record, create, and ask when in doubt."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloudtrain.aws.request import ARCHIVE, JOB, JOB_FILE, SOURCE, ours, uri_parts
from cloudtrain.errors import CloudError, RunExists
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
    progress: Callable[[int, int], None] | None,
) -> dict[str, Any]:
    """Store source and job document, then create the job. The answer finds it again.

    Three calls when the source is there already or small, however many files it has. CloudError with `unsure` when
    it cannot be told whether the job exists; `settle` tells later.
    """
    key = body["OutputDataConfig"].get("KmsKeyId")
    with _submitting(run):
        bucket, folder = uri_parts(_channel(body, SOURCE))
        cloud.put_once(bucket, folder + ARCHIVE, archive, key, progress)
        bucket, folder = uri_parts(_channel(body, JOB))
        cloud.put(bucket, folder + JOB_FILE, as_text(dict(job)).encode(), key)
        run.append({"type": "creating", "time": time.time()}, durable=True)
        return _create(cloud, body)


def settle(cloud: Aws, run: RunFolder, now: float) -> list[dict[str, Any]]:
    """What became of a submission that nobody has seen the end of. Nothing, while it may still be under way."""
    if _is_submitting(run):
        return []
    body = run.document("request.json")
    described = describe(cloud, run.run_id)
    if described is not None:
        if _is_ours(cloud, described, body):
            return [{"type": "submitted", "time": now, "ref": ref_of(cloud, described)}]
        return [_never(now, f"another job of the name {run.run_id} exists; {_NOTHING}")]
    creating = run.last_event("creating")
    if creating is None:
        return [_never(now, f"submit was interrupted before the job was created; {_NOTHING}")]
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
    try:
        return ref_of(cloud, cloud.call("sagemaker", "create_training_job", **body))
    except CloudError as error:
        if error.code != "ResourceInUse" and not error.unsure:
            raise
        failure = error
    # Either the name is taken, perhaps by our own first try whose answer was lost, or no answer came at all.
    name = body["TrainingJobName"]
    try:
        described = describe(cloud, name)
        if described is not None and _is_ours(cloud, described, body):
            return ref_of(cloud, described)
    except CloudError as error:
        raise _unsure(name, failure) from error
    if described is not None:
        hint = "choose another --run-id"
        raise RunExists(f"a training job {name} exists already in {cloud.region}; {_NOTHING}", hint=hint)
    raise _unsure(name, failure)


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


@contextmanager
def _submitting(run: RunFolder) -> Iterator[None]:
    """Hold a lock while a submission is under way; the kernel lets go of it when this process dies."""
    file = os.open(run.path / "submit.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
    finally:
        os.close(file)


def _is_submitting(run: RunFolder) -> bool:
    try:
        file = os.open(run.path / "submit.lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False
