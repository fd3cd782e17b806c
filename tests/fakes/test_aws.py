"""The imitation of SageMaker runs jobs as the service does: what the tests of the client rely on."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloudtrain.providers.aws.shapes import violations
from tests.fakes.aws.cloud import Cloud
from tests.fakes.aws.samples import ended, lines, request, wait_for_output
from tests.fakes.aws.storage import Checkpoints
from tests.support.limits import HANG_SECONDS
from tests.support.waiting import eventually


def start(
    cloud: Cloud, name: str, nodes: int = 1, changes: dict[str, Any] | None = None, **wishes: str
) -> None:
    cloud.client("sagemaker").create_training_job(
        **request(cloud, name, nodes, **wishes) | (changes or {})
    )


def phases(described: dict[str, Any]) -> list[str]:
    return [transition["Status"] for transition in described["SecondaryStatusTransitions"]]


def unpacked(content: bytes) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        files = {
            member.name: tar.extractfile(member) for member in tar.getmembers() if member.isfile()
        }
        return {name: file.read().decode() for name, file in files.items() if file}


def test_two_nodes_connect_and_their_outputs_become_one_archive(account: Cloud) -> None:
    start(account, "meets", nodes=2, do="meet")
    described = ended(account, "meets")
    assert (described["TrainingJobStatus"], described.get("FailureReason")) == ("Completed", None)
    expected = [
        "Starting",
        "Downloading",
        "DownloadingTrainingImage",
        "Training",
        "Uploading",
        "Completed",
    ]
    assert phases(described) == expected
    assert all(
        transition["EndTime"] >= transition["StartTime"]
        for transition in described["SecondaryStatusTransitions"]
    )
    assert described["TrainingEndTime"] > described["TrainingStartTime"] > described["CreationTime"]
    assert described["TrainingTimeInSeconds"] == described["BillableTimeInSeconds"] >= 1
    assert "Tags" not in described

    objects = account.objects("out/meets/")
    assert (
        f"s3://{account.bucket}/out/meets/output/model.tar.gz"
        == described["ModelArtifacts"]["S3ModelArtifacts"]
    )
    assert unpacked(objects["out/meets/output/model.tar.gz"]) == {
        "algo-1.txt": "data",
        "algo-2.txt": "data",
    }
    output = unpacked(objects["out/meets/output/output.tar.gz"])
    assert sorted(output) == ["deep/algo-1", "deep/algo-2"]
    assert "PYTEST_CURRENT_TEST" not in output["deep/algo-1"]
    wait_for_output(account, "meets", "met algo-2")


def test_a_description_fits_the_service_model(account: Cloud) -> None:
    start(account, "described", do="talk")
    ended(account, "described")
    answer = account.service.call("DescribeTrainingJob", {"TrainingJobName": "described"})
    assert (
        violations(
            account.service.model.operation_model("DescribeTrainingJob").output_shape, answer
        )
        == []
    )


def test_lines_arrive_in_their_order_and_none_is_empty(account: Cloud) -> None:
    start(account, "talks", do="talk")
    ended(account, "talks")
    wait_for_output(account, "talks", "no end of line")
    (printed,) = lines(account, "talks").values()
    assert printed[1:501] == [f"line {number}" for number in range(500)]
    assert printed[501:] == ["last \u00e9\t\x1b[1m words", "bad \ufffd byte, no end of line"]


def test_lines_may_arrive_after_the_job_has_ended(account: Cloud) -> None:
    account.account.logs.lag_seconds = 1
    start(account, "late", do="talk")
    ended(account, "late")
    assert lines(account, "late") == {}
    wait_for_output(account, "late", "no end of line")


def test_the_first_failing_node_tells_why_and_ends_the_others(account: Cloud) -> None:
    start(account, "fails", nodes=2, do="fail")
    described = ended(account, "fails")
    assert described["TrainingJobStatus"] == "Failed"
    assert (
        described["FailureReason"]
        == f"AlgorithmError: {('the dog ate it' + '.' * 2000)[:1024]}, exit code: 17"
    )
    assert phases(described)[-2:] == ["Uploading", "Failed"]
    assert "out/fails/output/model.tar.gz" not in account.objects("out/fails/")
    assert "checkpoints/fails/algo-1-stopped.txt" in account.objects("checkpoints/fails/")


def test_a_stop_leaves_time_to_save(account: Cloud) -> None:
    start(account, "stops", do="train")
    wait_for_output(account, "stops", "ready")
    sagemaker = account.client("sagemaker")
    sagemaker.stop_training_job(TrainingJobName="stops")
    described = ended(account, "stops")
    assert (described["TrainingJobStatus"], described["SecondaryStatus"]) == ("Stopped", "Stopped")
    assert phases(described)[-4:] == ["Training", "Stopping", "Uploading", "Stopped"]
    assert "FailureReason" not in described
    objects = account.objects("checkpoints/stops/")
    assert objects["checkpoints/stops/algo-1-stopped.txt"] == b"saved at the stop"
    assert "out/stops/output/model.tar.gz" in account.objects("out/stops/")
    with pytest.raises(
        sagemaker.exceptions.ClientError, match="the training job is in status Stopped"
    ):
        sagemaker.stop_training_job(TrainingJobName="stops")


def test_a_process_that_ignores_sigterm_is_killed_with_its_children(account: Cloud) -> None:
    account.account.grace_seconds = 0.3
    start(
        account,
        "stubborn",
        changes={"StoppingCondition": {"MaxRuntimeInSeconds": 1}},
        do="stubborn",
    )
    described = ended(account, "stubborn")
    assert (described["TrainingJobStatus"], described["SecondaryStatus"]) == (
        "Stopped",
        "MaxRuntimeExceeded",
    )


def test_a_spot_interruption_goes_on_from_the_last_checkpoint(account: Cloud) -> None:
    spot = {
        "EnableManagedSpotTraining": True,
        "StoppingCondition": {"MaxRuntimeInSeconds": 3600, "MaxWaitTimeInSeconds": 3600},
    }
    start(account, "spot", nodes=2, changes=spot, do="train", until="2")
    wait_for_output(account, "spot", "ready", times=2)
    account.service.interrupt("spot")
    described = ended(account, "spot")
    assert described["TrainingJobStatus"] == "Completed"
    assert phases(described)[3:6] == ["Training", "Interrupted", "Starting"]
    assert account.objects("checkpoints/spot/")["checkpoints/spot/algo-2.txt"] == b"2"
    assert described["BillableTimeInSeconds"] == -(-described["TrainingTimeInSeconds"] * 40 // 100)
    wait_for_output(account, "spot", "saved 2", times=2)
    assert len(lines(account, "spot")) == 4


def test_waiting_for_spot_machines_has_an_end(account: Cloud) -> None:
    account.account.capacity.add("ml.g5.xlarge")
    limits = {"MaxRuntimeInSeconds": 1, "MaxWaitTimeInSeconds": 1}
    start(
        account,
        "hopes",
        changes={"EnableManagedSpotTraining": True, "StoppingCondition": limits},
        do="meet",
    )
    described = ended(account, "hopes")
    assert (described["TrainingJobStatus"], described["SecondaryStatus"]) == (
        "Stopped",
        "MaxWaitTimeExceeded",
    )


def test_other_jobs_end_with_their_machines_unless_they_may_be_retried(account: Cloud) -> None:
    start(
        account,
        "retried",
        changes={"RetryStrategy": {"MaximumRetryAttempts": 1}},
        do="train",
        until="2",
    )
    wait_for_output(account, "retried", "ready")
    account.service.interrupt("retried")
    described = ended(account, "retried")
    assert described["TrainingJobStatus"] == "Completed"
    assert phases(described)[4:6] == ["Interrupted", "Restarting"]

    start(account, "taken", do="train")
    wait_for_output(account, "taken", "ready")
    account.service.interrupt("taken")
    described = ended(account, "taken")
    assert described["TrainingJobStatus"] == "Failed"
    assert described["FailureReason"].startswith("InternalServerError: ")


def test_the_next_preference_is_taken_where_there_is_no_capacity(account: Cloud) -> None:
    account.account.capacity.add("ml.p5.48xlarge")
    preferences = [
        {"InstanceType": name, "InstanceCount": 2} for name in ("ml.p5.48xlarge", "ml.g5.xlarge")
    ]
    start(
        account,
        "prefers",
        changes={"ResourceConfig": {"InstancePreferences": preferences}},
        do="meet",
    )
    resources = ended(account, "prefers")["ResourceConfig"]
    assert (resources["SelectedInstanceType"], resources["SelectedInstanceCount"]) == (
        "ml.g5.xlarge",
        2,
    )
    wait_for_output(account, "prefers", "algo-2 of 2")

    start(
        account,
        "lacks",
        changes={"ResourceConfig": {"InstanceType": "ml.p5.48xlarge", "InstanceCount": 1}},
        do="meet",
    )
    assert ended(account, "lacks")["FailureReason"].startswith("CapacityError: ")


def test_a_job_waits_for_machines_and_can_be_stopped_meanwhile(account: Cloud) -> None:
    account.account.capacity.add("ml.g5.xlarge")
    patient = {"StoppingCondition": {"MaxRuntimeInSeconds": 60, "MaxPendingTimeInSeconds": 3600}}
    start(account, "waits", changes=patient, do="meet")
    job = account.service.jobs["waits"]
    eventually(lambda: job["SecondaryStatus"] == "Pending")
    account.client("sagemaker").stop_training_job(TrainingJobName="waits")
    described = ended(account, "waits")
    assert described["TrainingJobStatus"] == "Stopped"
    assert "TrainingTimeInSeconds" not in described


def test_what_is_missing_fails_the_job(account: Cloud) -> None:
    account.account.missing_images.add(account.image)
    start(account, "no-image", do="meet")
    assert "Either the image does not exist" in ended(account, "no-image")["FailureReason"]
    account.account.missing_images.clear()

    body = request(account, "no-data", do="meet")
    body["InputDataConfig"][1]["DataSource"]["S3DataSource"]["S3Uri"] = (
        f"s3://{account.bucket}/nothing/"
    )
    account.client("sagemaker").create_training_job(**body)
    reason = ended(account, "no-data")["FailureReason"]
    assert reason.startswith(
        'ClientError: Data download failed: No S3 objects found under S3 URL "s3://'
    )

    body = request(account, "no-program")
    body["AlgorithmSpecification"]["ContainerEntrypoint"] = ["/no/such/program"]
    account.client("sagemaker").create_training_job(**body)
    assert ended(account, "no-program")["FailureReason"].startswith("AlgorithmError: ")


SDK = """
import sys
from sagemaker.core.resources import TrainingJob
from sagemaker.core.shapes import AlgorithmSpecification, Channel, DataSource, OutputDataConfig
from sagemaker.core.shapes import ResourceConfig, S3DataSource, StoppingCondition
bucket, image, role, start = sys.argv[1:]
place = S3DataSource(s3_data_type="S3Prefix", s3_uri=f"s3://{bucket}/code/")
for name, wishes in (("sdk-good", {"do": "talk"}), ("sdk-bad", {"do": "fail"})):
    job = TrainingJob.create(
        training_job_name=name,
        role_arn=role,
        hyper_parameters=wishes,
        algorithm_specification=AlgorithmSpecification(
            training_image=image, training_input_mode="File", container_entrypoint=["python3", "-c", start]
        ),
        input_data_config=[Channel(channel_name="code", data_source=DataSource(s3_data_source=place))],
        output_data_config=OutputDataConfig(s3_output_path=f"s3://{bucket}/out"),
        resource_config=ResourceConfig(instance_type="ml.g5.xlarge", instance_count=1, volume_size_in_gb=30),
        stopping_condition=StoppingCondition(max_runtime_in_seconds=60),
    )
    try:
        job.wait(poll=1)
        print(TrainingJob.get(training_job_name=name).training_job_status)
    except Exception as error:
        print(type(error).__name__, job.failure_reason[:30])
"""


def test_the_sagemaker_sdk_works_against_it_as_it_is(account: Cloud) -> None:
    body = request(account, "sdk")
    start_line = body["AlgorithmSpecification"]["ContainerEntrypoint"][2]
    argv = [sys.executable, "-c", SDK, account.bucket, account.image, account.role, start_line]
    ran = subprocess.run(
        argv, env=account.clean(), capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert [
        line for line in ran.stdout.splitlines() if line.startswith(("Completed", "Failed"))
    ] == [
        "Completed",
        "FailedStatusError AlgorithmError: the dog ate it",
    ]


def test_a_folder_that_vanishes_during_a_checkpoint_sync_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training makes its checkpoints under another name, and prunes them, at any moment."""
    for name in ("step-1", "step-2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rank-0.pt").write_text(name)
    scan = os.scandir

    def vanished(path: Any) -> Any:
        if os.fspath(path).endswith("step-1"):
            raise FileNotFoundError(path)
        return scan(path)

    monkeypatch.setattr("os.scandir", vanished)
    stored: dict[str, bytes] = {}
    checkpoints(stored, tmp_path).sync(last=True)
    assert stored == {"s3://bucket/checkpoints/step-2/rank-0.pt": b"step-2"}


def checkpoints(stored: dict[str, bytes], folder: Path) -> Checkpoints:
    """A folder that is kept in a bucket which is a dictionary."""
    storage = SimpleNamespace(
        store=lambda content, uri: stored.update({uri: content}),
        remove=lambda uri: stored.pop(uri, None),
    )
    return Checkpoints(storage, "s3://bucket/checkpoints/", [folder])  # type: ignore[arg-type]


def test_deletions_of_a_job_reach_s3_before_its_new_files(
    tmp_path: Path,
) -> None:
    """With one checkpoint to keep, S3 is empty in some moments; with two it never is."""
    stored: dict[str, bytes] = {}
    for keep, at_worst in ((1, 0), (2, 1)):
        folder = tmp_path / str(keep)
        folder.mkdir()
        written = checkpoints(stored, folder)
        for step in range(3):
            (folder / f"step-{step}").write_text("weights")
            for old in range(step - keep + 1):
                (folder / f"step-{old}").unlink(missing_ok=True)
            written.sync()
            assert len(stored) >= at_worst or step == 0
            if step == 2:
                assert len(stored) == at_worst
            written.sync()
        assert len(stored) == keep
        stored.clear()
