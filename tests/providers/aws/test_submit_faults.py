"""Whatever goes wrong while a job is submitted to SageMaker: one job or none, and plain words."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.api.lookup import find_run
from cloudtrain.errors import CloudError
from tests.fakes.aws.cloud import Cloud
from tests.fakes.faults import FaultKind
from tests.providers.aws.jobs import (
    CALLS,
    JOB,
    PERMANENT,
    SUBMIT_CALLS,
    TRANSIENT,
    command_line_of,
    exists,
    submitted,
)
from tests.providers.faults import assert_each_struck, fault_each
from tests.support.events import events_of
from tests.support.limits import HANG_SECONDS


def until_nothing_hangs(cloud: Cloud) -> None:
    """The service has seen that the client is gone."""
    deadline = time.monotonic() + HANG_SECONDS
    while cloud.endpoint.hanging and time.monotonic() < deadline:
        time.sleep(0.01)  # the pause between two looks


@pytest.mark.parametrize("kind", TRANSIENT)
def test_a_submit_survives_a_transient_fault_in_each_of_its_calls(
    cloud: Cloud, kind: FaultKind
) -> None:
    run_id = f"once-{kind.replace('_', '-')}"
    fault_each(cloud.endpoint, kind, CALLS)
    run = submitted(run_id)
    assert_each_struck(cloud.endpoint, kind, CALLS)
    assert exists(cloud, run_id)
    assert run.status().state == "pending"
    assert [event["type"] for event in events_of(run.folder)].count("submitted") == 1


@pytest.mark.parametrize("index", SUBMIT_CALLS)
@pytest.mark.parametrize("kind", [*TRANSIENT[:-1], *PERMANENT])
def test_a_submit_that_fails_for_good_leaves_one_job_or_none_and_status_says_which(
    cloud: Cloud, kind: FaultKind, index: int
) -> None:
    run_id = f"ever-{kind.replace('_', '-')}-{index}"
    cloud.endpoint.fault(kind, *CALLS[index], times=50)
    if (
        kind == "lost" and index == 2
    ):  # its answer is lost for good, and yet the job is found by its name
        assert submitted(run_id).status().state == "pending"
        assert exists(cloud, run_id)
        return
    with pytest.raises(CloudError) as failed:
        submitted(run_id)
    assert failed.value.exit_code == 4
    assert failed.value.hint
    cloud.endpoint.reset()
    state = find_run(run_id).status()
    assert not exists(cloud, run_id)
    assert state.state in ("failed", "submitting")
    if state.state == "submitting":  # no answer came: for a minute it may still arrive
        assert "not known yet" in failed.value.message


@pytest.mark.parametrize("kind", ["error", "refused_lost"])
def test_a_create_without_a_response_is_reconciled_later(
    cloud: Cloud, kind: FaultKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = f"later-{kind.replace('_', '-')}"
    cloud.endpoint.fault(kind, "sagemaker", "CreateTrainingJob", times=50)
    with pytest.raises(CloudError, match="not known yet"):
        submitted(run_id)
    cloud.endpoint.reset()
    assert find_run(run_id).status().state == "submitting"
    monkeypatch.setattr("cloudtrain.providers.cloud.idempotent_create.CREATE_TIMEOUT_SECONDS", 0)
    state = find_run(run_id).status()
    assert state.state == "failed"
    assert "SageMaker knows no job" in state.reason
    assert "nothing was started" in state.reason


def test_a_job_that_was_created_after_all_is_followed(cloud: Cloud) -> None:
    cloud.endpoint.fault("lost", "sagemaker", "CreateTrainingJob", times=50)
    cloud.endpoint.fault("error", "sagemaker", "DescribeTrainingJob", times=50)
    with pytest.raises(CloudError, match="not known yet"):
        submitted("late-1")
    cloud.endpoint.reset()
    assert find_run("late-1").status().state == "pending"


def test_a_name_that_somebody_else_uses_is_not_taken_for_ours(
    cloud: Cloud, tmp_path_factory: pytest.TempPathFactory
) -> None:
    submitted("taken-1")
    cloud.endpoint.reset()
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
def test_the_command_line_prints_a_message_and_exits_with_four(
    cloud: Cloud, tmp_path: Path, kind: FaultKind
) -> None:
    cli = command_line_of(cloud, tmp_path)
    cloud.endpoint.fault(kind, "sagemaker", "CreateTrainingJob", times=50)
    result = cli.run("submit", "--provider", "aws", "--detach")
    assert result.code == 4
    assert "Traceback" not in result.err
    for words in WORDS[kind]:
        assert words in result.err


def test_no_credentials_a_wrong_region_and_no_network_are_told_apart(
    cloud: Cloud, tmp_path: Path
) -> None:
    cli = command_line_of(cloud, tmp_path)
    submit = ("submit", "--provider", "aws", "--detach")
    nothing = cli.run(*submit, AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="")
    assert (nothing.code, "no AWS credentials" in nothing.err, "aws configure" in nothing.err) == (
        4,
        True,
        True,
    )
    elsewhere = cli.run(*submit, CLOUDTRAIN_AWS_REGION="eu-west-1")
    assert elsewhere.code == 4
    assert "aws.region" in elsewhere.err or "region" in elsewhere.err
    unreachable = cli.run(*submit, AWS_ENDPOINT_URL="http://127.0.0.1:9")
    assert (unreachable.code, "cannot be reached" in unreachable.err) == (4, True)
    for result in (nothing, elsewhere, unreachable):
        assert "Traceback" not in result.err


@pytest.mark.parametrize("when", ["hang_before", "hang"])
@pytest.mark.parametrize("index", SUBMIT_CALLS)
def test_a_submit_that_is_killed_at_any_call_leaves_one_job_or_none(
    cloud: Cloud, tmp_path: Path, when: FaultKind, index: int
) -> None:
    cli = command_line_of(cloud, tmp_path)
    run_id = f"killed-{when.replace('_', '-')}-{index}"
    cloud.endpoint.fault_on_call(index, when)
    client = cli.start("submit", "--provider", "aws", "--detach", "--run-id", run_id)
    cloud.endpoint.wait_until_hanging()
    assert cli.json("status", run_id)["state"] == "submitting"
    client.send_signal(signal.SIGKILL)
    client.communicate()
    until_nothing_hangs(cloud)
    cloud.endpoint.reset()
    made = when == "hang" and index == 2
    assert exists(cloud, run_id) is made
    status = cli.json("status", run_id)
    if made:
        assert status["state"] == "pending"
    elif index < 2:
        assert status["state"] == "failed"
        assert "interrupted before the job was created; nothing was started" in status["reason"]
    else:
        assert status["state"] == "submitting"
    again = cli.run("submit", "--provider", "aws", "--detach", "--run-id", run_id)
    assert again.code == 3
    assert exists(cloud, run_id) is made
