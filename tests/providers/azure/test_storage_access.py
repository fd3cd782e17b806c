"""Storage that takes no keys, and secrets of datastores that end: runs stop and results arrive all
the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from cloudtrain.errors import CloudError
from cloudtrain.submission.run import Run
from tests.fakes.azure.cloud import AzureCloud
from tests.fakes.azure.rbac import Assignment
from tests.fakes.azure.roles import BLOBS, READER
from tests.fakes.azure.tokens import OBJECT_ID
from tests.fakes.messages import Call
from tests.providers.azure.jobs import append_outcome, forget, submitted


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs never end by themselves, so do not wait for that."""
    monkeypatch.setattr("cloudtrain.providers.azure.stop.FINISHING_SECONDS", 0)


def stopped(cloud: AzureCloud, run: Run, folder: Path) -> None:
    """Stop a job that runs."""
    for node in range(2):
        append_outcome(cloud, run.id, node, "stopped")
    cloud.service.jobs[run.id].enter("Running")
    state = run.stop()
    assert (state.state, state.reason) == ("stopped", "stop was asked")
    stop_files = [
        name for name in cloud.blobs(f"cloudtrain/runs/{run.id}/output/") if "stop" in name
    ]
    assert stop_files


def fetched(cloud: AzureCloud, run: Run, folder: Path) -> None:
    """Fetch a model of several pages of blobs."""
    cloud.account.blob_page = 2
    for number in range(5):
        cloud.put(f"cloudtrain/runs/{run.id}/model/part-{number}", b"weights")
    cloud.service.jobs[run.id].finish("Completed")
    run.fetch(folder / "results")
    parts = sorted(path.name for path in (folder / "results" / "model").iterdir())
    assert parts == [f"part-{number}" for number in range(5)]


def submitted_with_data(cloud: AzureCloud, run: Run, folder: Path) -> None:
    """Submit a job with a folder of data."""
    data = folder / "data"
    data.mkdir()
    for number in range(20):
        (data / f"{number}.txt").write_text(f"{run.id} {number}")
    submitted(f"{run.id}-data", inputs={"data": str(data)})
    assert len([name for name in cloud.blobs("cloudtrain/inputs/") if name.endswith(".txt")]) >= 20


class Use(NamedTuple):
    """Something that a person does with storage."""

    do: Callable[[AzureCloud, Run, Path], None]
    call: tuple[str, str]
    """The call that storage refuses."""


USES = {
    "stop": Use(stopped, ("blob", "PutBlob")),
    "fetch": Use(fetched, ("blob", "ListBlobs")),
    "submit": Use(submitted_with_data, ("blob", "ListBlobs")),
}


def new_run(cloud: AzureCloud, run_id: str) -> Run:
    """Submit a job, and forget what is known of the workspace."""
    run = submitted(run_id)
    forget()
    cloud.endpoint.reset()
    return run


@pytest.mark.parametrize("name", USES)
def test_storage_without_keys_is_opened_with_the_person_s_login(
    name: str, cloud: AzureCloud, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = new_run(cloud, f"no-keys-{name}")
    cloud.account.takes_keys = False
    with caplog.at_level(logging.WARNING):
        USES[name].do(cloud, run, tmp_path)
    assert USES[name].call in cloud.endpoint.calls
    warnings = [record.getMessage() for record in caplog.records]
    assert warnings
    assert len(warnings) == len(set(warnings)), "each container is named once"
    assert all("takes no keys" in text and "your own login" in text for text in warnings)


@pytest.mark.parametrize("name", USES)
def test_a_login_without_a_role_is_named_when_storage_takes_no_keys(
    name: str, cloud: AzureCloud, tmp_path: Path
) -> None:
    run = new_run(cloud, f"no-role-{name}")
    cloud.account.takes_keys = False
    cloud.account.access.is_enforced = True
    reader = Assignment(principal=OBJECT_ID, role=READER, scope=cloud.account.scope)
    cloud.account.access.assignments.append(reader)
    with pytest.raises(CloudError) as failure:
        USES[name].do(cloud, run, tmp_path)
    assert "with your own login, since the account takes no keys" in failure.value.message
    assert "Storage Blob Data Contributor" in str(failure.value.hint)

    account = cloud.account.part("storageAccount")
    role = Assignment(principal=OBJECT_ID, role=BLOBS, scope=account)
    cloud.account.access.assignments.append(role)
    if name == "stop":
        USES[name].do(cloud, run, tmp_path)


@pytest.mark.parametrize("name", USES)
def test_a_datastore_s_secret_is_renewed_before_it_ends(
    name: str, cloud: AzureCloud, tmp_path: Path
) -> None:
    run = new_run(cloud, f"short-{name}")
    cloud.account.secret_seconds = 200
    USES[name].do(cloud, run, tmp_path)
    assert cloud.endpoint.calls.count(Call("arm", "ListSecrets")) > 2
