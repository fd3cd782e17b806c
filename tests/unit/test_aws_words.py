"""Plain messages for SageMaker's answers: ends, reasons, machines, missing rights."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.exceptions import ClientError

from cloudtrain.diagnosis.remedies import sagemaker_quota
from cloudtrain.providers.aws.errors import translated
from cloudtrain.providers.aws.logs import with_control_characters
from cloudtrain.providers.aws.phases import PHASES, final_state, phase_event, phase_of
from cloudtrain.runs.state import RunState
from tests.fakes.aws.jobs import MESSAGES


def described(status: str, secondary: str, *before: str, **more: Any) -> dict[str, Any]:
    """As DescribeTrainingJob answers of a job that has been through these phases."""
    times = [
        {"Status": status, "StartTime": datetime(2026, 11, 21, tzinfo=UTC)}
        for status in (*before, secondary)
    ]
    return {
        "TrainingJobStatus": status,
        "SecondaryStatus": secondary,
        "SecondaryStatusTransitions": times,
        **more,
    }


@pytest.mark.parametrize(
    ("before", "words"),
    [
        (("Starting", "Pending"), "no capacity came in time (limits.max_wait)"),
        (
            ("Starting", "Training", "Interrupted", "Starting"),
            "the time for waiting and training together is over (limits.max_wait)",
        ),
    ],
    ids=["never trained", "trained before"],
)
def test_a_spot_job_that_has_trained_until_its_time_was_over_lacked_no_capacity(
    before: tuple[str, ...], words: str
) -> None:
    assert final_state(described("Stopped", "MaxWaitTimeExceeded", *before)) == ("stopped", words)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("AlgorithmError: , exit code: 3", "a container ended with exit code 3"),
        ("AlgorithmError: rank 1: no luck, exit code: 17", "rank 1: no luck (exit code 17)"),
        (
            "ClientError: Data download failed: none",
            "SageMaker could not begin: Data download failed: none",
        ),
        ("CapacityError: Unable to provision", "no capacity: Unable to provision"),
        ("InternalServerError: Try again.", "SageMaker failed: Try again."),
        ("Something else: as it is", "Something else: as it is"),
    ],
    ids=["no words", "words", "client", "capacity", "internal", "unknown"],
)
def test_a_failure_is_told_without_the_names_of_sagemakers_exceptions(
    reason: str, words: str
) -> None:
    assert final_state(described("Failed", "Failed", FailureReason=reason)) == ("failed", words)


def test_no_phase_that_a_job_goes_through_is_shown_in_sagemakers_spelling() -> None:
    assert [name for name in MESSAGES if phase_of({"SecondaryStatus": name}) == name] == []
    statuses = ("Completed", "Stopped", "Failed")
    assert {PHASES[name] for name in statuses} == {"bringing the last lines"}


@pytest.mark.parametrize(
    ("status", "message", "phase"),
    [
        ("Starting", "Starting the training job", "starting"),
        (
            "Starting",
            "Insufficient capacity error from EC2 while launching instances, retrying!",
            "waiting for capacity",
        ),
        ("Pending", "Training job waiting for capacity", "waiting for capacity"),
        ("Pending", "Preparing the instances for training", "preparing machines"),
        ("Downloading", "Downloading input data", "downloading inputs"),
        ("Downloading", "Downloading the training image", "downloading the image"),
        ("Training", "Downloading the training image", "downloading the image"),
    ],
)
def test_a_phase_follows_sagemakers_message(status: str, message: str, phase: str) -> None:
    job = described("InProgress", status)
    job["SecondaryStatusTransitions"][-1]["StatusMessage"] = message
    event = phase_event(job, 1.0)
    assert (event.phase, event.running) == (phase, False)


def test_a_message_that_changes_in_a_transition_begins_a_phase() -> None:
    job = described("InProgress", "Pending")
    began = job["SecondaryStatusTransitions"][-1]["StartTime"].timestamp()
    assert phase_event(job, began + 60).since == began
    waited = RunState(run_id="a", phase="waiting for capacity", phase_since=began)
    assert phase_event(job, began + 60, waited).since == began + 60


def test_an_internal_error_of_a_job_with_checkpoints_names_them() -> None:
    reason = "InternalServerError: We encountered an internal error. Please try again."
    job = described("Failed", "Failed", "Training", FailureReason=reason)
    job["CheckpointConfig"] = {"S3Uri": "s3://bucket/checkpoints"}
    final = final_state(job)
    assert final is not None
    assert "smaller checkpoints" in final.reason


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ("Access denied for repository: a in registry ID: 1. Please check ...", "aws.role"),
        ("Invalid training image. Please provide a valid ...", "Amazon ECR"),
    ],
)
def test_an_image_that_is_refused_has_a_remedy(message: str, remedy: str) -> None:
    answer = {"Error": {"Code": "ValidationException", "Message": message}}
    error = translated(ClientError(answer, "CreateTrainingJob"), "create_training_job", "us-east-1")
    assert remedy in str(error.hint)


@pytest.mark.parametrize(
    ("message", "quota"),
    [
        (
            "The account-level service limit 'Number of instances across all training jobs' is 4",
            "'Number of instances across all training jobs'",
        ),
        ("limit for training-job/ml.p2.xlarge is 0", "'ml.p2.xlarge for training job usage'"),
    ],
)
def test_the_remedy_of_a_quota_names_it(message: str, quota: str) -> None:
    assert quota in sagemaker_quota(message)


def test_control_characters_of_cloudwatch_come_back_outside_events() -> None:
    assert with_control_characters("#033[31mloss#0110.5#015") == "\x1b[31mloss\t0.5\r"
    event = '::cloudtrain:: {"text": "#011"}'
    assert with_control_characters(event) == event


def test_the_machine_that_was_chosen_from_several_is_told_with_the_phase() -> None:
    wishes = [{"InstanceType": "ml.p4d.24xlarge"}, {"InstanceType": "ml.p5.48xlarge"}]
    waiting = described("InProgress", "Pending", ResourceConfig={"InstancePreferences": wishes})
    assert "instance" not in phase_event(waiting, 1.0).to_json()
    resources = {"InstancePreferences": wishes, "SelectedInstanceType": "ml.p5.48xlarge"}
    assert phase_event(
        described("InProgress", "Training", ResourceConfig=resources), 1.0
    ).to_json() | {"since": 0} == {
        "type": "phase",
        "time": 1.0,
        "phase": "training",
        "since": 0,
        "running": True,
        "instance": "ml.p5.48xlarge",
    }


@pytest.mark.parametrize(
    ("operation", "message", "action"),
    [
        ("put_object", "Access Denied", "s3:PutObject"),
        ("list_objects_v2", "Access Denied", "s3:ListBucket"),
        ("head_object", "Forbidden", "s3:GetObject and s3:ListBucket"),
        (
            "create_training_job",
            "User: x is not authorized to perform: iam:PassRole on resource: r",
            "iam:PassRole",
        ),
        (
            "get_log_events",
            "User: x is not authorized to perform: logs:GetLogEvents",
            "logs:GetLogEvents",
        ),
        ("stop_training_job", "denied", "sagemaker:StopTrainingJob"),
    ],
    ids=["put", "list", "head", "pass a role", "logs", "stop"],
)
def test_a_right_that_is_missing_is_named_as_policies_name_it(
    operation: str, message: str, action: str
) -> None:
    answer = {"Error": {"Code": "AccessDeniedException", "Message": message}}
    error = translated(ClientError(answer, operation), operation, "us-east-1")
    assert f"lack a permission: {action}" in str(error.hint)


def test_a_job_that_has_trained_is_not_said_to_have_never_begun() -> None:
    message = "ClientError: Checkpoint upload failed: AccessDenied"
    trained = [{"Status": "Starting"}, {"Status": "Training"}, {"Status": "Uploading"}]
    described = {
        "TrainingJobStatus": "Failed",
        "FailureReason": message,
        "SecondaryStatusTransitions": trained,
    }
    final = final_state(described)
    assert final is not None
    assert final.reason == "SageMaker could not go on: Checkpoint upload failed: AccessDenied"
    early = final_state({**described, "SecondaryStatusTransitions": trained[:1]})
    assert early is not None
    assert early.reason == "SageMaker could not begin: Checkpoint upload failed: AccessDenied"
