"""Shared parts of the fault tests: the job, the kinds of faults, and the submit."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path

import cloudtrain
from cloudtrain.submission.run import Run
from tests.fakes.aws.cloud import Cloud
from tests.support.command_line import CommandLine

JOB = {
    "name": "faulty",
    "entrypoint": "train.py",
    "resources": {"nodes": 2},
    "limits": {"max_runtime": "1 h"},
}
CALLS = [("s3", "PutObject", 1), ("s3", "PutObject", 2), ("sagemaker", "CreateTrainingJob", 1)]


def command_line_of(cloud: Cloud, tmp_path: Path) -> CommandLine:
    """The real command line in the job's folder."""
    cli = CommandLine(tmp_path / "workspace", env=cloud.environment(), modules=("warm_sdks",))
    cli.write(job_yaml=json.dumps(JOB), train_py="print('never run')\n")
    return cli


def submitted(run_id: str, data_dir: str | None = None) -> Run:
    return cloudtrain.submit(
        cloudtrain.plan(cloudtrain.load(JOB), "aws", run_id=run_id, data_dir=data_dir)
    )


def exists(cloud: Cloud, run_id: str) -> bool:
    return run_id in cloud.service.jobs


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
