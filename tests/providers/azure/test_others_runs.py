"""Runs of others in one workspace, invisible jobs, and storage that takes no keys."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import cloudtrain
from cloudtrain.api.lookup import find_run, import_remote_runs
from cloudtrain.api.run import Run
from cloudtrain.errors import CloudError
from cloudtrain.runs.logs import Observation
from cloudtrain_wire.events import Phase
from tests.fakes.azure.cloud import AzureCloud
from tests.fakes.azure.jobs import Job
from tests.fakes.azure.rights import BLOBS, READER, Assignment
from tests.fakes.azure.tokens import OBJECT_ID
from tests.fakes.messages import Call
from tests.providers.azure.operations import ALWAYS, forget, prepare_stop, reconnect, submitted
from tests.providers.faults import run_id_of
from tests.support.waiting import HANG_SECONDS

# Runs of others in one workspace: the list shows how they stand and whose they are, and asks for
# what is new.

pytestmark = pytest.mark.once
LIST = Call("arm", "ListJobs")


def listed(data_dir: str) -> dict[str, dict[str, object]]:
    return {line["run"]: line for line in cloudtrain.list_runs(data_dir=data_dir)}


def test_the_owner_is_the_one_that_the_job_or_else_the_workspace_names(
    cloud: AzureCloud, data_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("LOGNAME", "bob")
        submitted("tagged-1")
    monkeypatch.setattr(cloud.account, "user", "carol@example.com")
    old = submitted("untagged-1")
    # As an earlier version left it.
    del cloud.service.jobs[old.id].properties["tags"]["cloudtrain-owner"]
    import_remote_runs("azure", data_dir=data_dir)
    owners = {run: str(line["owner"]).partition("@")[0] for run, line in listed(data_dir).items()}
    assert (owners["tagged-1"], owners["untagged-1"]) == ("bob", "carol")


def test_a_list_requests_only_the_pages_with_new_jobs(
    cloud: AzureCloud, data_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudtrain.providers.azure.discover.KNOWN_IN_A_ROW", 10)
    monkeypatch.setattr(cloud.service, "jobs", {})  # without those of other tests
    like = cloud.service.jobs[submitted("paged-0").id]
    for number in range(1, 24):
        tags = {**like.tags, "cloudtrain-run": f"paged-{number}"}
        body = {"properties": {**like.properties, "tags": tags}}
        job = Job(f"paged-{number}", body, vm_size=like.vm_size, low_priority=False)
        cloud.service.jobs[job.name] = job
    for job in cloud.service.jobs.values():
        job.finish("Completed")
    cloud.endpoint.reset()
    assert len(import_remote_runs("azure", data_dir=data_dir)) == len(cloud.service.jobs)
    assert cloud.endpoint.calls.count(LIST) >= 3
    late = submitted("paged-late")
    cloud.endpoint.reset()
    assert import_remote_runs("azure", data_dir=data_dir) == [late.id]
    assert cloud.endpoint.calls == [LIST, LIST]


def test_without_permission_to_read_the_run_history_jobs_are_seen_to_end(
    cloud: AzureCloud, data_dir: str
) -> None:
    run = submitted("no-history-1")
    cloud.service.jobs[run.id].finish("Completed")
    cloud.endpoint.fault("denied", "history", "GetRunDetails", times=ALWAYS)
    assert run.id in import_remote_runs("azure", data_dir=data_dir)
    assert listed(data_dir)[run.id]["state"] == "succeeded"


def test_a_job_that_runs_has_run_since_it_began_and_not_since_it_was_first_seen(
    cloud: AzureCloud, data_dir: str
) -> None:
    run = submitted("long-since-1")
    job = cloud.service.jobs[run.id]
    job.enter("Running")
    job.started -= 3600
    assert run.status().seconds(job.started + 3600) == pytest.approx(3600, abs=1)
    import_remote_runs("azure", data_dir=data_dir)
    adopted = find_run(run.id, data_dir=data_dir).status()
    assert adopted.started == pytest.approx(job.started, abs=1), (
        "the list says that it runs, and not since when"
    )


@pytest.mark.parametrize("resumes", [True, False])
def test_the_wait_for_machines_that_were_taken_away_costs_nothing(
    cloud: AzureCloud, resumes: bool
) -> None:
    run = submitted(f"unpaid-{int(resumes)}")
    job = cloud.service.jobs[run.id]
    job.enter("Running")
    run.status()
    job.enter("Queued")
    began = run.status().waiting_since
    if resumes:
        job.enter("Running")
        run.take([Observation(events=[Phase(time=began + 500, phase="training", running=True)])])
    job.finish("Canceled")
    job.started = began - 100
    job.ended = began + 500
    bill = run.wait(HANG_SECONDS).billing
    assert bill is not None
    assert bill.training_seconds == pytest.approx(100, abs=1)


# Runs whose job or workspace in Azure ML is no longer visible, or was never sent.


def test_a_job_that_is_no_longer_visible_does_not_end_its_run(
    cloud: AzureCloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudtrain.providers.shared.idempotent_create.NEW_JOB_SECONDS", 0)
    run = submitted("lost-1")
    job = cloud.service.jobs.pop("lost-1")
    with pytest.raises(CloudError, match=r"knows no job lost-1") as failed:
        run.status()
    assert "azure.workspace" in str(failed.value.hint)
    with pytest.raises(CloudError, match=r"knows no job lost-1"):
        run.wait(HANG_SECONDS)
    with pytest.raises(CloudError, match=r"knows no job lost-1"):
        run.stop()
    cloud.service.jobs["lost-1"] = job
    assert not find_run("lost-1").status().has_ended


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("workspace", "elsewhere"),
        ("subscription", "99999999-0000-0000-0000-000000000000"),
    ],
)
def test_a_workspace_that_is_no_longer_visible_does_not_end_a_run(
    cloud: AzureCloud, field: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = submitted(run_id_of("moved", field))
    with monkeypatch.context() as patch:
        patch.setattr(cloud.account, field, value)
        reconnect()
        with pytest.raises(CloudError) as failed:
            run.status()
    assert f"azure.{field}" in str(failed.value.hint)
    reconnect()
    assert run.status().state == "pending"


# Storage that takes no keys, and secrets of datastores that end: runs stop and results arrive all
# the same.


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs never end by themselves, so do not wait for that."""
    monkeypatch.setattr("cloudtrain.providers.azure.stop.FINISHING_SECONDS", 0)


def stopped(cloud: AzureCloud, run: Run, folder: Path) -> None:
    """Stop a job that runs."""
    prepare_stop(cloud, run.id)
    state = run.stop()
    assert (state.state, state.reason) == ("stopped", "stop requested")
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
