"""Whatever goes wrong on the way to SageMaker, at whichever call: one job or none, nothing twice, and plain words."""

from __future__ import annotations

import io
import json
import signal
import tarfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.errors import CloudError, StorageError
from cloudtrain.run import Run, adopt, find_run
from tests.e2e.workbench import Bench
from tests.loopback.cloud import Cloud
from tests.loopback.faults import Kind

JOB = {"name": "faulty", "entrypoint": "train.py", "resources": {"nodes": 2}, "limits": {"max_runtime": "1 h"}}
PASSING: tuple[Kind, ...] = ("throttle", "error", "lost", "refused_lost", "slow")
LASTING: tuple[Kind, ...] = ("expired", "denied")
SUBMIT_CALLS = range(3)
CALLS = [("s3", "PutObject", 1), ("s3", "PutObject", 2), ("sagemaker", "CreateTrainingJob", 1)]


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    """A cloud in which every job stays in its first phase: nothing is ever run."""
    with Cloud(pace_seconds=3600) as made:
        yield made


@pytest.fixture(autouse=True)
def folder(cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from cloudtrain.clouds.aws import aws

    aws.cache_clear()
    for name, value in cloud.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.01)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("print('never run')\n")
    cloud.front.reset()
    return tmp_path


def submitted(run_id: str) -> Run:
    return cloudtrain.submit(cloudtrain.plan(cloudtrain.load(JOB), "aws", run_id=run_id))


def exists(cloud: Cloud, run_id: str) -> bool:
    return run_id in cloud.service.jobs


def until_nothing_hangs(cloud: Cloud) -> None:
    """The service has seen that the client is gone."""
    deadline = time.monotonic() + 20
    while cloud.front.hanging and time.monotonic() < deadline:
        time.sleep(0.01)  # the pause between two looks


@pytest.mark.parametrize("index", SUBMIT_CALLS)
@pytest.mark.parametrize("kind", PASSING)
def test_a_submit_outlives_what_passes(cloud: Cloud, kind: Kind, index: int) -> None:
    run_id = f"once-{kind.replace('_', '-')}-{index}"
    cloud.front.faults_on_call(index, kind)
    run = submitted(run_id)
    assert exists(cloud, run_id)
    assert run.status().state == "pending"
    assert [event["type"] for event in run.folder.events()].count("submitted") == 1


@pytest.mark.parametrize("index", SUBMIT_CALLS)
@pytest.mark.parametrize("kind", [*PASSING[:-1], *LASTING])
def test_a_submit_that_fails_for_good_leaves_one_job_or_none_and_status_says_which(
    cloud: Cloud, kind: Kind, index: int
) -> None:
    run_id = f"ever-{kind.replace('_', '-')}-{index}"
    cloud.front.fault(kind, *CALLS[index], times=50)
    if kind == "lost" and index == 2:  # its answer is lost for good, and yet the job is found by its name
        assert submitted(run_id).status().state == "pending"
        assert exists(cloud, run_id)
        return
    with pytest.raises(CloudError) as failed:
        submitted(run_id)
    assert failed.value.exit_code == 4
    assert failed.value.hint
    cloud.front.reset()
    state = find_run(run_id).status()
    assert not exists(cloud, run_id)
    assert state.state in ("failed", "submitting")
    if state.state == "submitting":  # no answer came: for a minute it may still arrive
        assert "not known yet" in failed.value.message


@pytest.mark.parametrize("kind", ["error", "refused_lost"])
def test_a_create_without_an_answer_is_settled_later(cloud: Cloud, kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    run_id = f"later-{kind.replace('_', '-')}"
    cloud.front.fault(kind, "sagemaker", "CreateTrainingJob", times=50)
    with pytest.raises(CloudError, match="not known yet"):
        submitted(run_id)
    cloud.front.reset()
    assert find_run(run_id).status().state == "submitting"
    monkeypatch.setattr("cloudtrain.aws.start.ARRIVAL_SECONDS", 0)
    state = find_run(run_id).status()
    assert state.state == "failed"
    assert "SageMaker knows no job" in state.reason
    assert "nothing was started" in state.reason


def test_a_job_that_came_about_after_all_is_taken_up(cloud: Cloud) -> None:
    cloud.front.fault("lost", "sagemaker", "CreateTrainingJob", times=50)
    cloud.front.fault("error", "sagemaker", "DescribeTrainingJob", times=50)
    with pytest.raises(CloudError, match="not known yet"):
        submitted("late-1")
    cloud.front.reset()
    assert find_run("late-1").status().state == "pending"


def test_a_name_that_somebody_else_uses_is_not_taken_for_ours(
    cloud: Cloud, tmp_path_factory: pytest.TempPathFactory
) -> None:
    submitted("taken-1")
    cloud.front.reset()
    other = str(tmp_path_factory.mktemp("other"))
    plan = cloudtrain.plan(cloudtrain.load(JOB), "aws", run_id="taken-1", data_dir=other)
    with pytest.raises(cloudtrain.RunExists, match="exists already"):
        cloudtrain.submit(plan)
    assert find_run("taken-1", data_dir=other).status().state == "failed"
    assert find_run("taken-1").status().state == "pending"


WORDS = {
    "expired": ("the credentials have expired", "aws sso login"),
    "denied": ("not authorized", "lack a permission"),
    "throttle": ("too many requests", "wait a little"),
}


@pytest.mark.parametrize("kind", WORDS)
def test_the_command_line_says_it_in_words_and_leaves_with_four(cloud: Cloud, tmp_path: Path, kind: Kind) -> None:
    bench = Bench(tmp_path / "bench", env=cloud.environment())
    bench.write(job_yaml=json.dumps(JOB), train_py="print('never run')\n")
    cloud.front.fault(kind, "sagemaker", "CreateTrainingJob", times=50)
    said = bench.run("submit", "--provider", "aws", "--detach")
    assert said.code == 4
    assert "Traceback" not in said.err
    for words in WORDS[kind]:
        assert words in said.err


def test_no_credentials_a_wrong_region_and_no_network_are_told_apart(cloud: Cloud, tmp_path: Path) -> None:
    bench = Bench(tmp_path / "bench", env=cloud.environment())
    bench.write(job_yaml=json.dumps(JOB), train_py="print('never run')\n")
    submit = ("submit", "--provider", "aws", "--detach")
    nothing = bench.run(*submit, AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="")
    assert (nothing.code, "no AWS credentials" in nothing.err, "aws configure" in nothing.err) == (4, True, True)
    elsewhere = bench.run(*submit, CLOUDTRAIN_AWS_REGION="eu-west-1")
    assert elsewhere.code == 4
    assert "aws.region" in elsewhere.err or "region" in elsewhere.err
    unreachable = bench.run(*submit, AWS_ENDPOINT_URL="http://127.0.0.1:9")
    assert (unreachable.code, "cannot be reached" in unreachable.err) == (4, True)
    for said in (nothing, elsewhere, unreachable):
        assert "Traceback" not in said.err


@pytest.mark.parametrize("when", ["hang_before", "hang"])
@pytest.mark.parametrize("index", SUBMIT_CALLS)
def test_a_submit_that_is_killed_at_any_call_leaves_one_job_or_none(
    cloud: Cloud, tmp_path: Path, when: Kind, index: int
) -> None:
    bench = Bench(tmp_path / "bench", env=cloud.environment())
    bench.write(job_yaml=json.dumps(JOB), train_py="print('never run')\n")
    run_id = f"killed-{when.replace('_', '-')}-{index}"
    cloud.front.faults_on_call(index, when)
    client = bench.begin("submit", "--provider", "aws", "--detach", "--run-id", run_id)
    cloud.front.wait_hanging()
    assert bench.json("status", run_id)["state"] == "submitting"
    client.send_signal(signal.SIGKILL)
    client.communicate()
    until_nothing_hangs(cloud)
    cloud.front.reset()
    made = when == "hang" and index == 2
    assert exists(cloud, run_id) is made
    status = bench.json("status", run_id)
    if made:
        assert status["state"] == "pending"
    elif index < 2:
        assert status["state"] == "failed"
        assert "interrupted before the job was created; nothing was started" in status["reason"]
    else:
        assert status["state"] == "submitting"
    again = bench.run("submit", "--provider", "aws", "--detach", "--run-id", run_id)
    assert again.code == 3
    assert exists(cloud, run_id) is made


OBSERVING = [("sagemaker", "DescribeTrainingJob"), ("logs", "DescribeLogStreams")]


@pytest.mark.parametrize("call", OBSERVING, ids=lambda call: call[1])
@pytest.mark.parametrize("kind", PASSING)
def test_waiting_goes_on_while_a_cloud_does_not_answer(cloud: Cloud, kind: Kind, call: tuple[str, str]) -> None:
    run = submitted(f"wait-{kind.replace('_', '-')}-{call[0]}")
    cloud.front.fault(kind, *call, times=4)
    updates = run.watch()
    before = len(cloud.front.calls)
    while len(cloud.front.calls) < before + 12:
        assert not next(updates).state.has_ended


@pytest.mark.parametrize("call", OBSERVING, ids=lambda call: call[1])
@pytest.mark.parametrize("kind", LASTING)
def test_waiting_ends_with_words_when_asking_again_cannot_help(cloud: Cloud, kind: Kind, call: tuple[str, str]) -> None:
    run = submitted(f"lasting-{kind}-{call[0]}")
    cloud.front.fault(kind, *call, times=50)
    with pytest.raises(CloudError) as failed:
        run.wait(20)
    assert "aws sso login" in str(failed.value.hint) or "permission" in str(failed.value.hint)
    cloud.front.reset()
    assert run.status().state == "pending"


@pytest.mark.parametrize("kind", PASSING)
def test_a_stop_reaches_the_job_through_what_passes(cloud: Cloud, kind: Kind) -> None:
    run = submitted(f"stop-{kind.replace('_', '-')}")
    cloud.front.fault(kind, "sagemaker", "StopTrainingJob")
    assert run.stop().state == "stopped"


def test_list_asks_a_cloud_only_when_told_to_and_shows_what_it_knows(cloud: Cloud) -> None:
    submitted("listed-1")
    submitted("listed-2")
    cloud.front.reset()
    assert {run["state"] for run in cloudtrain.list_runs()} == {"pending"}
    assert cloud.front.calls == []
    cloud.front.fault("expired", times=50)
    asked = cloudtrain.list_runs(asking="aws")
    assert {run["state"] for run in asked} == {"pending"}
    assert all("credentials have expired" in run["reason"] for run in asked)
    assert len(cloud.front.calls) == 1


def test_status_shows_what_was_last_seen_and_then_why_it_cannot_ask(cloud: Cloud, tmp_path: Path) -> None:
    bench = Bench(tmp_path / "bench", env=cloud.environment())
    bench.write(job_yaml=json.dumps(JOB), train_py="print('never run')\n")
    assert bench.run("submit", "--provider", "aws", "--detach", "--run-id", "seen-1").code == 0
    said = bench.run("status", "seen-1", AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="")
    assert said.code == 4
    assert "seen-1  pending" in said.out
    assert "no AWS credentials" in said.err


def test_a_look_while_a_submit_is_under_way_does_not_end_the_run(cloud: Cloud, tmp_path: Path) -> None:
    bench = Bench(tmp_path / "bench", env=cloud.environment())
    bench.write(job_yaml=json.dumps(JOB), train_py="print('never run')\n")
    client = bench.begin("submit", "--provider", "aws", "--detach", "--run-id", "looked-at")
    while not bench.run_folder("looked-at").exists():
        assert client.poll() is None
    states = {bench.json("status", "looked-at")["state"]}
    client.communicate(timeout=60)
    assert client.returncode == 0
    assert states <= {"submitting", "pending"}
    assert bench.json("status", "looked-at")["state"] == "pending"


@pytest.mark.parametrize("then", ["throttle", "denied", "expired"])
def test_a_lost_first_try_is_not_forgotten_when_the_second_fails_otherwise(cloud: Cloud, then: Kind) -> None:
    run_id = f"first-lost-{then}"
    cloud.front.fault("lost", "sagemaker", "CreateTrainingJob")
    cloud.front.fault(then, "sagemaker", "CreateTrainingJob", nth=2, times=50)
    cloud.front.fault("throttle", "sagemaker", "DescribeTrainingJob", times=2)
    with suppress(CloudError):
        submitted(run_id)
    cloud.front.reset()
    assert exists(cloud, run_id)
    assert find_run(run_id).status().state == "pending"


def test_credentials_of_another_account_end_no_run(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    run = submitted("ours-1")
    job = cloud.service.jobs.pop("ours-1")
    role = "arn:aws:iam::999999999999:role/other"
    sts = cloud.client("sts", direct=True)
    other = sts.assume_role(RoleArn=role, RoleSessionName="other")["Credentials"]
    from cloudtrain.clouds.aws import aws

    with monkeypatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", other["AccessKeyId"])
        patch.setenv("AWS_SECRET_ACCESS_KEY", other["SecretAccessKey"])
        patch.setenv("AWS_SESSION_TOKEN", other["SessionToken"])
        aws.cache_clear()
        with pytest.raises(CloudError, match="belong to the account 999999999999, the run ours-1 to 123456789012"):
            run.status()
    aws.cache_clear()
    cloud.service.jobs["ours-1"] = job
    assert find_run("ours-1").status().state == "pending"


def test_last_is_the_last_run_of_this_machine_also_after_adoption(
    cloud: Cloud, tmp_path_factory: pytest.TempPathFactory
) -> None:
    submitted("elsewhere-1")
    here = str(tmp_path_factory.mktemp("here"))
    plan = cloudtrain.plan(cloudtrain.load(JOB), "aws", run_id="mine-1", data_dir=here)
    cloudtrain.submit(plan)
    assert "elsewhere-1" in adopt("aws", data_dir=here)
    assert find_run("last", data_dir=here).id == "mine-1"


def test_who_follows_a_job_with_credentials_that_expire_is_told_that_it_goes_on(cloud: Cloud, tmp_path: Path) -> None:
    bench = Bench(tmp_path / "bench", env=cloud.environment())
    bench.write(job_yaml=json.dumps(JOB), train_py="print('never run')\n")
    cloud.front.fault("expired", "sagemaker", "DescribeTrainingJob", nth=3, times=50)
    said = bench.run("submit", "--provider", "aws", "--run-id", "followed-1")
    assert said.code == 4
    assert "the job goes on meanwhile: cloudtrain wait followed-1" in said.err.replace("python -m ", "")


def lines_of(cloud: Cloud, run_id: str, node: int, *lines: str) -> None:
    """What a node printed, as SageMaker would pass it to CloudWatch."""
    logs = cloud.client("logs", direct=True)
    group, stream = "/aws/sagemaker/TrainingJobs", f"{run_id}/algo-{node + 1}-1795213216000"
    with suppress(logs.exceptions.ResourceAlreadyExistsException):
        logs.create_log_group(logGroupName=group)
    with suppress(logs.exceptions.ResourceAlreadyExistsException):
        logs.create_log_stream(logGroupName=group, logStreamName=stream)
    now = int(time.time() * 1000)
    events = [{"timestamp": now, "message": line} for line in lines]
    logs.put_log_events(logGroupName=group, logStreamName=stream, logEvents=events)


@pytest.mark.parametrize("nth", range(1, 7))
@pytest.mark.parametrize("kind", PASSING)
def test_log_lines_and_events_are_read_once_whatever_call_goes_wrong(cloud: Cloud, kind: Kind, nth: int) -> None:
    run = submitted(f"lines-{kind.replace('_', '-')}-{nth}")
    event = '::cloudtrain:: {"type": "metrics", "time": 1, "node": 0, "rank": 0, "seq": %d, "values": {"loss": %d}}'
    cloud.front.fault(kind, "logs", nth=nth)
    updates = run.watch()
    said: list[str] = []
    for part in range(3):
        lines_of(cloud, run.id, 0, f"[rank 0] zero {part}", event % (part, part))
        lines_of(cloud, run.id, 1, f"[rank 1] one {part}")
        deadline = time.monotonic() + 20
        while len(said) < 2 * (part + 1) and time.monotonic() < deadline:
            said += [line.text for line in next(updates).lines]
    assert sorted(said) == sorted([*(f"zero {part}" for part in range(3)), *(f"one {part}" for part in range(3))])
    assert [e["seq"] for e in run.folder.events() if e["type"] == "metrics"] == [0, 1, 2]
    assert len(list(run.logs())) == 6


def test_a_reader_that_was_killed_between_line_and_event_has_doubled_nothing(cloud: Cloud) -> None:
    run = submitted("torn-1")
    lines_of(cloud, run.id, 0, "[rank 0] first")
    run.status()
    with (run.folder.path / "logs" / "node-0.log").open("a") as file:
        file.write("2026-11-21T00:00:00.000Z [rank 0] of a reader that never told how far it came\n")
    lines_of(cloud, run.id, 0, "[rank 0] second")
    run.status()
    assert [line.text for line in run.logs()] == ["first", "second"]


def test_reading_goes_on_when_the_token_has_expired(cloud: Cloud) -> None:
    run = submitted("token-1")
    lines_of(cloud, run.id, 0, "[rank 0] first", "[rank 0] second")
    run.status()
    cursor = run.folder.last_event("cursor")
    assert cursor is not None
    for place in cursor["streams"].values():
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


@pytest.mark.parametrize("nth", range(1, 6))
@pytest.mark.parametrize("kind", [*PASSING, *LASTING])
def test_a_fetch_brings_everything_or_leaves_nothing(cloud: Cloud, tmp_path: Path, kind: Kind, nth: int) -> None:
    run = submitted(f"fetch-{kind.replace('_', '-')}-{nth}")
    cloud.put(f"cloudtrain/runs/{run.id}/output/model.tar.gz", archive(model__weights="w" * 1000))
    cloud.put(f"cloudtrain/runs/{run.id}/checkpoints/step-1/rank-0.pt", b"c" * 1000)
    cloud.front.fault(kind, "s3", nth=nth)
    try:
        run.fetch(tmp_path / "result", checkpoints=True)
    except CloudError:
        assert kind in LASTING
        assert not (tmp_path / "result").exists()
        run.fetch(tmp_path / "result", checkpoints=True)
    assert (tmp_path / "result" / "model" / "model" / "weights").read_text() == "w" * 1000
    assert (tmp_path / "result" / "checkpoints" / "step-1" / "rank-0.pt").read_bytes() == b"c" * 1000
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []


@pytest.mark.parametrize("name", ["../outside", "a/../../outside"])
def test_a_hostile_archive_is_refused_and_leaves_nothing(cloud: Cloud, tmp_path: Path, name: str) -> None:
    run = submitted(f"hostile-{len(name)}")
    cloud.put(f"cloudtrain/runs/{run.id}/output/model.tar.gz", archive(**{name: "x"}))
    with pytest.raises(StorageError, match="damaged or hostile"):
        run.fetch(tmp_path / "deep" / "result")
    assert not (tmp_path / "outside").exists()
    assert not (tmp_path / "deep" / "result").exists()


def test_an_absolute_name_in_an_archive_stays_inside(cloud: Cloud, tmp_path: Path) -> None:
    run = submitted("absolute-1")
    cloud.put(f"cloudtrain/runs/{run.id}/output/model.tar.gz", archive(**{f"{tmp_path}/outside": "x"}))
    run.fetch(tmp_path / "result")
    assert not (tmp_path / "outside").exists()
