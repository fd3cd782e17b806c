"""Requests for the imitation's own tests, and functions that wait for the results of their jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.fakes.aws.cloud import Cloud
from tests.fakes.aws.jobs import ENDED
from tests.fakes.aws.logs import GROUP
from tests.support.waiting import eventually

START = (
    "import os,runpy;b=os.environ.get('SAGEMAKER_BASE_DIR','/opt/ml');"
    "runpy.run_path(b+'/input/data/code/program.py',run_name='__main__')"
)


def request(cloud: Cloud, name: str, nodes: int = 1, **wishes: str) -> dict[str, Any]:
    """A CreateTrainingJob body whose containers run `program.py`; its channels are put in place."""
    cloud.put("code/program.py", Path(__file__).with_name("program.py").read_bytes())
    cloud.put("train/part/a.txt", b"data")
    return {
        "TrainingJobName": name,
        "RoleArn": cloud.role,
        "HyperParameters": wishes,
        "AlgorithmSpecification": {
            "TrainingImage": cloud.image,
            "TrainingInputMode": "File",
            "ContainerEntrypoint": ["python3", "-c", START],
        },
        "InputDataConfig": [
            channel("code", f"s3://{cloud.bucket}/code/"),
            channel("train", f"s3://{cloud.bucket}/train"),
        ],
        "OutputDataConfig": {"S3OutputPath": f"s3://{cloud.bucket}/out/"},
        "ResourceConfig": {"InstanceType": "ml.g5.xlarge", "InstanceCount": nodes},
        "StoppingCondition": {"MaxRuntimeInSeconds": 60},
        "CheckpointConfig": {"S3Uri": f"s3://{cloud.bucket}/checkpoints/{name}/"},
        "Tags": [{"Key": "team", "Value": "vision"}],
    }


def channel(name: str, uri: str, **more: str) -> dict[str, Any]:
    """One input."""
    return {
        "ChannelName": name,
        "DataSource": {"S3DataSource": {"S3DataType": "S3Prefix", "S3Uri": uri}},
        **more,
    }


def ended(cloud: Cloud, name: str) -> dict[str, Any]:
    """The description of a job when it is over."""
    job = cloud.service.jobs[name]
    eventually(lambda: job.has_ended)
    described: dict[str, Any] = cloud.client("sagemaker").describe_training_job(
        TrainingJobName=name
    )
    assert described["TrainingJobStatus"] in ENDED
    return described


def lines(cloud: Cloud, name: str) -> dict[str, list[str]]:
    """Return the lines that a job's containers have printed, by log stream."""
    logs = cloud.client("logs", direct=True)
    try:
        streams = logs.describe_log_streams(logGroupName=GROUP, logStreamNamePrefix=f"{name}/")[
            "logStreams"
        ]
    except logs.exceptions.ResourceNotFoundException:
        return {}
    samples = {}
    for stream in streams:
        question = {
            "logGroupName": GROUP,
            "logStreamName": stream["logStreamName"],
            "startFromHead": True,
        }
        events = logs.get_log_events(**question)["events"]
        samples[stream["logStreamName"].partition("/")[2]] = [event["message"] for event in events]
    return samples


def wait_for_output(cloud: Cloud, name: str, text: str, times: int = 1) -> None:
    """Wait until at least `times` of a job's lines contain this text."""
    eventually(
        lambda: sum(text in line for part in lines(cloud, name).values() for line in part) >= times
    )
