"""Requests for the imitation's own tests, and functions that wait for the results of their jobs."""

from __future__ import annotations

from typing import Any

from tests.fakes.aws.cloud import Cloud
from tests.fakes.aws.jobs import ENDED
from tests.fakes.aws.logs import GROUP
from tests.support.waiting import eventually


def request(cloud: Cloud, name: str) -> dict[str, Any]:
    """Return a CreateTrainingJob body for a container that prints a line; store its input."""
    cloud.put("train/part/a.txt", b"data")
    return {
        "TrainingJobName": name,
        "RoleArn": cloud.role,
        "AlgorithmSpecification": {
            "TrainingImage": cloud.image,
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["python3", "-c", "print('a line')"],
        },
        "InputDataConfig": [channel("train", f"s3://{cloud.bucket}/train")],
        "OutputDataConfig": {"S3OutputPath": f"s3://{cloud.bucket}/out/"},
        "ResourceConfig": {"InstanceType": "ml.g5.xlarge", "InstanceCount": 1},
        "StoppingCondition": {"MaxRuntimeInSeconds": 60},
        "CheckpointConfig": {"S3Uri": f"s3://{cloud.bucket}/checkpoints/{name}/"},
        "Tags": [{"Key": "team", "Value": "vision"}],
    }


def channel(name: str, uri: str, **more: str) -> dict[str, Any]:
    """Return one input."""
    return {
        "ChannelName": name,
        "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": uri}},
        **more,
    }


def ended(cloud: Cloud, name: str) -> dict[str, Any]:
    """Return the description of a job when it is over."""
    job = cloud.service.jobs[name]
    eventually(lambda: job.has_ended)
    described: dict[str, Any] = cloud.client("sagemaker").describe_training_job(
        TrainingJobName=name
    )
    assert described["TrainingJobStatus"] in ENDED
    return described


def wait_for_log(cloud: Cloud, name: str) -> None:
    """Wait until a job has a log stream."""
    logs = cloud.client("logs", direct=True)
    question = {"logGroupName": GROUP, "logStreamNamePrefix": f"{name}/"}
    eventually(lambda: logs.describe_log_streams(**question)["logStreams"])
