"""Runs of others in one account: shown with their owners, never meant by accident, and asked for
only when new.
"""

from __future__ import annotations

from collections import Counter

import pytest

import cloudtrain
from cloudtrain.cli import main
from cloudtrain.submission.lookup import find_run, import_remote_runs
from cloudtrain.submission.run import Run
from tests.fakes.aws.cloud import Cloud
from tests.providers.aws.jobs import JOB, submitted
from tests.support.limits import HANG_SECONDS

pytestmark = pytest.mark.once


@pytest.fixture
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The data folder of a second machine; the default one is the colleague's."""
    return str(tmp_path_factory.mktemp("second-machine"))


def mine(run_id: str, data_dir: str, **more: object) -> Run:
    return cloudtrain.submit(
        cloudtrain.plan(cloudtrain.load({**JOB, **more}), "aws", run_id=run_id, data_dir=data_dir)
    )


def searches(cloud: Cloud) -> int:
    return Counter(call.operation for call in cloud.endpoint.calls)["Search"]


def test_a_list_requests_pages_of_a_hundred_jobs_and_then_only_new_ones(
    cloud: Cloud, data_dir: str
) -> None:
    first = submitted("many-0")
    template = cloud.service.jobs[first.id].body
    for number in range(1, 130):
        tags = [
            {**tag, "Value": f"many-{number}"} if tag["Key"] == "cloudtrain-run" else tag
            for tag in template["Tags"]
        ]
        cloud.service.call(
            "CreateTrainingJob", {**template, "TrainingJobName": f"many-{number}", "Tags": tags}
        )
    total = len(cloud.service.jobs)
    cloud.endpoint.reset()
    assert len(import_remote_runs("aws", data_dir=data_dir)) == total
    assert searches(cloud) == -(-total // 100)
    for job in cloud.service.jobs.values():  # unchanged for an hour
        job.update(LastModifiedTime=job["LastModifiedTime"] - 3600)
    late = submitted("many-late")
    cloud.service.jobs["many-7"].finish("Failed", "Failed", "AlgorithmError: , exit code: 3")
    cloud.endpoint.reset()
    assert import_remote_runs("aws", data_dir=data_dir) == [late.id]
    assert [call.operation for call in cloud.endpoint.calls] == ["GetCallerIdentity", "Search"]
    assert find_run("many-7", data_dir=data_dir).cached_status().state == "failed"
    cloud.endpoint.reset()
    assert import_remote_runs("aws", data_dir=data_dir, everything=True) == []
    assert searches(cloud) == -(-(total + 1) // 100)


def test_machines_that_are_kept_are_shown_until_they_are_given_back(
    cloud: Cloud, data_dir: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud.account, "has_warm_pools", True)
    run = mine("kept-1", data_dir, aws={"keep_alive": "30 min"})
    job = cloud.service.jobs[run.id]
    job.enter("Training")
    job.finish("Completed", "Completed")
    assert run.wait(HANG_SECONDS).state == "succeeded"
    for words in (["status", run.id], ["list"]):
        with pytest.raises(SystemExit):
            main(["--data-dir", data_dir, *words])
        output = "".join(capsys.readouterr())
        assert (
            "its machines are kept, and billed, for 30 min more" in output or "for 29 min" in output
        )
    with pytest.raises(SystemExit):
        main(["--data-dir", data_dir, "stop", run.id, "--release"])
    assert "kept-1: its machines are given back" in capsys.readouterr().err
    assert cloud.endpoint.sent[-1] == (
        ("sagemaker", "UpdateTrainingJob"),
        {"TrainingJobName": run.id, "ResourceConfig": {"KeepAlivePeriodInSeconds": 0}},
    )
    assert job.describe()["WarmPoolStatus"]["Status"] == "Terminated"
    with pytest.raises(SystemExit):
        main(["--data-dir", data_dir, "list"])
    assert "are kept" not in "".join(capsys.readouterr())


def test_releasing_machines_that_are_not_kept_is_reported(
    cloud: Cloud, data_dir: str, capsys: pytest.CaptureFixture[str]
) -> None:
    # The account's quota is 0, which AWS does not report.
    run = mine("unkept-1", data_dir, aws={"keep_alive": "30 min"})
    cloud.service.jobs[run.id].finish("Completed", "Completed")
    assert run.wait(HANG_SECONDS).kept is None
    with pytest.raises(SystemExit) as stopped:
        main(["--data-dir", data_dir, "stop", run.id, "--release"])
    assert stopped.value.code == 2
    assert "run unkept-1 keeps no machines" in capsys.readouterr().err
