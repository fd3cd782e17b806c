"""Azure ML runs of version 0.1.0: listed, read, stopped, fetched and run again as if they were of
today.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.errors import StorageError
from cloudtrain.providers.azure.client import workspace
from cloudtrain.providers.cloud.idempotent_create import Attempt
from tests.fakes.azure.cloud import AzureCloud
from tests.support.earlier_runs import earlier_runs, without

KINDS = ("azure", "azure-adopted")


@pytest.fixture(params=KINDS)
def data(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return earlier_runs(request.param, tmp_path / "kept", tmp_path)


def is_known_to(cloud: AzureCloud, tmp_path: Path) -> None:
    """The job that waits is in this workspace, too."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "source.tar.gz").write_bytes(str(tmp_path).encode())
    earlier_runs("azure", tmp_path / "first", tmp_path)
    document = cloudtrain.find_run("old-azure", data_dir=str(tmp_path / "first")).folder.document(
        "request.json"
    )
    account = cloud.account
    at = workspace(account.subscription, account.resource_group, account.workspace)
    at.create({**document, "code": str(tmp_path / "code")}, Attempt(lambda _: None))


def test_they_are_listed_and_those_that_ended_are_read_without_asking(
    data: str, cloud: AzureCloud
) -> None:
    listed = {
        run["run"]: run["state"] for run in cloudtrain.list_runs(data_dir=data, ask_clouds=False)
    }
    assert listed == {"old-azure": "pending", "old-azure-done": "succeeded"}
    state = cloudtrain.find_run("old-azure-done", data_dir=data).cached_status()
    assert (state.name, state.nodes) == ("old", 2)
    assert cloud.endpoint.calls == []


def test_lines_of_an_earlier_run_are_read(tmp_path: Path) -> None:
    data = earlier_runs("azure", tmp_path / "kept", tmp_path)
    lines = [line.text for line in cloudtrain.find_run("old-azure-done", data_dir=data).logs()]
    assert {"hello from 0", "hello from 1"} <= set(lines)


def test_a_queued_run_is_observed_and_stopped(data: str, cloud: AzureCloud, tmp_path: Path) -> None:
    cloud.service.jobs.pop("old-azure", None)
    is_known_to(cloud, tmp_path)
    run = cloudtrain.find_run("old-azure", data_dir=data)
    assert (run.status().state, run.status().phase) == ("pending", "not started")
    assert run.stop().state == "stopped"


def test_the_artifacts_of_an_earlier_run_are_fetched(
    data: str, cloud: AzureCloud, tmp_path: Path
) -> None:
    cloud.put("cloudtrain/runs/old-azure-done/model/model.txt", b"weights\n")
    path = cloudtrain.find_run("old-azure-done", data_dir=data).fetch(tmp_path / "result")
    assert (path / "model" / "model.txt").read_text() == "weights\n"


def test_an_earlier_run_is_repeated_as_it_was(tmp_path: Path, cloud: AzureCloud) -> None:
    data = earlier_runs("azure", tmp_path / "kept", tmp_path)
    old = cloudtrain.find_run("old-azure-done", data_dir=data)
    plan = old.plan_again()
    before = old.folder.document("request.json")
    after = cloudtrain.render(plan).document
    same = (
        "command",
        "environment",
        "resources",
        "distribution",
        "inputs",
        "limits",
        "display_name",
        "code",
    )
    assert {key: after[key] for key in same} == {key: before[key] for key in same}
    digest = old.folder.document("plan.json")["facts"]["source"]["digest"]
    archive = tmp_path / "kept" / "sources" / f"{digest}.tar.gz"
    archive.parent.mkdir()
    archive.write_bytes(str(tmp_path).encode())
    assert old.rerun().status().state == "pending"


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("request.json", "outputs.output.path"),
        ("request.json", "outputs"),
        ("plan.json", "target.facts.workspace"),
    ],
)
def test_a_document_without_a_key_is_told_as_damaged(tmp_path: Path, name: str, path: str) -> None:
    data = earlier_runs("azure", tmp_path / "kept", tmp_path)
    run = cloudtrain.find_run("old-azure-done", data_dir=data)
    without(run.folder.path / name, path)
    with pytest.raises(
        StorageError,
        match=f"run old-azure-done: {name} cannot be read: .*{path.rpartition('.')[2]}",
    ):
        run.fetch(tmp_path / "result")
