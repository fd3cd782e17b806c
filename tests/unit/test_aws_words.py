"""Messages for SageMaker's answers, and the parts that all clouds share."""

from __future__ import annotations

import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.exceptions import ClientError
from botocore.hooks import HierarchicalEmitter
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.catalog.machines import select_instances
from cloudtrain.errors import StorageError
from cloudtrain.providers.aws.errors import refuse_foreign_answers, translated
from cloudtrain.providers.aws.phases import final_state, instances_of, phase_event, phase_of
from cloudtrain.providers.aws.results import with_control_characters
from cloudtrain.providers.aws.submit import job_reference
from cloudtrain.providers.shared.downloads import draft_of, safe_join
from cloudtrain.providers.shared.idempotent_create import own_tags, same_submission, tags
from cloudtrain.providers.shared.paths import file_name
from cloudtrain.runs.state import RunState
from tests.golden.cases import CASES, plan_of

# Plain messages for SageMaker's answers: ends, reasons, machines, missing rights.


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


def test_groups_of_several_instance_types_count_together() -> None:
    groups = [{"InstanceType": f"ml.{name}.2xlarge", "InstanceCount": 2} for name in ("c5", "g5")]
    assert instances_of({"ResourceConfig": {"InstanceGroups": groups}}) == ("", 4)


@pytest.mark.parametrize(
    ("service", "operation", "body", "problem"),
    [
        ("sagemaker", "DescribeTrainingJob", "<html/>", "are not JSON"),
        ("efs", "DescribeFileSystems", "<html/>", "are not JSON"),
        ("efs", "DescribeFileSystems", "{}", ""),
        ("sts", "GetCallerIdentity", "{}", "are not XML"),
        ("cloudwatch", "GetMetricData", "<html/>", "are not JSON"),
        ("cloudwatch", "GetMetricData", "{}", ""),
        ("cloudwatchomni", "CreateAccessGrant", "\xa0", ""),
    ],
)
def test_answers_are_judged_by_the_protocol_that_botocore_speaks(
    service: str, operation: str, body: str, problem: str
) -> None:
    """cloudwatch offers CBOR first, of which botocore takes JSON; cloudwatchomni has CBOR alone."""
    model = botocore.session.get_session().get_service_model(service).operation_model(operation)
    answer = {
        "status_code": 200,
        "headers": {"x-amzn-requestid": "1"},
        "body": body.encode("latin-1"),
    }
    custom: dict[str, Any] = {}
    events = HierarchicalEmitter()
    refuse_foreign_answers(events)
    events.emit(
        "before-parse.service.Operation",
        operation_model=model,
        response_dict=answer,
        customized_response_dict=custom,
    )
    assert problem in custom.get("Error", {}).get("Message", "")
    assert bool(problem) == bool(custom)


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


def test_control_characters_of_cloudwatch_come_back_outside_events() -> None:
    assert with_control_characters("#033[31mloss#0110.5#015") == "\x1b[31mloss\t0.5\r"
    event = '::cloudtrain:: {"text": "#011"}'
    assert with_control_characters(event) == event


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


USER = "User: arn:aws:sts::1:assumed-role/dev/me is not authorized to perform: s3:PutObject on resource: r"


@pytest.mark.parametrize(
    ("message", "hint"),
    [
        (USER, "these credentials lack a permission: s3:PutObject"),
        (
            USER.replace("dev/me", "train/SageMaker"),
            "the job's role (aws.role) lacks a permission: s3:PutObject",
        ),
        (
            f"{USER} with an explicit deny in a service control policy",
            "a policy of your organization (SCP) denies s3:PutObject",
        ),
        (
            f"{USER} because no permissions boundary allows the s3:PutObject action",
            "the permissions boundary of these credentials does not allow s3:PutObject",
        ),
        (
            f"{USER} with an explicit deny in a resource-based policy",
            "the policy of the resource itself (bucket, key, repository) does not allow these",
        ),
        (
            f"{USER} because no VPC endpoint policy allows the s3:PutObject action",
            "the policy of the VPC endpoint does not allow s3:PutObject",
        ),
    ],
    ids=["caller", "job", "organization", "boundary", "resource", "endpoint"],
)
def test_a_denial_says_who_lacks_what_and_by_which_policy(message: str, hint: str) -> None:
    answer = {"Error": {"Code": "AccessDenied", "Message": message}}
    error = translated(ClientError(answer, "put_object"), "put_object", "us-east-1")
    assert str(error.hint).startswith(hint)


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


# Parts that all clouds share: names that stay inside their folder, addresses of files, ownership of
# jobs.

FOLDER = Path("/data/run/model")
TAGS = {"run": "digits-k2x9", "planned": "1795213216.000", "spec": "ab", "source": "cd"}


@pytest.mark.parametrize(
    "name", ["model.pt", "a/b/c.pt", "..a", "a..", "...", "a\\..\\b", "~", "-rf", "ü 😀", "a\nb"]
)
def test_a_name_is_a_path_inside_its_folder(name: str) -> None:
    assert safe_join(FOLDER, name) == FOLDER / name


@given(
    st.lists(
        st.sampled_from(["..", ".", "/", "a", "", "\0"]) | st.text(max_size=3), max_size=6
    ).map("/".join)
)
def test_no_name_at_all_leads_out_of_its_folder(name: str) -> None:
    try:
        path = safe_join(FOLDER, name)
    except StorageError:
        return
    assert os.path.normpath(path) == str(path)
    assert path.is_relative_to(FOLDER)
    assert path != FOLDER


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("s3://b/t.csv", "t.csv"),
        ("s3://b/x/t.tar.gz", "t.tar.gz"),
        ("azureml://datastores/d/paths/labels.json", "labels.json"),
        ("./a.b/t.pt2", "t.pt2"),
        ("t.csv", "t.csv"),
        ("s3://b/x/", ""),
        ("s3://b/x", ""),
        ("s3://b/v1.0", ""),
        ("s3://b/2026.11.21", ""),
        ("s3://b/.hidden", ""),
        ("s3://b/t.csv/", ""),
        ("azureml:words:3", ""),
    ],
)
def test_an_address_means_a_file_when_its_end_looks_like_one(place: str, name: str) -> None:
    assert file_name(place) == name


@pytest.mark.parametrize("key", ["run", "planned", "spec"])
def test_two_jobs_of_one_name_are_two_submissions(key: str) -> None:
    assert same_submission(TAGS, dict(TAGS))
    assert same_submission(TAGS, {**TAGS, "source": "other", "version": "9"})
    assert not same_submission(TAGS, {**TAGS, key: "other"})
    assert not same_submission(TAGS, {name: value for name, value in TAGS.items() if name != key})


@pytest.mark.parametrize("case", [case for case in CASES if case not in ("local", "docker")])
def test_our_tags_come_back_out_of_all_tags(case: str) -> None:
    plan = plan_of(*CASES[case])
    everything = tags(plan, plan.target.image_address)
    mine = own_tags(everything)
    assert (mine["run"], mine["name"], mine["planned"]) == (
        "digits-k2x9",
        "digits",
        "1795213216.000",
    )
    assert mine["git-dirty"] == "true"
    assert ("image-digest" in mine) == ("@sha256:" in CASES[case][1])
    assert everything.keys() - {f"cloudtrain-{key}" for key in mine} == plan.spec.tags.keys()
    assert own_tags({"team": "vision", "cloudtrain-x": 3}) == {"x": "3"}


def test_models_that_a_cloud_does_not_have_are_passed_over() -> None:
    def chosen(provider: str, gpus: int, *gpu: str) -> tuple[str, ...]:
        types, _, problems = select_instances(
            provider, gpus=gpus, gpu=gpu, named=(), default="none"
        )
        assert problems == []
        return types

    wish = ("L4", "A100-80GB", "H100 NVL", "H100")
    assert chosen("azure", 8, *wish) == ("Standard_ND96amsr_A100_v4", "Standard_ND96isr_H100_v5")
    assert chosen("azure", 2, *wish) == ("Standard_NC48ads_A100_v4", "Standard_NC80adis_H100_v5")
    assert chosen("aws", 8, *wish) == ("ml.g6.48xlarge", "ml.p4de.24xlarge", "ml.p5.48xlarge")


@pytest.mark.parametrize(
    ("partition", "region", "console"),
    [
        ("aws", "eu-west-1", "https://eu-west-1.console.aws.amazon.com/"),
        ("aws-cn", "cn-north-1", "https://cn-north-1.console.amazonaws.cn/"),
        ("aws-us-gov", "us-gov-west-1", "https://us-gov-west-1.console.amazonaws-us-gov.com/"),
        ("aws-eusc", "eusc-de-east-1", "https://eusc-de-east-1.console.amazonaws-eusc.eu/"),
        ("aws-iso", "us-iso-east-1", ""),
    ],
)
def test_a_link_leads_to_the_console_of_the_jobs_partition(
    partition: str, region: str, console: str
) -> None:
    arn = f"arn:{partition}:sagemaker:{region}:123456789012:training-job/d-1"
    url = job_reference(region, "d-1", arn)["url"]
    assert url.startswith(console)
    assert bool(url) is bool(console)


@pytest.mark.parametrize(
    ("status", "secondary", "shown"),
    [
        ("Deleting", "Completed", "Deleting"),
        ("Quarantined", "Hibernating", "Quarantined"),
        ("InProgress", "Hibernating", "Hibernating"),
        ("Stopping", "Uploading", "uploading the model"),
    ],
)
def test_a_status_without_a_word_of_ours_is_shown_as_itself(
    status: str, secondary: str, shown: str
) -> None:
    answer = described(status, secondary)
    assert phase_of(answer) == shown
    assert final_state(answer) is None


def test_a_download_may_have_the_longest_name_that_a_disk_takes(tmp_path: Path) -> None:
    path = tmp_path / ("é" * 127)
    with draft_of(path) as draft:
        draft.write_text("weights")
        assert not path.exists()
    assert path.read_text() == "weights"


def test_a_download_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with suppress(OSError), draft_of(tmp_path / "model.pt") as draft:
        draft.write_text("half")
        raise OSError
    assert not list(tmp_path.iterdir())
