"""Faults at SageMaker after a submit, in calls that are rare, and foreign answers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.errors import CloudError
from cloudtrain.providers.aws.client import ONE_REQUEST_BYTES, AwsClient, aws
from cloudtrain.submission.lookup import find_run
from cloudtrain.submission.run import Run
from cloudtrain_launcher.events import Cursor
from tests.fakes.aws.cloud import Cloud
from tests.fakes.messages import Call, FaultKind
from tests.providers.aws.archives import entry, packed
from tests.providers.aws.jobs import exists, submitted, write_log
from tests.providers.aws.operations import OPERATIONS
from tests.providers.faults import (
    PERMANENT,
    TRANSIENT,
    Do,
    assert_each_struck,
    calls_by_operation,
    complaints,
    fault_each,
)
from tests.support.samples import events_of

# Faults at SageMaker after a submit, and in calls that are rare.

# Faults at SageMaker after a submit: stop, tokens of logs, other accounts, fetches.

pytestmark = pytest.mark.once

ALWAYS = 500
"""More often than anybody asks."""
MANY = 100
"""How many calls at least read three parts of the logs of two nodes, and more than anybody makes
for it.
"""


def test_a_new_job_that_may_not_be_looked_at_before_it_has_its_tags_is_waited_for(
    cloud: Cloud,
) -> None:
    run = submitted("tagged-late")
    cloud.endpoint.fault("denied", "sagemaker", "DescribeTrainingJob", times=3)
    updates = run.watch()
    while len(cloud.endpoint.struck) < 3:
        assert not next(updates).state.has_ended
    assert find_run(run.id).status().state == "pending"


@pytest.mark.parametrize("kind", TRANSIENT)
def test_a_stop_reaches_the_job_despite_transient_faults(cloud: Cloud, kind: FaultKind) -> None:
    run = submitted(f"stop-{kind.replace('_', '-')}")
    cloud.endpoint.fault(kind, "sagemaker", "StopTrainingJob")
    assert run.stop().state == "stopped"


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


def with_results(cloud: Cloud, run_id: str) -> Run:
    """A run that has left a model and a checkpoint."""
    run = submitted(run_id)
    cloud.put(
        f"cloudtrain/runs/{run.id}/output/model.tar.gz",
        packed(entry("model/weights", text="w" * 1000)),
    )
    cloud.put(f"cloudtrain/runs/{run.id}/checkpoints/step-1/rank-0.pt", b"c" * 1000)
    cloud.endpoint.reset()
    return run


def assert_whole(result: Path) -> None:
    """All of it is there, and nothing unfinished beside it."""
    assert (result / "model" / "model" / "weights").read_text() == "w" * 1000
    assert (result / "checkpoints" / "step-1" / "rank-0.pt").read_bytes() == b"c" * 1000
    assert [path.name for path in result.parent.iterdir() if path.name.endswith(".part")] == []


@pytest.mark.parametrize("kind", TRANSIENT)
def test_a_fetch_copies_everything_although_every_call_goes_wrong_once(
    cloud: Cloud, tmp_path: Path, kind: FaultKind
) -> None:
    run = with_results(cloud, f"fetch-{kind.replace('_', '-')}")
    # The call between two faults is the second try.
    for nth in range(1, MANY, 1 if kind == "slow" else 2):
        cloud.endpoint.fault(kind, "s3", nth=nth, seconds=0.05)
    run.fetch(tmp_path / "result", checkpoints=True)
    struck = {call.operation for _, call in cloud.endpoint.struck}
    assert struck == {"ListObjectsV2", "HeadObject", "GetObject"}
    assert_whole(tmp_path / "result")


@pytest.mark.parametrize("kind", PERMANENT)
def test_refused_fetch_leaves_nothing_and_the_next_copies_everything(
    cloud: Cloud, tmp_path: Path, kind: FaultKind
) -> None:
    run = with_results(cloud, f"refused-{kind}")
    assert_whole(run.fetch(tmp_path / "first", checkpoints=True))
    calls = [call for call in cloud.endpoint.calls if call.service == "s3"]
    for nth, call in enumerate(calls, 1):
        cloud.endpoint.reset()
        cloud.endpoint.fault(kind, "s3", nth=nth)
        result = tmp_path / str(nth)
        # Its answer has an empty body: the client asks again.
        if (kind, call.operation) != (
            "expired",
            "HeadObject",
        ):
            with pytest.raises(CloudError):
                run.fetch(result, checkpoints=True)
            assert not result.exists()
        run.fetch(result, checkpoints=True)
        assert cloud.endpoint.struck == [(kind, call)]
        assert_whole(result)


def test_an_unreadable_log_is_reported_once_and_its_recovery_once(cloud: Cloud) -> None:
    run = submitted("note-1")
    write_log(cloud, run.id, 0, "[rank 0] hello")
    for denied_actions in (True, True, False, False):
        cloud.account.denied_actions = {"logs:*"} if denied_actions else set()
        find_run(run.id).status()
    notes = [
        event["reason"] != "" for event in events_of(run.folder) if event["type"] == "log_unread"
    ]
    assert notes == [True, False]


def test_lines_that_are_here_are_shown_before_what_cannot_be_read_is_reported(cloud: Cloud) -> None:
    run = submitted("here-1")
    write_log(cloud, run.id, 0, "[rank 0] hello")
    run.status()
    cloud.endpoint.fault("denied", "sagemaker", "DescribeTrainingJob", times=ALWAYS)
    shown: list[str] = []
    with pytest.raises(CloudError, match="DescribeTrainingJob"):
        # This run has not called the service a moment ago.
        shown.extend(line.text for line in find_run(run.id).logs())
    assert shown == ["hello"]


@pytest.mark.parametrize("kind", ["throttle", "denied", "expired", "error", "lost"])
@pytest.mark.parametrize(
    "call",
    [("sagemaker", "DescribeTrainingJob"), ("logs", "DescribeLogStreams")],
    ids=lambda call: call[1],
)
def test_a_stop_is_sent_although_nothing_can_be_read(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, kind: FaultKind, call: tuple[str, str]
) -> None:
    monkeypatch.setattr("cloudtrain.submission.run.RETRY_SECONDS", 0.01)
    monkeypatch.setattr("cloudtrain.providers.shared.idempotent_create.NEW_JOB_SECONDS", 0)
    run = submitted(f"stop-{kind}-{call[0]}")
    cloud.endpoint.fault(kind, *call, times=3 if kind != "denied" else ALWAYS)
    with suppress(CloudError):  # not everybody may see that it has ended
        run.stop()
    assert cloud.service.jobs[run.id].stop_asked.is_set()


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


# An answer that is not AWS's is named as such, and tried again, whichever call it answers.

UNHARMED = {
    # The job is looked up, and found.
    Call("sagemaker", "CreateTrainingJob"),
    Call("sagemaker", "CreateHyperParameterTuningJob"),
    # Their answers say nothing.
    Call("sagemaker", "StopTrainingJob"),
    Call("sagemaker", "StopHyperParameterTuningJob"),
    Call("s3", "PutObject"),
    # Their purpose is met as far as possible.
    Call("s3", "AbortMultipartUpload"),
    Call("ecr", "GetDownloadUrlForLayer"),
}
"""Calls whose answers are optional for an operation."""


@pytest.fixture
def operations(
    cloud: Cloud, small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Do]]:
    """Everything that the client does, with one attempt of boto3's for each call."""
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    run = submitted(f"there-{len(cloud.service.jobs)}")
    aws.cache_clear()
    on_the_wire = {
        name: operation for name, operation in OPERATIONS.items() if name != "push an image"
    }
    yield {name: partial(operation.do, cloud, run) for name, operation in on_the_wire.items()}
    aws.cache_clear()


def test_every_call_names_an_answer_that_cannot_be_read(
    cloud: Cloud, operations: dict[str, Do], thorough: bool
) -> None:
    calls = calls_by_operation(cloud.endpoint, operations)
    assert len(calls) > 20
    problems = "\n".join(complaints(cloud.endpoint, operations, calls, UNHARMED, thorough))
    assert not problems, problems
