"""Fixtures that other test folders take over, and requests for the imitation's own tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fakes.aws.account import GROUP
from tests.fakes.aws.cloud import Cloud
from tests.fakes.aws.jobs import ENDED
from tests.support.waiting import eventually

# Requests for the imitation's own tests, and functions that wait for the results of their jobs.


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


# Fixtures that other test folders take over: `from tests.fakes.aws.fixtures import cloud, account`.


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    """Provide a cloud for all tests of a module; closing it reports its own mistakes."""
    with Cloud() as made:
        yield made
    assert not made.account.unexpected_errors, "\n".join(made.account.unexpected_errors)


@pytest.fixture
def account(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    """The same cloud for one test: no faults, no calls, no lacks, and this process is its client."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in cloud.environment().items():
        monkeypatch.setenv(name, value)
    cloud.endpoint.reset()
    before = dict(vars(cloud.account))
    yield cloud
    cloud.endpoint.reset()
    cloud.account.capacity.clear()
    cloud.account.quotas.clear()
    cloud.account.missing_images.clear()
    cloud.account.denied_actions.clear()
    for name in (
        *("grace_seconds", "phase_seconds", "has_warm_pools"),
        *("caller_policy", "job_policy", "tag_delay_seconds"),
    ):
        setattr(cloud.account, name, before[name])
    cloud.account.logs.lag_seconds = 0
