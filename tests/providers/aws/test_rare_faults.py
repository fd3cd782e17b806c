"""Calls that a submit or a stop makes now and then: uploads in parts, tags, the stop itself.
Nothing is left open.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cloudtrain.errors import CloudError
from cloudtrain.providers.aws.client import ONE_REQUEST_BYTES, AwsClient, aws
from cloudtrain.submission.lookup import find_run
from tests.fakes.aws.cloud import Cloud
from tests.fakes.faults import FaultKind
from tests.providers.aws.jobs import exists, submitted
from tests.providers.faults import PERMANENT, TRANSIENT, assert_each_struck, fault_each

PARTS = ("CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload")
ALWAYS = 50


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


@pytest.mark.parametrize(
    ("kind", "words"), [("expired", "aws sso login"), ("denied", "sagemaker:StopTrainingJob")]
)
def test_a_stop_that_is_refused_says_why_and_that_the_job_goes_on(
    cloud: Cloud, kind: FaultKind, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudtrain.providers.aws.status.TAG_DELAY_SECONDS", 0)
    run = submitted(f"stop-{kind}")
    cloud.endpoint.fault(kind, "sagemaker", "StopTrainingJob", times=ALWAYS)
    with pytest.raises(
        CloudError, match=f"stop-{kind} was not told to stop: StopTrainingJob"
    ) as failed:
        run.stop()
    assert words in str(failed.value.hint)
    assert not cloud.service.jobs[run.id].stop_asked.is_set()
    assert not run.status().has_ended


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
