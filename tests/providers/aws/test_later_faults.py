"""Faults at SageMaker in calls that are rare: uploads in parts, tags, other accounts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloudtrain.errors import CloudError
from cloudtrain.providers.aws.client import ONE_REQUEST_BYTES, AwsClient, aws
from cloudtrain.submission.lookup import find_run
from cloudtrain_launcher.events import Cursor
from tests.fakes.aws.cloud import Cloud
from tests.fakes.messages import FaultKind
from tests.providers.aws.jobs import exists, submitted, write_log
from tests.providers.faults import (
    PERMANENT,
    TRANSIENT,
    assert_each_struck,
    fault_each,
)

pytestmark = pytest.mark.once

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
    from cloudtrain.providers.aws.client import aws

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
    assert region.put_once(cloud.bucket, key, large, None, None)
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
        region.put_once(cloud.bucket, key, large, None, None)
    words = {
        "expired": "aws sso login",
        "denied": "lack a permission: s3:PutObject",
    }
    assert words[kind] in str(failed.value.hint)
    assert (cloud.objects(key), open_uploads(cloud, key)) == ({}, [])


@pytest.mark.parametrize("kind", [*TRANSIENT, "denied"])
def test_job_with_lost_create_response_is_found_despite_late_tags(
    cloud: Cloud, kind: FaultKind
) -> None:
    run_id = f"tags-{kind.replace('_', '-')}"
    cloud.endpoint.fault("lost", "sagemaker", "CreateTrainingJob", times=ALWAYS)
    cloud.endpoint.fault(kind, "sagemaker", "ListTags", times=ALWAYS if kind == "denied" else 1)
    assert submitted(run_id).status().state == "pending"
    assert ("sagemaker", "ListTags") in cloud.endpoint.calls


def test_foreign_job_is_not_adopted_without_permission_to_read_tags(
    cloud: Cloud, tmp_path_factory: pytest.TempPathFactory
) -> None:
    import cloudtrain
    from tests.providers.aws.jobs import JOB

    submitted("same-name")
    cloud.account.denied_actions |= {"sagemaker:ListTags"}
    second_folder = str(tmp_path_factory.mktemp("other"))
    spec = cloudtrain.load({**JOB, "args": {"lr": 1}})
    with pytest.raises(cloudtrain.RunExists, match="exists already"):
        cloudtrain.submit(cloudtrain.plan(spec, "aws", run_id="same-name", data_dir=second_folder))


def test_expired_credentials_leave_it_unknown_whether_the_job_exists(cloud: Cloud) -> None:
    cloud.endpoint.fault("lost", "sagemaker", "CreateTrainingJob", times=ALWAYS)
    cloud.endpoint.fault("expired", "sagemaker", "ListTags", times=ALWAYS)
    with pytest.raises(CloudError, match="not known yet"):
        submitted("tags-expired")
    cloud.endpoint.reset()
    assert exists(cloud, "tags-expired")
    assert find_run("tags-expired").status().state == "pending"


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
