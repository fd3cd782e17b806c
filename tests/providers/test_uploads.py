"""Inputs of this machine in the storage of both clouds: sent once, by content, and complete."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

import cloudtrain
from cloudtrain.api.run import Run
from cloudtrain.errors import CloudError, SourceError
from cloudtrain.planning.plan import UNREAD, Plan
from tests.providers.sites import ALWAYS, Site
from tests.support.in_process import call as in_process
from tests.support.samples import write

pytestmark = pytest.mark.once

SENT = {"aws": ("s3", "PutObject"), "azure": ("blob", "PutBlob")}
LISTED = {"aws": ("s3", "ListObjectsV2"), "azure": ("blob", "ListBlobs")}
FILES = {"a": "one", "b/c d": "two", ".hidden": "", "b/ü": "three"}


@pytest.fixture
def data(site: Site, site_folder: Path) -> Path:
    """A folder of data beside the program, with contents of this test alone."""
    site.reconnect()
    write(site_folder, {f"data/{name}": f"{text} {site_folder}" for name, text in FILES.items()})
    return site_folder / "data"


def plan_of(site: Site, place: str = "./data", **fields: Any) -> Plan:
    job = cloudtrain.load({**site.job, "inputs": {"train": place}, **fields})
    return cloudtrain.plan(job, site.provider)


def submit(site: Site, place: str = "./data", **fields: Any) -> Run:
    return cloudtrain.submit(plan_of(site, place, **fields))


def stored(site: Site, plan: Plan) -> dict[str, bytes]:
    """Return what is stored of an input, by path; its manifest as `.json`."""
    prefix = f"cloudtrain/inputs/{plan.context.uploads['train'].digest}"
    contents = site.cloud.objects(prefix) if site.provider == "aws" else site.cloud.blobs(prefix)
    return {name.removeprefix(prefix): content for name, content in contents.items()}


def sent(site: Site) -> int:
    """Return the number of objects that were sent."""
    calls = [(call.service, call.operation) for call in site.cloud.endpoint.calls]
    return calls.count(SENT[site.provider])


def contents(folder: Path) -> dict[str, bytes]:
    return {
        f"/{path.relative_to(folder).as_posix()}": path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def rows(stored_files: dict[str, bytes]) -> list[list[Any]]:
    """Return the rows of the manifest that the stored files would have."""
    return sorted(
        [name[1:], len(content), hashlib.sha256(content).hexdigest()]
        for name, content in stored_files.items()
        if name != ".json"
    )


def test_a_folder_is_sent_once_and_the_manifest_last(site: Site, data: Path) -> None:
    plan = plan_of(site)
    cloudtrain.submit(plan)
    there = stored(site, plan)
    manifest = json.loads(there.pop(".json"))
    assert there == contents(data)
    assert sorted(manifest["files"]) == rows(there)
    digest = plan.context.uploads["train"].digest
    assert f"cloudtrain/inputs/{digest}/" in json.dumps(plan.request.document)

    site.cloud.endpoint.reset()
    submit(site)
    calls = [(call.service, call.operation) for call in site.cloud.endpoint.calls]
    assert calls.count(LISTED[site.provider]) == 1
    assert sent(site) <= 3  # source, and its job document or its marker
    assert stored(site, plan).keys() == {*there, ".json"}


def test_one_file_is_an_input_too(site: Site, data: Path) -> None:
    plan = plan_of(site, "./data/b/c d")
    cloudtrain.submit(plan)
    assert stored(site, plan)["/c d"] == (data / "b" / "c d").read_bytes()
    uri = f"cloudtrain/inputs/{plan.context.uploads['train'].digest}/c d"
    assert f'{uri}"' in json.dumps(plan.request.document)


@pytest.mark.parametrize("nth", [1, 3, 5], ids=["first", "third", "manifest"])
def test_what_a_failed_upload_has_sent_is_not_sent_again(site: Site, data: Path, nth: int) -> None:
    plan = plan_of(site)
    site.cloud.endpoint.fault("denied", *SENT[site.provider], nth=nth, times=ALWAYS)
    with pytest.raises(CloudError):
        cloudtrain.submit(plan)
    before = stored(site, plan)
    assert ".json" not in before
    site.cloud.endpoint.reset()
    submit(site)
    after = stored(site, plan)
    assert rows(after) == rows(contents(data))
    files = len(FILES) - len(before) + 1
    assert files <= sent(site) <= files + 3


def test_a_large_file_arrives_whole(site: Site, data: Path) -> None:
    content = os.urandom(9_000_001)
    (data / "a").write_bytes(content)
    plan = plan_of(site)
    reports: list[tuple[int, int]] = []
    cloudtrain.submit(plan, sending=lambda sent, total: reports.append((sent, total)))
    assert stored(site, plan)["/a"] == content
    size = plan.context.uploads["train"].bytes
    assert (size, size) in reports
    if site.provider == "aws":
        assert ("s3", "CreateMultipartUpload") in site.cloud.endpoint.calls


def test_a_file_that_has_gone_from_the_storage_is_sent_again(site: Site, data: Path) -> None:
    plan = plan_of(site)
    cloudtrain.submit(plan)
    name = f"cloudtrain/inputs/{plan.context.uploads['train'].digest}/a"
    site.cloud.put(name, b"torn")
    submit(site)
    assert stored(site, plan)["/a"] == (data / "a").read_bytes()


def test_data_that_changes_after_the_plan_is_refused(site: Site, data: Path) -> None:
    plan = plan_of(site)
    (data / "a").write_text("changed")
    with pytest.raises(SourceError, match="changed after it was planned"):
        cloudtrain.submit(plan)
    assert stored(site, plan) == {}


def test_a_large_input_is_read_by_submit_alone(
    site: Site, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudtrain.api.context.MAX_UNREAD_BYTES", 10)
    plan = plan_of(site)
    item = plan.context.uploads["train"]
    assert (item.digest, item.files) == (UNREAD, len(FILES))
    assert UNREAD in json.dumps(plan.request.document)
    run = cloudtrain.submit(plan)
    request = json.loads((run.folder.path / "request.json").read_text())
    assert UNREAD not in json.dumps(request)


def test_the_first_upload_is_asked_for_and_a_plan_names_it(site: Site, data: Path) -> None:
    (data.parent / "job.yaml").write_text(json.dumps({**site.job, "inputs": {"train": "data"}}))
    words = ("--provider", site.provider)
    assert "will be uploaded; stored for 0.00 USD a month" in in_process("plan", *words).out
    refused = in_process("submit", "--detach", *words)
    assert refused.code != 0
    assert "inputs.train would be uploaded for the first time" in refused.err
    assert "--yes" in refused.err
    assert sent(site) == 0
    started = in_process("submit", "--detach", "--yes", *words)
    assert started.code == 0, started.err
    run = started.out.strip()
    assert f"uploaded by {run} on " in in_process("plan", *words).out
    (data / "a").write_text("changed")
    assert "will be uploaded" in in_process("plan", *words).out
    assert in_process("submit", "--detach", *words).code == 0


def test_a_bucket_of_another_account_gets_no_data(
    site: Site, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A datastore of Azure ML belongs to its workspace."""
    if site.provider == "aws":
        monkeypatch.setattr(site.cloud.account, "foreign_buckets", {site.cloud.bucket})
        with pytest.raises(CloudError):
            submit(site)
        assert sent(site) == 0
