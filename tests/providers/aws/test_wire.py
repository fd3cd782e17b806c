"""The wire traffic of a job on SageMaker: the number of calls, and exactly the planned request."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import botocore
import pytest

import cloudtrain
from cloudtrain.submission.run import Run
from tests.fakes.aws.cloud import Cloud

JOB = {
    "name": "wired",
    "entrypoint": "train.py",
    "resources": {"nodes": 2, "gpus": 8, "gpu": ["A100-80GB", "H100"]},
    "inputs": {"train": {"aws": "s3://loopback-bucket/data/", "mode": "stream"}},
    "limits": {"max_runtime": "6 h", "max_wait": "12 h", "retries": 2},
    "tags": {"team": "vision"},
    "env": {"NCCL_DEBUG": "WARN"},
    "aws": {"encrypt_traffic": True, "remote_debug": True, "tensorboard": True},
}


def submit(**more: Any) -> Run:
    return cloudtrain.submit(cloudtrain.plan(cloudtrain.load({**JOB, **more}), "aws"))


def calls(cloud: Cloud) -> list[tuple[str, str]]:
    return [(call.service, call.operation) for call in cloud.endpoint.calls]


THREE = [("s3", "PutObject"), ("s3", "PutObject"), ("sagemaker", "CreateTrainingJob")]


def test_a_submit_is_three_calls_and_so_is_the_next_one(cloud: Cloud) -> None:
    submit()
    assert calls(cloud) == THREE
    cloud.endpoint.reset()
    submit()
    assert calls(cloud) == THREE


def test_a_large_source_is_sent_in_parts_once(cloud: Cloud, folder: Path) -> None:
    (folder / "large.bin").write_bytes(os.urandom(20_000_000))
    progress: list[tuple[int, int]] = []
    plan = cloudtrain.plan(cloudtrain.load(JOB), "aws")
    cloudtrain.submit(plan, sending=lambda sent, total: progress.append((sent, total)))
    assert calls(cloud)[:2] == [("s3", "HeadObject"), ("s3", "CreateMultipartUpload")]
    assert progress[-1][0] == progress[-1][1] > 20_000_000
    cloud.endpoint.reset()
    submit()
    assert calls(cloud) == [
        ("s3", "HeadObject"),
        ("s3", "PutObject"),
        ("sagemaker", "CreateTrainingJob"),
    ]


def test_what_is_sent_is_what_was_planned(cloud: Cloud) -> None:
    member = {"ExperimentConfig": {"ExperimentName": "digits"}}
    run = submit(aws={"request": member})
    planned = json.loads((run.folder.path / "request.json").read_text())
    body = cloud.endpoint.sent[-1][1]
    assert body == planned
    assert body.items() >= member.items()


def test_objects_are_encrypted_with_the_key_that_the_spec_names(cloud: Cloud) -> None:
    key = "arn:aws:kms:us-east-1:123456789012:key/k"
    run = submit(aws={"kms_key": key})
    s3 = cloud.client("s3", direct=True)
    (key_of_job,) = cloud.objects(f"cloudtrain/runs/{run.id}/job/")
    described = s3.head_object(Bucket=cloud.bucket, Key=key_of_job)
    assert described["SSEKMSKeyId"] == key


def test_observing_a_run_is_one_describe_and_one_search_for_streams(cloud: Cloud) -> None:
    run = submit()
    cloud.endpoint.reset()
    run.status()
    assert calls(cloud) == [("sagemaker", "DescribeTrainingJob"), ("logs", "DescribeLogStreams")]


@pytest.mark.once
@pytest.mark.parametrize(
    "gpus", [["H100"], ["A100-80GB", "H100"]], ids=["one type", "a choice of types"]
)
def test_the_aws_command_line_accepts_a_plan_as_it_is_printed(
    cloud: Cloud, folder: Path, gpus: list[str]
) -> None:
    (folder / "job.yaml").write_text(
        json.dumps({**JOB, "resources": {"nodes": 2, "gpus": 8, "gpu": gpus}})
    )
    words = [sys.executable, "-m", "cloudtrain", "plan", "--provider", "aws", "--json"]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    (folder / "request.json").write_text(printed)
    env = cloud.clean()
    if len(gpus) > 1:  # the command line's own model of SageMaker is older than InstancePreferences
        env["AWS_DATA_PATH"] = str(Path(botocore.__file__).parent / "data")
    command = [sys.executable, "-m", "awscli", "sagemaker", "create-training-job"]
    result = subprocess.run(
        [*command, "--cli-input-json", "file://request.json"],
        capture_output=True,
        text=True,
        env=env,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert cloud.endpoint.sent[-1][1] == json.loads(printed)


SDK = """
import json, re, sys
from sagemaker.core import shapes
from sagemaker.core.resources import TrainingJob

def snake(name):
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()

def arguments(value, inside=False):
    if isinstance(value, dict):
        return {snake(key): item if key in ("Environment",) else arguments(item) for key, item in value.items()}
    return [arguments(item) for item in value] if isinstance(value, list) else value

TrainingJob.create(**arguments(json.load(open("request.json"))))
"""


def test_the_sagemaker_sdk_puts_the_same_request_on_the_wire(cloud: Cloud, folder: Path) -> None:
    plan = cloudtrain.plan(cloudtrain.load(JOB), "aws")
    planned = dict(cloudtrain.render(plan).document)
    (folder / "request.json").write_text(json.dumps(planned))
    result = subprocess.run(
        [sys.executable, "-c", SDK], capture_output=True, text=True, env=cloud.clean(), check=False
    )
    assert result.returncode == 0, result.stderr[-2000:]
    created = [body for call, body in cloud.endpoint.sent if call.operation == "CreateTrainingJob"]
    assert created == [planned]
