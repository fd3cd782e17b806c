"""Removal of runs in the storage of both clouds: our own folder alone, and the marker last."""

from __future__ import annotations

import json
from typing import Any

import pytest

import cloudtrain
from cloudtrain.api.lookup import import_remote_runs
from cloudtrain.api.removal import removable, with_remote
from cloudtrain.errors import RunNotFound
from cloudtrain.runs.store import RunStore
from cloudtrain.settings import data_folder
from tests.providers.sites import ALWAYS, Site
from tests.support.in_process import call

pytestmark = [pytest.mark.once, pytest.mark.usefixtures("site_folder")]

DELETED = {"aws": ("s3", "DeleteObject"), "azure": ("blob", "DeleteBlob")}


def ended(site: Site, run_id: str, data_dir: str | None = None, **fields: Any) -> None:
    """Submit a run that succeeds and leaves a model."""
    run = site.submit(run_id, data_dir, **fields)
    site.start_job(run_id)
    site.put_model(run_id, weights="x" * 100)
    site.finish_job(run_id)
    run.wait()


def stored(site: Site, run_id: str) -> list[str]:
    """Return the names of a run's objects."""
    prefix = f"cloudtrain/runs/{run_id}/"
    contents = site.cloud.objects(prefix) if site.provider == "aws" else site.cloud.blobs(prefix)
    return sorted(contents)


def forget(site: Site, name: str) -> None:
    """Delete an object past the client."""
    if site.provider == "aws":
        site.cloud.client("s3", direct=True).delete_object(Bucket=site.cloud.bucket, Key=name)
    else:
        site.cloud.account.storage.create(site.cloud.container).delete(name)


def root(site: Site) -> str:
    """Return the URI of the bucket or datastore."""
    if site.provider == "aws":
        return f"s3://{site.cloud.bucket}"

    return "azureml://datastores/workspaceblobstore/paths"


def rm(*arguments: str) -> Any:
    return call("rm", "--remote", "--yes", *arguments)


def test_a_run_goes_with_its_folder_and_no_other(site: Site) -> None:
    ended(site, "gone-1")
    ended(site, "gone-10")
    site.cloud.put("cloudtrain/runs/gone-1x/theirs", b"theirs")
    neighbour = stored(site, "gone-10")
    size = call("rm", "--remote", "--dry-run", "--json", "gone-1")
    (row,) = json.loads(size.out)
    assert (row["remote_files"], row["removed"]) == (2, False)
    assert row["remote"].endswith("cloudtrain/runs/gone-1/")
    assert stored(site, "gone-1") != []

    assert rm("gone-1").code == 0
    assert stored(site, "gone-1") == []
    assert stored(site, "gone-10") == neighbour
    assert stored(site, "gone-1x") == ["cloudtrain/runs/gone-1x/theirs"]
    refused = call("status", "gone-1")
    assert refused.code == 2
    assert "was removed on" in refused.err
    assert "folder in the cloud was removed, too" in refused.err
    assert import_remote_runs(site.provider, everything=True) == []


def test_without_remote_the_folder_stays(site: Site) -> None:
    ended(site, "local-1")
    assert call("rm", "--yes", "local-1").code == 0
    assert stored(site, "local-1") != []
    with pytest.raises(RunNotFound, match="was removed on"):
        cloudtrain.find_run("local-1")


def test_a_folder_without_the_marker_stays(site: Site) -> None:
    ended(site, "plain-1")
    (marker,) = (name for name in stored(site, "plain-1") if "/job/" in name)
    forget(site, marker)
    before = stored(site, "plain-1")
    refused = rm("plain-1")
    assert refused.code == 2
    assert "lacks the marker" in refused.err
    assert stored(site, "plain-1") == before
    store = RunStore(data_folder(None))
    notes: list[str] = []
    (pruned,) = with_remote(store, removable(store, ["plain-1"], ()), notes.append)
    assert pruned.remote is None
    assert "lacks the marker of this run; it stays there" in notes[0]


def test_the_folder_of_a_colleague_stays(site: Site, data_dir: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOGNAME", "somebody")
        ended(site, "theirs-1", data_dir)
    import_remote_runs(site.provider, everything=True)
    refused = rm("theirs-1")
    assert refused.code == 2
    assert "is somebody@" in refused.err
    assert stored(site, "theirs-1") != []


@pytest.mark.parametrize("refers", ["inputs", "tags"])
def test_a_folder_that_a_job_of_another_client_refers_to_stays(
    site: Site, data_dir: str, refers: str
) -> None:
    ended(site, f"used-{refers}")
    fields: dict[str, Any] = {"tags": {"from": f"used-{refers}"}}
    if refers == "inputs":
        fields = {"inputs": {"earlier": f"{root(site)}/cloudtrain/runs/used-inputs/output/"}}
    site.submit(f"user-{refers}", data_dir, **fields)
    refused = rm(f"used-{refers}")
    assert refused.code == 2
    assert f"user-{refers} refers to it" in refused.err
    assert stored(site, f"used-{refers}") != []
    site.end_job(f"user-{refers}")


def test_a_removal_that_was_struck_is_completed(site: Site) -> None:
    ended(site, "struck-1")
    site.cloud.put("cloudtrain/runs/struck-1/output/more", b"more")
    (marker,) = (name for name in stored(site, "struck-1") if "/job/" in name)
    for nth in (2, 2):
        site.cloud.endpoint.reset()
        site.cloud.endpoint.fault("denied", *DELETED[site.provider], nth=nth, times=ALWAYS)
        refused = rm("struck-1")
        assert refused.code == 4
        assert "elete" in refused.err
        assert marker in stored(site, "struck-1")
        assert cloudtrain.find_run("struck-1").id == "struck-1"

    site.cloud.endpoint.reset()
    assert rm("struck-1").code == 0
    assert stored(site, "struck-1") == []


def test_a_removal_that_was_killed_before_the_tombstone_is_completed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended(site, "killed-1")
    with monkeypatch.context() as patch:
        patch.setattr("cloudtrain.api.removal.bury", lambda *_: 1 / 0)
        assert rm("killed-1").code == 1

    assert stored(site, "killed-1") == []
    assert rm("killed-1").code == 0
    with pytest.raises(RunNotFound, match="was removed"):
        cloudtrain.find_run("killed-1")


def test_places_of_the_users_own_stay(site: Site) -> None:
    site.cloud.put("mine/step-1", b"mine")
    ended(site, "own-1", checkpoints={"uri": f"{root(site)}/mine/"})
    assert rm("own-1").code == 0
    assert stored(site, "own-1") == []
    contents = site.cloud.objects("mine/") if site.provider == "aws" else site.cloud.blobs("mine/")
    assert list(contents) == ["mine/step-1"]


def test_what_a_storage_with_versions_keeps_is_said(site: Site) -> None:
    ended(site, "kept-1")
    if site.provider == "aws":
        s3 = site.cloud.client("s3", direct=True)
        on = {"Status": "Enabled"}
        s3.put_bucket_versioning(Bucket=site.cloud.bucket, VersioningConfiguration=on)
    else:
        site.cloud.account.keeps_deleted = True
    assert "keeps 2 deleted files or versions, and bills them" in rm("kept-1").err
    assert stored(site, "kept-1") == []
