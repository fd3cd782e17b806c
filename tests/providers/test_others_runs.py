"""Runs of others, and of version 0.1.0, in one account of either cloud."""

from __future__ import annotations

from pathlib import Path

import pytest

import cloudtrain
from cloudtrain.api.context import archive_of
from cloudtrain.api.lookup import find_run, import_remote_runs
from cloudtrain.errors import RunNotFound
from cloudtrain.source.pack import pack
from cloudtrain.source.scan import scan
from tests.providers.sites import Site
from tests.support.in_process import call as in_process
from tests.support.samples import earlier_runs

# Runs of others in one account of either cloud: listed with their states, never meant by accident.

pytestmark = [
    pytest.mark.once,
    pytest.mark.usefixtures("site_folder"),
]


def test_a_job_that_a_colleague_starts_later_is_never_the_last_one(
    site: Site, data_dir: str
) -> None:
    site.submit("shared-mine", data_dir)
    site.submit_as("bob", "shared-theirs")
    assert "shared-theirs" in import_remote_runs(site.provider, data_dir=data_dir)
    assert find_run("last", data_dir=data_dir).id == "shared-mine"
    assert find_run("shared", data_dir=data_dir).id == "shared-mine"
    with pytest.raises(RunNotFound, match="shared-theirs") as failed:
        find_run("shared-t", data_dir=data_dir)
    assert "its whole id" in str(failed.value.hint)
    assert find_run("shared-theirs", data_dir=data_dir).id == "shared-theirs"


def test_list_and_stop_name_the_owner(site: Site, data_dir: str) -> None:
    site.submit("owned-mine", data_dir)
    site.submit_as("bob", "owned-theirs")
    listed = in_process("--data-dir", data_dir, "list", "--provider", site.provider)
    owners = {line.split()[0]: line.split()[2] for line in listed.out.splitlines()}
    assert owners["RUN"] == "OWNER"
    assert owners["owned-mine"] == "you"
    assert owners["owned-theirs"].startswith("bob@")
    stopped = in_process("--data-dir", data_dir, "stop", "owned-theirs")
    assert "owned-theirs, which bob@" in stopped.err


# Runs of version 0.1.0 on either cloud: listed, read, stopped, fetched and repeated as today's.

SAME = {
    "aws": (
        *("RoleArn", "AlgorithmSpecification", "ResourceConfig", "StoppingCondition"),
        "Environment",
    ),
    "azure": (
        *("command", "environment", "resources", "distribution", "inputs", "limits"),
        *("display_name", "code"),
    ),
}
"""Fields of a request that a repeated run has again."""


@pytest.fixture(params=["", "-adopted"], ids=["submitted", "adopted"])
def data(request: pytest.FixtureRequest, site: Site, tmp_path: Path) -> str:
    """A data folder with the runs of this cloud."""
    return earlier_runs(f"{site.provider}{request.param}", tmp_path / "kept", tmp_path)


@pytest.fixture
def submitted_data(site: Site, tmp_path: Path) -> str:
    """A data folder with runs that this machine submitted."""
    return earlier_runs(site.provider, tmp_path / "kept", tmp_path)


def test_earlier_runs_are_listed_without_a_call(site: Site, data: str) -> None:
    name = f"old-{site.provider}"
    runs = cloudtrain.list_runs(data_dir=data, ask_clouds=False)
    states = {run["run"]: run["state"] for run in runs}
    assert states == {name: "pending", f"{name}-done": "succeeded"}
    state = cloudtrain.find_run(f"{name}-done", data_dir=data).cached_status()
    assert (state.name, state.nodes) == ("old", 2)
    if site.provider == "aws":
        assert state.billing is not None
        assert state.billing.billable_seconds == 11
    assert site.cloud.endpoint.calls == []


def test_lines_of_an_earlier_run_are_read(site: Site, submitted_data: str) -> None:
    run = cloudtrain.find_run(f"old-{site.provider}-done", data_dir=submitted_data)
    assert {"hello from 0", "hello from 1"} <= {line.text for line in run.logs()}


def test_a_queued_earlier_run_is_observed_and_stopped(
    site: Site, data: str, tmp_path: Path
) -> None:
    name = f"old-{site.provider}"
    site.forget_job(name)
    first = earlier_runs(site.provider, tmp_path / "first", tmp_path)
    request = cloudtrain.find_run(name, data_dir=first).folder.document("request.json")
    site.create_job(request, tmp_path)
    run = cloudtrain.find_run(name, data_dir=data)
    assert (run.status().state, run.status().phase) == ("pending", "starting")
    assert run.stop().state == "stopped"


def test_the_artifacts_of_an_earlier_run_are_fetched(site: Site, data: str, tmp_path: Path) -> None:
    name = f"old-{site.provider}-done"
    site.put_model(name, **{"model.txt": "weights\n"})
    path = cloudtrain.find_run(name, data_dir=data).fetch(tmp_path / "result")
    assert (path / "model" / "model.txt").read_text() == "weights\n"


def test_an_earlier_run_is_repeated_as_it_was(
    site: Site, submitted_data: str, tmp_path: Path
) -> None:
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "train.py").write_text("print(1)\n")
    old = cloudtrain.find_run(f"old-{site.provider}-done", data_dir=submitted_data)
    plan = old.plan_again()
    before = old.folder.document("request.json")
    after = cloudtrain.render(plan).document
    fields = SAME[site.provider]
    if site.provider == "azure":  # it named the folder of this machine, and submit replaced it
        assert before["inputs"]["words"]["path"] == str(tmp_path / "data")
        before["inputs"]["words"]["path"] = after["inputs"]["words"]["path"]
        assert "/paths/cloudtrain/inputs/" in after["inputs"]["words"]["path"]

    assert {key: after[key] for key in fields} == {key: before[key] for key in fields}

    store = tmp_path / "kept" / "sources"
    archive = pack(scan(tmp_path / "program"), store)
    written = old.folder.path / "plan.json"
    planned = old.folder.document("plan.json")["facts"]["source"]["digest"]
    written.write_text(written.read_text().replace(planned, archive.name.partition(".")[0]))
    repeated = cloudtrain.find_run(old.id, data_dir=submitted_data)
    assert archive_of(repeated.plan_again()) == archive
    assert repeated.rerun().status().state == "pending"
