"""The wire traffic of a job on SageMaker: calls, exactly the planned request, and rare faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from email.utils import formatdate
from hashlib import sha256
from pathlib import Path
from typing import Any

import botocore
import pytest
from botocore.config import Config

import cloudtrain
from cloudtrain.api.lookup import find_run
from cloudtrain.api.run import Run
from cloudtrain.errors import CloudError
from cloudtrain.providers.aws.client import ONE_REQUEST_BYTES, AwsClient, aws
from cloudtrain.providers.aws.request import channel_uri
from cloudtrain.providers.shared.idempotent_create import Attempt
from cloudtrain_wire.events import Cursor
from tests.fakes.aws.cloud import Cloud
from tests.fakes.messages import FaultKind
from tests.providers.aws.operations import submitted, write_log
from tests.providers.faults import PERMANENT, TRANSIENT, assert_each_struck, fault_each

pytestmark = pytest.mark.once

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


@pytest.mark.parametrize("size", [1000, ONE_REQUEST_BYTES + 1000])
def test_an_object_that_somebody_else_has_put_in_place_of_the_source_is_replaced(
    cloud: Cloud, region: AwsClient, tmp_path: Path, size: int
) -> None:
    path = tmp_path / "source.tar.gz"
    path.write_bytes(os.urandom(size))
    planted = tmp_path / "planted"
    planted.write_bytes(os.urandom(size))
    digests = sha256(path.read_bytes()).digest()
    for number, algorithm in enumerate(("SHA256", "CRC32")):
        key = f"planted/{size}/{number}"
        cloud.client("s3", direct=True).upload_file(
            str(planted),
            cloud.bucket,
            key,
            ExtraArgs={
                "ChecksumAlgorithm": algorithm,
                "Metadata": {"sha256": digests.hex(), "checksum-sha256": digests.hex()},
            },
        )
        assert region.store(cloud.bucket, key, path, None, None)
        assert cloud.objects(key) == {key: path.read_bytes()}


def test_the_checksums_of_the_parts_are_not_taken_for_the_parts(
    cloud: Cloud, region: AwsClient, large: Path
) -> None:
    """A small object of them has the same checksum as the large one."""
    content = large.read_bytes()
    halves = (content[:ONE_REQUEST_BYTES], content[ONE_REQUEST_BYTES:])
    parts = b"".join(sha256(half).digest() for half in halves)
    cloud.client("s3", direct=True).put_object(
        Bucket=cloud.bucket, Key="parts", Body=parts, ChecksumAlgorithm="SHA256"
    )
    assert region.store(cloud.bucket, "parts", large, None, None)
    assert not region.store(cloud.bucket, "parts", large, None, None)
    assert cloud.objects("parts") == {"parts": content}


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


@pytest.mark.parametrize(
    "gpus", [["H100"], ["A100-80GB", "H100"]], ids=["one type", "a choice of types"]
)
def test_an_exported_job_starts_with_the_aws_command_line_alone(
    cloud: Cloud, folder: Path, gpus: list[str]
) -> None:
    (folder / "job.yaml").write_text(
        json.dumps({**JOB, "resources": {"nodes": 2, "gpus": 8, "gpu": gpus}})
    )
    words = [sys.executable, "-m", "cloudtrain", "plan", "--provider", "aws", "--export", "my job"]
    subprocess.run(words, capture_output=True, text=True, check=True)
    tools = folder / "tools"
    tools.mkdir()
    (tools / "aws").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m awscli "$@"\n')
    (tools / "aws").chmod(0o755)
    env = {**cloud.clean(), "PATH": f"{tools}{os.pathsep}/usr/bin{os.pathsep}/bin"}
    if len(gpus) > 1:  # the command line's own model of SageMaker is older than InstancePreferences
        env["AWS_DATA_PATH"] = str(Path(botocore.__file__).parent / "data")

    result = subprocess.run(
        [folder / "my job" / "start.sh"], capture_output=True, text=True, env=env, check=False
    )

    assert result.returncode == 0, result.stderr
    sent = cloud.endpoint.sent[-1][1]
    assert sent == json.loads((folder / "my job" / "request.json").read_text())
    run_id = sent["TrainingJobName"]
    (job_file,) = cloud.objects(f"cloudtrain/runs/{run_id}/job/")
    assert channel_uri(sent, "cloudtrain-job") + "job.json" == f"s3://{cloud.bucket}/{job_file}"
    archive = channel_uri(sent, "cloudtrain-source") + "source.tar.gz"
    assert archive in [f"s3://{cloud.bucket}/{key}" for key in cloud.keys("cloudtrain/sources/")]


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


# Faults in calls that are rare: uploads in parts, tags, other accounts.

ALWAYS = 500
"""More often than anybody asks."""


def test_a_new_job_that_may_not_be_looked_at_before_it_has_its_tags_is_waited_for(
    cloud: Cloud,
) -> None:
    run = submitted("tagged-late")
    cloud.endpoint.fault("denied", "sagemaker", "DescribeTrainingJob", times=3)
    updates = run.watch()
    while len(cloud.endpoint.struck) < 3:
        assert not next(updates).state.has_ended
    assert find_run(run.id).status().state == "pending"


def test_credentials_of_another_account_do_not_end_a_run(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submitted("ours-1")
    job = cloud.service.jobs.pop("ours-1")
    role = "arn:aws:iam::999999999999:role/other"
    sts = cloud.client("sts", direct=True)
    credentials = sts.assume_role(RoleArn=role, RoleSessionName="other")["Credentials"]
    with monkeypatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", credentials["AccessKeyId"])
        patch.setenv("AWS_SECRET_ACCESS_KEY", credentials["SecretAccessKey"])
        patch.setenv("AWS_SESSION_TOKEN", credentials["SessionToken"])
        aws.cache_clear()
        with pytest.raises(
            CloudError, match="belong to the account 999999999999, the run ours-1 to 123456789012"
        ):
            run.status()
    aws.cache_clear()
    cloud.service.jobs["ours-1"] = job
    assert find_run("ours-1").status().state == "pending"


def test_reading_goes_on_when_the_token_has_expired(cloud: Cloud) -> None:
    run = submitted("token-1")
    write_log(cloud, run.id, 0, "[rank 0] first", "[rank 0] second")
    run.status()
    cursor = run.folder.last_event(Cursor)
    assert cursor is not None
    assert cursor.streams is not None
    for place in cursor.streams.values():
        place["token"] = "an expired token"
    run.folder.append(cursor)
    write_log(cloud, run.id, 0, "[rank 0] third")
    find_run("token-1").status()
    assert [line.text for line in run.logs()] == ["first", "second", "third"]


# Calls that a submit or a stop makes now and then: uploads in parts, tags, the stop itself. Nothing
# is left open.

PARTS = ("CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload")


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A file that is sent in two parts."""
    path = tmp_path / "large.tar.gz"
    path.write_bytes(b"x" * (ONE_REQUEST_BYTES + 1000))
    return path


@pytest.fixture
def region(cloud: Cloud) -> AwsClient:
    return aws(cloud.region)


def open_uploads(cloud: Cloud, prefix: str) -> list[Any]:
    listed = cloud.client("s3", direct=True).list_multipart_uploads(Bucket=cloud.bucket)
    return [upload for upload in listed.get("Uploads", []) if upload["Key"].startswith(prefix)]


@pytest.mark.parametrize("kind", TRANSIENT)
def test_a_multipart_upload_survives_a_transient_fault_in_each_of_its_calls(
    cloud: Cloud, region: AwsClient, large: Path, kind: FaultKind
) -> None:
    key = f"passing/{kind}"
    calls = [("s3", operation, 1) for operation in PARTS]
    fault_each(cloud.endpoint, kind, calls)
    assert region.store(cloud.bucket, key, large, None, None)
    assert_each_struck(cloud.endpoint, kind, calls)
    assert cloud.objects(key) == {key: large.read_bytes()}


@pytest.mark.parametrize("operation", PARTS)
@pytest.mark.parametrize("kind", PERMANENT)
def test_an_upload_that_fails_leaves_neither_object_nor_open_parts(
    cloud: Cloud, region: AwsClient, large: Path, kind: FaultKind, operation: str
) -> None:
    key = f"lasting/{kind}/{operation}"
    cloud.endpoint.fault(kind, "s3", operation, times=ALWAYS)
    with pytest.raises(CloudError, match="PutObject in us-east-1") as failed:
        region.store(cloud.bucket, key, large, None, None)
    words = {
        "expired": "aws sso login",
        "denied": "lack a permission: s3:PutObject",
    }
    assert words[kind] in str(failed.value.hint)
    assert (cloud.objects(key), open_uploads(cloud, key)) == ({}, [])


def test_foreign_job_is_not_adopted_without_permission_to_read_tags(
    cloud: Cloud, data_dir: str
) -> None:
    submitted("same-name")
    cloud.account.denied_actions |= {"sagemaker:ListTags"}
    with pytest.raises(cloudtrain.RunExists, match="exists already"):
        submitted("same-name", data_dir, args={"lr": 1})


@pytest.mark.parametrize("kind", ["expired", "throttle"])
def test_a_missing_job_does_not_end_its_run_while_the_account_is_unknown(
    cloud: Cloud, kind: FaultKind
) -> None:
    run = submitted(f"whose-{kind}")
    job = cloud.service.jobs.pop(run.id)
    cloud.endpoint.fault(kind, "sts", "GetCallerIdentity", times=ALWAYS)
    with pytest.raises(CloudError, match="GetCallerIdentity"):
        run.status()
    cloud.endpoint.reset()
    cloud.service.jobs[run.id] = job
    assert find_run(run.id).status().state == "pending"


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7), ("0", 0), ("9000", 300), ("soon", 0), ("", 0), ("-3", 0)],
)
def test_a_pause_is_what_the_header_asks_for(header: str, seconds: float) -> None:
    attempt = Attempt(lambda _: None)
    attempt.answered(429, "ThrottlingException", header)
    assert attempt.wait_seconds == seconds
    attempt.answered(429, "ThrottlingException", formatdate(time.time() + 60, usegmt=True))
    assert 50 < attempt.wait_seconds <= 60


def test_attempts_and_mode_of_the_users_configuration_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[dict[str, Any]] = []

    def config(*, retries: dict[str, Any], **options: Any) -> Config:
        chosen.append(dict(retries))
        return Config(retries=retries, **options)

    monkeypatch.setattr("cloudtrain.providers.aws.client.Config", config)
    file = tmp_path / "config"
    monkeypatch.setenv("AWS_CONFIG_FILE", str(file))
    for name in ("AWS_RETRY_MODE", "AWS_MAX_ATTEMPTS"):
        monkeypatch.delenv(name, raising=False)

    file.write_text("[default]\nretry_mode = adaptive\nmax_attempts = 7\n")
    client = AwsClient("us-east-1")
    client.call("sts", "get_caller_identity")
    assert (client.attempts, chosen.pop()) == (7, {})
    file.write_text("")
    client = AwsClient("us-east-1")
    client.call("sts", "get_caller_identity")
    assert (client.attempts, chosen.pop()) == (3, {"mode": "standard"})
