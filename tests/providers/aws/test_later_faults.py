"""Faults at SageMaker after a submit: stop, tokens of logs, other accounts, fetches."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from cloudtrain.errors import CloudError
from cloudtrain.submission.lookup import find_run
from cloudtrain.submission.run import Run
from cloudtrain_launcher.events import Cursor
from tests.fakes.aws.cloud import Cloud
from tests.fakes.faults import FaultKind
from tests.providers.aws.archives import entry, packed
from tests.providers.aws.jobs import submitted, write_log
from tests.providers.faults import PERMANENT, TRANSIENT
from tests.support.events import events_of

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
