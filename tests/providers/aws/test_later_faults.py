"""Whatever goes wrong after the submit: waiting goes on, lines are read once, nothing is half
fetched.
"""

from __future__ import annotations

import io
import tarfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.api.lookup import find_run, import_remote_runs
from cloudtrain.api.run import Run
from cloudtrain.errors import CloudError, StorageError
from cloudtrain.runs.events import Cursor
from tests.fakes.aws.cloud import Cloud
from tests.fakes.faults import FaultKind
from tests.providers.aws.jobs import JOB, command_line_of, exists, submitted
from tests.providers.faults import PERMANENT, TRANSIENT
from tests.support.events import events_of
from tests.support.limits import HANG_SECONDS

NEW_JOB = "cloudtrain.providers.cloud.idempotent_create.NEW_JOB_SECONDS"
READS = 6
MANY = 100
"""How many calls at least read three parts of the logs of two nodes, and more than anybody makes
for it.
"""
OBSERVING = [("sagemaker", "DescribeTrainingJob"), ("logs", "DescribeLogStreams")]


@pytest.mark.parametrize("kind", TRANSIENT)
def test_waiting_continues_while_a_cloud_does_not_answer(cloud: Cloud, kind: FaultKind) -> None:
    run = submitted(f"wait-{kind.replace('_', '-')}")
    for call in OBSERVING:
        cloud.endpoint.fault(kind, *call, times=4, seconds=0.05)
    updates = run.watch()
    while len(cloud.endpoint.struck) < 4 * len(OBSERVING):
        assert not next(updates).state.has_ended
    assert not next(updates).state.has_ended
    assert sorted(cloud.endpoint.struck) == sorted(
        (kind, call) for call in OBSERVING for _ in range(4)
    )


@pytest.mark.parametrize("kind", PERMANENT)
def test_waiting_ends_with_a_message_when_a_retry_cannot_help(
    cloud: Cloud, kind: FaultKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NEW_JOB, 0)
    run = submitted(f"lasting-{kind}")
    cloud.endpoint.fault(kind, "sagemaker", "DescribeTrainingJob", times=50)
    with pytest.raises(CloudError) as failed:
        run.wait(20)
    assert "aws sso login" in str(failed.value.hint) or "permission" in str(failed.value.hint)
    cloud.endpoint.reset()
    assert run.status().state == "pending"


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


def test_status_shows_the_last_known_state_and_then_the_error(cloud: Cloud, tmp_path: Path) -> None:
    cli = command_line_of(cloud, tmp_path)
    assert cli.run("submit", "--provider", "aws", "--detach", "--run-id", "seen-1").code == 0
    result = cli.run("status", "seen-1", AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="")
    assert result.code == 4
    assert "seen-1  pending" in result.out
    assert "no AWS credentials" in result.err


def test_observing_a_run_during_its_submit_does_not_end_it(cloud: Cloud, tmp_path: Path) -> None:
    cli = command_line_of(cloud, tmp_path)
    client = cli.start("submit", "--provider", "aws", "--detach", "--run-id", "looked-at")
    while not cli.run_folder("looked-at").exists():
        assert client.poll() is None
    states = {cli.json("status", "looked-at")["state"]}
    client.communicate(timeout=HANG_SECONDS)
    assert client.returncode == 0
    assert states <= {"submitting", "pending"}
    assert cli.json("status", "looked-at")["state"] == "pending"


@pytest.mark.parametrize("then", ["throttle", "denied", "expired"])
def test_a_first_attempt_of_unknown_outcome_counts_when_the_second_fails_otherwise(
    cloud: Cloud, then: FaultKind
) -> None:
    run_id = f"first-lost-{then}"
    cloud.endpoint.fault("lost", "sagemaker", "CreateTrainingJob")
    cloud.endpoint.fault(then, "sagemaker", "CreateTrainingJob", nth=2, times=50)
    cloud.endpoint.fault("throttle", "sagemaker", "DescribeTrainingJob", times=2)
    with suppress(CloudError):
        submitted(run_id)
    cloud.endpoint.reset()
    assert exists(cloud, run_id)
    assert find_run(run_id).status().state == "pending"


def test_credentials_of_another_account_do_not_end_a_run(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submitted("ours-1")
    job = cloud.service.jobs.pop("ours-1")
    role = "arn:aws:iam::999999999999:role/other"
    sts = cloud.client("sts", direct=True)
    other = sts.assume_role(RoleArn=role, RoleSessionName="other")["Credentials"]
    from cloudtrain.providers.aws.client import aws

    with monkeypatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", other["AccessKeyId"])
        patch.setenv("AWS_SECRET_ACCESS_KEY", other["SecretAccessKey"])
        patch.setenv("AWS_SESSION_TOKEN", other["SessionToken"])
        aws.cache_clear()
        with pytest.raises(
            CloudError, match="belong to the account 999999999999, the run ours-1 to 123456789012"
        ):
            run.status()
    aws.cache_clear()
    cloud.service.jobs["ours-1"] = job
    assert find_run("ours-1").status().state == "pending"


def test_last_is_the_last_run_of_this_machine_also_after_an_import(
    cloud: Cloud, tmp_path_factory: pytest.TempPathFactory
) -> None:
    submitted("elsewhere-1")
    here = str(tmp_path_factory.mktemp("here"))
    plan = cloudtrain.plan(cloudtrain.load(JOB), "aws", run_id="mine-1", data_dir=here)
    cloudtrain.submit(plan)
    assert "elsewhere-1" in import_remote_runs("aws", data_dir=here)
    assert find_run("last", data_dir=here).id == "mine-1"


def test_following_a_job_with_expiring_credentials_says_that_it_goes_on(
    cloud: Cloud, tmp_path: Path
) -> None:
    cli = command_line_of(cloud, tmp_path)
    cloud.endpoint.fault("expired", "sagemaker", "DescribeTrainingJob", nth=3, times=50)
    result = cli.run("submit", "--provider", "aws", "--run-id", "followed-1")
    assert result.code == 4
    assert "the job goes on meanwhile: cloudtrain wait followed-1" in result.err.replace(
        "python -m ", ""
    )


def lines_of(cloud: Cloud, run_id: str, node: int, *lines: str) -> None:
    """What a node printed, as SageMaker would pass it to CloudWatch."""
    logs = cloud.client("logs", direct=True)
    group = "/aws/sagemaker/TrainingJobs"
    stream = f"{run_id}/algo-{node + 1}-1795213216000"
    with suppress(logs.exceptions.ResourceAlreadyExistsException):
        logs.create_log_group(logGroupName=group)
    with suppress(logs.exceptions.ResourceAlreadyExistsException):
        logs.create_log_stream(logGroupName=group, logStreamName=stream)
    now = int(time.time() * 1000)
    events = [{"timestamp": now, "message": line} for line in lines]
    logs.put_log_events(logGroupName=group, logStreamName=stream, logEvents=events)


@pytest.mark.parametrize("kind", TRANSIENT)
def test_log_lines_and_events_are_read_once_although_every_call_goes_wrong_once(
    cloud: Cloud, kind: FaultKind
) -> None:
    run = submitted(f"lines-{kind.replace('_', '-')}")
    event = (
        '::cloudtrain:: {"type": "metrics", "time": 1, "node": 0, "rank": 0, "seq": %d, "values":'
        ' {"loss": %d}}'
    )
    for nth in range(
        1, MANY, 1 if kind == "slow" else 2
    ):  # the call between two faults is the second try
        cloud.endpoint.fault(kind, "logs", nth=nth, seconds=0.05)
    updates = run.watch()
    printed: list[str] = []
    for part in range(3):
        lines_of(cloud, run.id, 0, f"[rank 0] zero {part}", event % (part, part))
        lines_of(cloud, run.id, 1, f"[rank 1] one {part}")
        deadline = time.monotonic() + HANG_SECONDS
        while len(printed) < 3 * (part + 1) and time.monotonic() < deadline:
            printed += [line.text for line in next(updates).lines]
    assert sorted(printed) == sorted(
        f"{word} {part}" for word in ("zero", "one", "loss") for part in range(3)
    )
    assert [e["seq"] for e in events_of(run.folder) if e["type"] == "metrics"] == [0, 1, 2]
    assert len(list(run.logs())) == 9
    struck = [call for _, call in cloud.endpoint.struck]
    assert len(struck) >= READS
    assert set(struck) == {("logs", "DescribeLogStreams"), ("logs", "GetLogEvents")}


def test_a_reader_killed_between_line_and_event_duplicates_nothing(cloud: Cloud) -> None:
    run = submitted("torn-1")
    lines_of(cloud, run.id, 0, "[rank 0] first")
    run.status()
    with (run.folder.path / "logs" / "node-0.log").open("a") as file:
        file.write(
            "2026-11-21T00:00:00.000Z [rank 0] of a reader that never told how far it came\n"
        )
    lines_of(cloud, run.id, 0, "[rank 0] second")
    run.status()
    assert [line.text for line in run.logs()] == ["first", "second"]


def test_reading_goes_on_when_the_token_has_expired(cloud: Cloud) -> None:
    run = submitted("token-1")
    lines_of(cloud, run.id, 0, "[rank 0] first", "[rank 0] second")
    run.status()
    cursor = run.folder.last_event(Cursor)
    assert cursor is not None
    assert cursor.streams is not None
    for place in cursor.streams.values():
        place["token"] = "a token that nobody knows any more"
    run.folder.append(cursor)
    lines_of(cloud, run.id, 0, "[rank 0] third")
    find_run("token-1").status()
    assert [line.text for line in run.logs()] == ["first", "second", "third"]


def archive(**files: str) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name.replace("__", "/"))
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return made.getvalue()


def with_results(cloud: Cloud, run_id: str) -> Run:
    """A run that has left a model and a checkpoint."""
    run = submitted(run_id)
    cloud.put(f"cloudtrain/runs/{run.id}/output/model.tar.gz", archive(model__weights="w" * 1000))
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
    for nth in range(
        1, MANY, 1 if kind == "slow" else 2
    ):  # the call between two faults is the second try
        cloud.endpoint.fault(kind, "s3", nth=nth, seconds=0.05)
    run.fetch(tmp_path / "result", checkpoints=True)
    struck = {call.operation for _, call in cloud.endpoint.struck}
    assert struck == {"ListObjectsV2", "HeadObject", "GetObject"}
    assert_whole(tmp_path / "result")


@pytest.mark.parametrize("kind", PERMANENT)
def test_a_fetch_that_is_refused_at_any_call_leaves_nothing_and_the_next_one_copies_everything(
    cloud: Cloud, tmp_path: Path, kind: FaultKind
) -> None:
    run = with_results(cloud, f"refused-{kind}")
    assert_whole(run.fetch(tmp_path / "first", checkpoints=True))
    calls = [call for call in cloud.endpoint.calls if call.service == "s3"]
    for nth, call in enumerate(calls, 1):
        cloud.endpoint.reset()
        cloud.endpoint.fault(kind, "s3", nth=nth)
        result = tmp_path / str(nth)
        if (kind, call.operation) != (
            "expired",
            "HeadObject",
        ):  # its answer has no body to say so: it is asked again
            with pytest.raises(CloudError):
                run.fetch(result, checkpoints=True)
            assert not result.exists()
        run.fetch(result, checkpoints=True)
        assert cloud.endpoint.struck == [(kind, call)]
        assert_whole(result)


@pytest.mark.parametrize("name", ["../outside", "a/../../outside"])
def test_a_hostile_archive_is_refused_and_leaves_nothing(
    cloud: Cloud, tmp_path: Path, name: str
) -> None:
    run = submitted(f"hostile-{len(name)}")
    cloud.put(f"cloudtrain/runs/{run.id}/output/model.tar.gz", archive(**{name: "x"}))
    with pytest.raises(StorageError, match="damaged or hostile"):
        run.fetch(tmp_path / "deep" / "result")
    assert not (tmp_path / "outside").exists()
    assert not (tmp_path / "deep" / "result").exists()


def test_an_absolute_name_in_an_archive_stays_inside(cloud: Cloud, tmp_path: Path) -> None:
    run = submitted("absolute-1")
    cloud.put(
        f"cloudtrain/runs/{run.id}/output/model.tar.gz", archive(**{f"{tmp_path}/outside": "x"})
    )
    run.fetch(tmp_path / "result")
    assert not (tmp_path / "outside").exists()
