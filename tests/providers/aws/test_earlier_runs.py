"""SageMaker runs of version 0.1.0: listed, read, stopped, fetched and run again as if they were of
today.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.api.run import Run
from cloudtrain.errors import StorageError
from cloudtrain.providers.aws.client import aws
from cloudtrain.submission.context import archive_of
from tests.fakes.aws.cloud import Cloud
from tests.providers.aws.archives import entry, packed
from tests.support.earlier_runs import earlier_runs, without

KINDS = ("aws", "aws-adopted")


@pytest.fixture(params=KINDS)
def data(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return earlier_runs(request.param, tmp_path / "kept", tmp_path)


def known_to(cloud: Cloud, data: str, run_id: str) -> Run:
    """A run whose job is in this cloud, too."""
    run = cloudtrain.find_run(run_id, data_dir=data)
    if run_id not in cloud.service.jobs:
        aws(cloud.region).call(
            "sagemaker", "create_training_job", **run.folder.document("request.json")
        )
    return run


def test_they_are_listed_and_those_that_ended_are_read_without_asking(
    data: str, cloud: Cloud
) -> None:
    listed = {
        run["run"]: run["state"] for run in cloudtrain.list_runs(data_dir=data, ask_clouds=False)
    }
    assert listed == {"old-aws": "pending", "old-aws-done": "succeeded"}
    state = cloudtrain.find_run("old-aws-done", data_dir=data).cached_status()
    assert (state.name, state.nodes, state.billing and state.billing.billable_seconds) == (
        "old",
        2,
        11,
    )
    assert cloud.endpoint.calls == []


def test_lines_of_an_earlier_run_are_read(tmp_path: Path) -> None:
    data = earlier_runs("aws", tmp_path / "kept", tmp_path)
    lines = [line.text for line in cloudtrain.find_run("old-aws-done", data_dir=data).logs()]
    assert {"hello from 0", "hello from 1"} <= set(lines)


def test_a_queued_run_is_observed_and_stopped(data: str, cloud: Cloud) -> None:
    cloud.service.jobs.pop("old-aws", None)
    run = known_to(cloud, data, "old-aws")
    assert (run.status().state, run.status().phase) == ("pending", "starting")
    assert run.stop().state == "stopped"


def test_the_artifacts_of_an_earlier_run_are_fetched(
    data: str, cloud: Cloud, tmp_path: Path
) -> None:
    cloud.put(
        "cloudtrain/runs/old-aws-done/output/model.tar.gz",
        packed(entry("model.txt", text="weights\n")),
    )
    path = cloudtrain.find_run("old-aws-done", data_dir=data).fetch(tmp_path / "result")
    assert (path / "model" / "model.txt").read_text() == "weights\n"


def test_an_earlier_run_is_repeated_as_it_was(tmp_path: Path, cloud: Cloud) -> None:
    data = earlier_runs("aws", tmp_path / "kept", tmp_path)
    old = cloudtrain.find_run("old-aws-done", data_dir=data)
    plan = old.plan_again()
    before = old.folder.document("request.json")
    after = cloudtrain.render(plan).document
    same = (
        "RoleArn",
        "AlgorithmSpecification",
        "ResourceConfig",
        "StoppingCondition",
        "Environment",
    )
    assert {key: after[key] for key in same} == {key: before[key] for key in same}
    digest = old.folder.document("plan.json")["facts"]["source"]["digest"]
    archive = tmp_path / "kept" / "sources" / f"{digest}.tar.gz"
    archive.parent.mkdir()
    archive.write_bytes(packed(entry("train.py")))
    assert archive_of(plan) == archive
    assert old.rerun().status().state == "pending"


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("request.json", "OutputDataConfig.S3OutputPath"),
        ("request.json", "TrainingJobName"),
        ("plan.json", "target.facts.region"),
        ("plan.json", "target.facts"),
    ],
)
def test_a_document_without_a_key_is_told_as_damaged(tmp_path: Path, name: str, path: str) -> None:
    data = earlier_runs("aws", tmp_path / "kept", tmp_path)
    run = cloudtrain.find_run("old-aws-done", data_dir=data)
    without(run.folder.path / name, path)
    with pytest.raises(
        StorageError, match=f"run old-aws-done: {name} cannot be read: .*{path.rpartition('.')[2]}"
    ):
        run.fetch(tmp_path / "result")
