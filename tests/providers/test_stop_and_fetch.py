"""Faults at either cloud while a run is fetched or read, and answers that are not its own.

A fetch brings everything or nothing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudtrain.api.lookup import find_run
from cloudtrain.errors import CloudError, StorageError
from tests.fakes.messages import Call
from tests.providers.faults import calls_by_operation, complaints
from tests.providers.sites import ALWAYS, Site
from tests.support.samples import events_of

pytestmark = [
    pytest.mark.once,
    pytest.mark.usefixtures("site_folder"),
]


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """These jobs never end by themselves, so do not wait for that."""
    monkeypatch.setattr("cloudtrain.providers.aws.status.TAG_DELAY_SECONDS", 0)
    monkeypatch.setattr("cloudtrain.api.run.RETRY_SECONDS", 0.01)


def test_an_unreadable_log_is_reported_once_and_its_recovery_once(site: Site) -> None:
    run = site.submit("note-1")
    site.write_log(run.id, 0, "[rank 0] hello")
    for is_denied in (True, True, False, False):
        site.cloud.endpoint.reset()
        if is_denied:
            site.cloud.endpoint.fault("denied", *site.observing[-1], times=ALWAYS)
            site.cloud.endpoint.fault("denied", *site.observing[-2], times=ALWAYS)
        site.reconnect()
        find_run(run.id).status()
    events = [event for event in events_of(run.folder) if event["type"] == "log_unread"]
    assert [event["reason"] != "" for event in events] == [True, False]


def test_lines_that_are_here_are_shown_before_what_cannot_be_read_is_reported(site: Site) -> None:
    run = site.submit("here-1")
    site.write_log(run.id, 0, "[rank 0] hello")
    run.status()
    site.cloud.endpoint.fault("denied", *site.calls["observe"], times=ALWAYS)
    shown: list[str] = []
    with pytest.raises(CloudError):
        # This run has not called the service a moment ago.
        shown.extend(line.text for line in find_run(run.id).logs())
    assert shown == ["hello"]


READ = {"aws": ("s3", "GetObject"), "azure": ("blob", "GetBlob")}


@pytest.mark.usefixtures("clock")
def test_a_fetch_that_was_cut_short_continues(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudtrain.providers.shared.transfers.AT_ONCE", 1)
    run = site.submit("short-1")
    files = {f"step-{number}/weights": f"{number}" * number for number in range(1, 7)}
    for name, text in files.items():
        site.cloud.put(f"cloudtrain/runs/{run.id}/checkpoints/{name}", text.encode())

    site.start_job(run.id)
    site.finish_job(run.id)
    run.wait()

    endpoint = site.cloud.endpoint
    endpoint.reset()
    endpoint.fault("denied", *READ[site.provider], nth=4, times=ALWAYS)
    target = tmp_path / "back"
    with pytest.raises(CloudError, match="step-4") as failed:
        run.fetch(target, checkpoints=True)

    assert "the same command continues" in (failed.value.hint or "")
    assert not target.exists()

    (draft,) = tmp_path.glob(".back.*")
    (draft / "checkpoints" / "step-6").mkdir(exist_ok=True)
    (draft / "checkpoints" / "step-6" / "weights").write_text("torn")
    (draft / "checkpoints" / ".weights.0123abcd.part").write_text("of a killed fetch")
    endpoint.reset()
    run.fetch(target, checkpoints=True)
    calls = [(call.service, call.operation) for call in endpoint.calls]
    assert calls.count(READ[site.provider]) == 3
    assert {
        path.relative_to(target / "checkpoints").as_posix(): path.read_text()
        for path in (target / "checkpoints").rglob("*")
        if path.is_file()
    } == files
    assert list(tmp_path.glob(".back.*")) == []


def test_a_fetch_writes_nothing_through_a_link_in_the_place_of_its_draft(
    site: Site, tmp_path: Path
) -> None:
    run = site.submit("link-1")
    site.cloud.put(f"cloudtrain/runs/{run.id}/checkpoints/step-1/weights", b"1")
    site.start_job(run.id)
    site.finish_job(run.id)
    run.wait()

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / f".back.{run.id}.part").symlink_to(elsewhere)
    with pytest.raises(StorageError, match="File exists"):
        run.fetch(tmp_path / "back", checkpoints=True)

    assert list(elsewhere.iterdir()) == []


# An answer that is not the cloud's is named as such, and tried again, whichever call it answers.

UNHARMED = {
    # The job is looked up, and found.
    *(Call("sagemaker", f"Create{kind}Job") for kind in ("Training", "HyperParameterTuning")),
    Call("batch", "SubmitServiceJob"),
    Call("arm", "PutJob"),
    # The source is stored, and found at the next attempt.
    Call("arm", "PutCode"),
    # Their answers say nothing.
    *(Call("sagemaker", f"Stop{kind}Job") for kind in ("Training", "HyperParameterTuning")),
    Call("batch", "TerminateServiceJob"),
    Call("s3", "PutObject"),
    # Their purpose is met as far as possible.
    Call("s3", "AbortMultipartUpload"),
    Call("ecr", "GetDownloadUrlForLayer"),
    Call("batch", "GetJobQueueSnapshot"),
}
"""Calls whose answers are optional for an operation."""


@pytest.mark.usefixtures("clock", "small_parts")
def test_every_call_names_an_answer_that_cannot_be_read(
    site: Site, thorough: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    site.reconnect()
    operations = site.operations()
    calls = calls_by_operation(site.cloud.endpoint, operations)
    assert len(calls) > 20
    endpoint = site.cloud.endpoint
    problems = "\n".join(complaints(endpoint, operations, calls, UNHARMED, thorough))
    assert not problems, problems
    site.reconnect()
