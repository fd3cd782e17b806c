"""A job for tests, the client's operations in an account, and the actions that each requires."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import cloudtrain
from cloudtrain.api.run import Run
from cloudtrain.errors import CloudError
from cloudtrain.planning.plan import Plan
from cloudtrain.providers import get_provider
from cloudtrain.providers.aws.client import aws
from cloudtrain.providers.aws.results import new_lines
from cloudtrain.providers.aws.submit import describe, tags_of
from cloudtrain.providers.discovered_run import KnownRuns
from cloudtrain.providers.docker.images import inspect_image, login_for
from cloudtrain.settings import load_settings
from tests.fakes.aws.cloud import ACCOUNT, REGION, Cloud
from tests.fakes.aws.request_rules import check_push
from tests.providers.aws.archives import entry, packed
from tests.providers.faults import fetch_model
from tests.support.native_sweeps import begin

JOB = {
    "name": "faulty",
    "entrypoint": "train.py",
    "resources": {"nodes": 2},
    "limits": {"max_runtime": "1 h"},
}
CALLS = [("s3", "PutObject", 1), ("s3", "PutObject", 2), ("sagemaker", "CreateTrainingJob", 1)]


def submitted(run_id: str, data_dir: str | None = None, **more: Any) -> Run:
    return cloudtrain.submit(
        cloudtrain.plan(cloudtrain.load({**JOB, **more}), "aws", run_id=run_id, data_dir=data_dir)
    )


def write_log(cloud: Cloud, run_id: str, node: int, *lines: str) -> None:
    """Append lines to the log of a node, as SageMaker passes them to CloudWatch."""
    logs = cloud.client("logs", direct=True)
    group = "/aws/sagemaker/TrainingJobs"
    stream = f"{run_id}/algo-{node + 1}-1795213216000"
    with suppress(logs.exceptions.ResourceAlreadyExistsException):
        logs.create_log_group(logGroupName=group)
    with suppress(logs.exceptions.ResourceAlreadyExistsException):
        logs.create_log_stream(logGroupName=group, logStreamName=stream)
    milliseconds = int(time.time() * 1000)
    events = [{"timestamp": milliseconds, "message": line} for line in lines]
    logs.put_log_events(logGroupName=group, logStreamName=stream, logEvents=events)


KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/01234567-89ab-cdef-0123-456789abcdef"
QUEUE = "team"
"""A queue of AWS Batch, which `submit_to_queue` creates."""
LARGE_BYTES = 1_200_000
"""Upload of a source in parts, where tests have lowered the thresholds."""

TAGGED = {"iam:PassRole", "sagemaker:AddTags", "sagemaker:CreateTrainingJob", "s3:PutObject"}


class Operation(NamedTuple):
    """One thing that the client does."""

    needs: set[str]
    do: Callable[[Cloud, Run], object]


def submit(cloud: Cloud, run: Run, **more: Any) -> Run:
    return submitted(f"again-{time.time_ns()}", **more)


def submit_large(cloud: Cloud, run: Run, **more: Any) -> None:
    """Submit a source that is sent in parts, new each time."""
    large = Path("large.bin")
    large.write_bytes(os.urandom(LARGE_BYTES))
    try:
        submit(cloud, run, **more)
    finally:
        large.unlink()


def fail_upload(cloud: Cloud, run: Run) -> None:
    """Submit a large source, with one part refused."""
    cloud.endpoint.fault("expired", "s3", "UploadPart")
    with suppress(CloudError):
        submit_large(cloud, run)


def read_logs(cloud: Cloud, run: Run) -> None:
    write_log(cloud, run.id, 0, "a line")
    assert list(new_lines(aws(REGION), run.id, 1, {}))


def fetch(cloud: Cloud, run: Run, **stored: str) -> None:
    key = f"cloudtrain/runs/{run.id}/output/model.tar.gz"
    cloud.client("s3", direct=True).put_object(
        Bucket=cloud.bucket, Key=key, Body=packed(entry("weights")), **stored
    )
    fetch_model("aws", run)


def fetch_encrypted(cloud: Cloud, run: Run) -> None:
    fetch(cloud, run, ServerSideEncryption="aws:kms", SSEKMSKeyId=KEY)


def stop(cloud: Cloud, run: Run) -> None:
    made = cloud.service.jobs[run.id]
    made.stop_asked.clear()
    made.update(TrainingJobStatus="InProgress")
    get_provider("aws").stop(run.folder, run.cached_status(), lambda _: None)


def release(cloud: Cloud, run: Run) -> None:
    made = cloud.service.jobs[run.id]
    made.body["ResourceConfig"]["KeepAlivePeriodInSeconds"] = 60
    made.keep_machines()
    get_provider("aws").release(run.folder, run.cached_status())


def find_runs(cloud: Cloud, run: Run) -> None:
    get_provider("aws").discover_runs(load_settings(Path.cwd()), None, KnownRuns())


def look_at_image(cloud: Cloud, run: Run) -> None:
    inspect_image(cloud.image)


def log_in(cloud: Cloud, run: Run) -> None:
    login_for(cloud.image.partition("/")[0])


def push(cloud: Cloud, run: Run) -> None:
    check_push("train", cloud.account)


def status(cloud: Cloud, run: Run) -> None:
    describe(aws(REGION), run.id)


SWEEP = {
    "sweep": {
        "objective": {"metric": "loss", "goal": "minimize"},
        "method": "random",
        "space": {"lr": "uniform(0, 1)"},
        "trials": 1,
    },
    "metrics": {"loss": "loss: ([0-9.]+)"},
}


def plan_sweep(cloud: Cloud) -> Plan:
    job = {**JOB, **SWEEP, "image": cloud.image}
    return cloudtrain.plan(cloudtrain.load(job), "aws", run_id=f"s-{time.time_ns()}")


def sweep(cloud: Cloud, run: Run) -> None:
    begin(plan_sweep(cloud))


def tuning_job(cloud: Cloud) -> str:
    """Return a tuning job that a user with all rights started."""
    body = get_provider("aws").native_sweeps().render(plan_sweep(cloud)).document
    cloud.service.call("CreateHyperParameterTuningJob", body)
    return str(body["HyperParameterTuningJobName"])


def follow_sweep(cloud: Cloud, run: Run) -> None:
    question = {"HyperParameterTuningJobName": tuning_job(cloud)}
    aws(REGION).call("sagemaker", "describe_hyper_parameter_tuning_job", **question)
    list(
        aws(REGION).pages(
            "sagemaker", "list_training_jobs_for_hyper_parameter_tuning_job", **question
        )
    )


def stop_sweep(cloud: Cloud, run: Run) -> None:
    name = tuning_job(cloud)
    aws(REGION).call(
        "sagemaker", "stop_hyper_parameter_tuning_job", HyperParameterTuningJobName=name
    )


def submit_to_queue(cloud: Cloud, run: Run) -> Run:
    """Submit to a queue whose machines are all taken."""
    cloud.service.batch.add_queue(QUEUE)
    cloud.service.batch.machines = 0
    return submitted(f"queued-{time.time_ns()}", aws={"queue": QUEUE})


def queued(cloud: Cloud) -> Run:
    """Return a job in a queue that a user with all rights submitted."""
    policy = cloud.account.caller_policy
    cloud.account.caller_policy = None
    try:
        return submit_to_queue(cloud, None)  # type: ignore[arg-type]
    finally:
        cloud.account.caller_policy = policy


def follow_queue(cloud: Cloud, run: Run) -> None:
    assert QUEUE in queued(cloud).status().phase


def stop_in_queue(cloud: Cloud, run: Run) -> None:
    waiting = queued(cloud)
    get_provider("aws").stop(waiting.folder, waiting.cached_status(), lambda _: None)


def encrypted(operation: Callable[..., object]) -> Callable[[Cloud, Run], object]:
    return lambda cloud, run: operation(cloud, run, aws={"kms_key": KEY})


LARGE = TAGGED | {"s3:GetObject", "s3:ListBucket"}
OPERATIONS: Mapping[str, Operation] = {
    "submit": Operation(TAGGED, submit),
    "submit a large source": Operation(LARGE, submit_large),
    "submit with a key": Operation(TAGGED | {"kms:GenerateDataKey"}, encrypted(submit)),
    "submit a large source with a key": Operation(
        LARGE | {"kms:GenerateDataKey", "kms:Decrypt"}, encrypted(submit_large)
    ),
    "status": Operation({"sagemaker:DescribeTrainingJob"}, status),
    "whose job": Operation(
        {"sagemaker:ListTags"}, lambda cloud, run: tags_of(aws(REGION), cloud.account.arn(run.id))
    ),
    "logs": Operation({"logs:DescribeLogStreams", "logs:GetLogEvents"}, read_logs),
    "list": Operation({"sagemaker:Search"}, find_runs),
    "stop": Operation({"sagemaker:StopTrainingJob"}, stop),
    "queue": Operation(
        {
            *("iam:PassRole", "s3:PutObject", "batch:SubmitServiceJob", "batch:TagResource"),
            "batch:ListServiceJobs",
        },
        submit_to_queue,
    ),
    "follow a queue": Operation(
        {"batch:DescribeServiceJob", "batch:GetJobQueueSnapshot"}, follow_queue
    ),
    "stop in a queue": Operation({"batch:TerminateServiceJob"}, stop_in_queue),
    "release": Operation({"sagemaker:DescribeTrainingJob", "sagemaker:UpdateTrainingJob"}, release),
    "sweep": Operation(
        (TAGGED - {"sagemaker:CreateTrainingJob"}) | {"sagemaker:CreateHyperParameterTuningJob"},
        sweep,
    ),
    "follow a sweep": Operation(
        {
            "sagemaker:DescribeHyperParameterTuningJob",
            "sagemaker:ListTrainingJobsForHyperParameterTuningJob",
        },
        follow_sweep,
    ),
    "stop a sweep": Operation({"sagemaker:StopHyperParameterTuningJob"}, stop_sweep),
    "fetch": Operation({"s3:ListBucket", "s3:GetObject"}, fetch),
    "fetch what a key encrypts": Operation(
        {"s3:ListBucket", "s3:GetObject", "kms:Decrypt"}, fetch_encrypted
    ),
    "look at an image": Operation(
        {"ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"},
        look_at_image,
    ),
    "log in to the registry": Operation({"ecr:GetAuthorizationToken"}, log_in),
    "push an image": Operation(
        {
            *("ecr:BatchCheckLayerAvailability", "ecr:InitiateLayerUpload", "ecr:UploadLayerPart"),
            *("ecr:CompleteLayerUpload", "ecr:PutImage"),
        },
        push,
    ),
    "fail to upload": Operation(
        {"s3:GetObject", "s3:ListBucket", "s3:PutObject", "s3:AbortMultipartUpload"},
        fail_upload,
    ),
}
"""All that the client does with a submitter's rights."""
