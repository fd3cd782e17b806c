"""A whole cloud on loopback, one address for all: moto, with SageMaker, ECR and CloudFormation's
DescribeStacks before it.
"""

from __future__ import annotations

import logging
import os
import urllib.request
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

import boto3
import pytest
from botocore.config import Config
from moto.server import ThreadedMotoServer

from tests.fakes.aws.account import GROUP
from tests.fakes.aws.ecr import Ecr
from tests.fakes.aws.endpoint import Endpoint
from tests.fakes.aws.jobs import ENDED
from tests.fakes.aws.sagemaker import SageMaker
from tests.fakes.messages import raise_mistakes
from tests.support.waiting import eventually

REGION = "us-east-1"
ACCOUNT = "123456789012"
BUCKET = "loopback-bucket"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/loopback"
IMAGE = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/train:1"
KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIALOOPBACK",
    "AWS_SECRET_ACCESS_KEY": "loopback",
    "AWS_DEFAULT_REGION": REGION,
}


class Cloud:
    """One account in one region, empty but for a bucket. `settings`: of
    `tests.fakes.aws.account.Account`.

    moto keeps its state per process, so there is one cloud at a time; a new one is empty.
    """

    def __init__(self, **settings: Any) -> None:
        logging.getLogger("werkzeug").setLevel(logging.WARNING)  # a line for each request to moto
        self._moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self._moto.start()
        host, port = self._moto.get_host_and_port()
        self.moto_url = f"http://{host}:{port}"
        self._reset()
        env = {**KEYS, "AWS_ENDPOINT_URL": self.moto_url, "AWS_EC2_METADATA_DISABLED": "true"}
        settings = {**settings, "env": {**env, **settings.get("env", {})}}
        self.service = SageMaker(self.moto_url, region=REGION, account=ACCOUNT, **settings)
        self.account = self.service.account
        """Settings that tests may change while it runs: quotas, rights, phase duration."""
        self.registry = Ecr(self.account)
        self.registry.images.put("train", "1", "amd64")  # IMAGE
        self.endpoint = Endpoint(self.service, self.registry, (host, port))
        self.stacks = self.endpoint.stacks
        for server in (self.endpoint, self.registry.blobs):
            server.start()
        self.bucket = BUCKET
        self.role = ROLE
        self.region = REGION
        self.image = IMAGE
        self._clients: dict[str, Any] = {}
        self.client("s3", direct=True).create_bucket(Bucket=BUCKET)

    def __enter__(self) -> Cloud:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()
        if error is None:
            raise_mistakes(self.account.unexpected_errors)

    def environment(self) -> dict[str, str]:
        """Return the variables that a client needs; `clean` also removes other accounts' variables."""
        nowhere = str(self.account.folder / "no-config")
        return {
            **KEYS,
            "AWS_ENDPOINT_URL": self.endpoint.url,
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_CONFIG_FILE": nowhere,
            "AWS_SHARED_CREDENTIALS_FILE": nowhere,
            "AWS_MAX_ATTEMPTS": "2",
            "AWS_RETRY_MODE": "standard",
            "CLOUDTRAIN_AWS_ROLE": self.role,
            "CLOUDTRAIN_AWS_BUCKET": self.bucket,
            "CLOUDTRAIN_AWS_REGION": self.region,
            "CLOUDTRAIN_AWS_POLL": "0.1",
        }

    def clean(self, environ: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Return an environment for a client process: only the variables of this account."""
        return {
            key: value for key, value in environ.items() if not key.startswith("AWS_")
        } | self.environment()

    def client(self, service: str, *, direct: bool = False) -> Any:
        """A boto3 client of this cloud; `direct`: past the front, seen by nobody and spared by
        faults.

        It tries each call once, so that every fault is seen.
        """
        name = f"{service} {direct}"
        if name not in self._clients:
            session = boto3.session.Session(
                aws_access_key_id=KEYS["AWS_ACCESS_KEY_ID"],
                aws_secret_access_key=KEYS["AWS_SECRET_ACCESS_KEY"],
                region_name=self.region,
            )
            config = Config(retries={"mode": "standard", "total_max_attempts": 1})
            place = self.moto_url if direct else self.endpoint.url
            self._clients[name] = session.client(service, endpoint_url=place, config=config)
        return self._clients[name]

    def keys(self, prefix: str = "") -> list[str]:
        """The names of everything in the bucket below a prefix."""
        pages = (
            self.client("s3", direct=True)
            .get_paginator("list_objects_v2")
            .paginate(Bucket=self.bucket, Prefix=prefix)
        )
        return [item["Key"] for page in pages for item in page.get("Contents", [])]

    def objects(self, prefix: str = "") -> dict[str, bytes]:
        """Return all objects below a prefix, except any that their job deletes at this moment."""
        s3 = self.client("s3", direct=True)
        runs = {}
        for key in self.keys(prefix):
            try:
                runs[key] = s3.get_object(Bucket=self.bucket, Key=key)["Body"].read()
            except s3.exceptions.ClientError:  # moto says 500 where an object goes while it is read
                if key in self.keys(key):
                    raise
        return runs

    def put(self, key: str, content: bytes = b"") -> None:
        """One object into the bucket."""
        self.client("s3", direct=True).put_object(Bucket=self.bucket, Key=key, Body=content)

    def empty(self) -> None:
        """Reset to an account with an empty bucket; no job may be running."""
        self._reset()
        self.stacks.clear()
        self.registry.reset()
        self.endpoint.reset()
        self.client("s3", direct=True).create_bucket(Bucket=BUCKET)

    def close(self) -> None:
        """End all jobs, kill all their processes, close all ports."""
        self.service.close()
        self.endpoint.close()
        self.registry.blobs.close()
        for client in self._clients.values():
            client.close()
        self._reset()
        self._moto.stop()
        server = self._moto._server  # it shuts down, but keeps its port
        if server is not None:
            server.server_close()

    def _reset(self) -> None:
        with urllib.request.urlopen(
            urllib.request.Request(f"{self.moto_url}/moto-api/reset", method="POST")
        ) as answer:
            answer.read()


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


# Fixtures that other test folders take over: `from tests.fakes.aws.cloud import cloud, account`.


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    """Provide a cloud for all tests of a module; closing it reports its own mistakes."""
    with Cloud() as made:
        yield made


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
    raise_mistakes(cloud.account.unexpected_errors)
    cloud.endpoint.reset()
    cloud.account.quotas.clear()
    cloud.account.denied_actions.clear()
    for name in (
        *("phase_seconds", "has_warm_pools"),
        *("caller_policy", "job_policy", "tag_delay_seconds"),
    ):
        setattr(cloud.account, name, before[name])
