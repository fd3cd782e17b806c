"""Runs of others in one workspace: the list shows how they stand and whose they are, and asks for
what is new.
"""

from __future__ import annotations

from collections import Counter

import pytest

import cloudtrain
from cloudtrain.runs.observation import Observation
from cloudtrain.submission.lookup import find_run, import_remote_runs
from cloudtrain_launcher.events import Phase
from tests.fakes.azure.cloud import AzureCloud
from tests.fakes.azure.jobs import Job
from tests.providers.azure.jobs import ALWAYS, submitted
from tests.support.limits import HANG_SECONDS

pytestmark = pytest.mark.once


@pytest.fixture
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The data folder of a second machine; the default one is the colleague's."""
    return str(tmp_path_factory.mktemp("here"))


def listed(data_dir: str) -> dict[str, dict[str, object]]:
    return {line["run"]: line for line in cloudtrain.list_runs(data_dir=data_dir)}


def calls(cloud: AzureCloud) -> Counter[str]:
    return Counter(call.operation for call in cloud.endpoint.calls)


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
    like = cloud.service.jobs[submitted("paged-0").id]
    for number in range(1, 40):
        tags = {**like.tags, "cloudtrain-run": f"paged-{number}"}
        body = {"properties": {**like.properties, "tags": tags}}
        job = Job(f"paged-{number}", body, vm_size=like.vm_size, low_priority=False)
        cloud.service.jobs[job.name] = job
    for job in cloud.service.jobs.values():
        job.finish("Completed")
    cloud.endpoint.reset()
    assert len(import_remote_runs("azure", data_dir=data_dir)) == len(cloud.service.jobs)
    assert calls(cloud)["ListJobs"] >= 4
    late = submitted("paged-late")
    cloud.endpoint.reset()
    assert import_remote_runs("azure", data_dir=data_dir) == [late.id]
    assert (calls(cloud)["ListJobs"], calls(cloud)["GetRunDetails"]) == (2, 0)
    for number in range(1, 40):  # or the other tests would list them too
        del cloud.service.jobs[f"paged-{number}"]


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
    job._ended = began + 500
    bill = run.wait(HANG_SECONDS).billing
    assert bill is not None
    assert bill.training_seconds == pytest.approx(100, abs=1)
