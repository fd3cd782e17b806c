"""A disk that refuses to be written keeps nobody from seeing, following or stopping a run."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import cloudtrain
from cloudtrain.errors import CloudError, CloudtrainError, Outcome, StorageError
from cloudtrain.providers.local.provider import LocalProvider
from cloudtrain.providers.shared.idempotent_create import Attempt, create
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.logs import LogPart, Observation
from cloudtrain.runs.state import RunState
from cloudtrain.runs.store import RunStore
from cloudtrain.submission import monitor
from cloudtrain_launcher.events import Ended, Event, Phase, StopRequested, Submitting
from tests.support.in_process import call
from tests.support.samples import write_events

BORN = {
    "type": "submitting",
    "time": 1.0,
    "name": "digits",
    "provider": "local",
    "contract": "plain",
    "nodes": 1,
    "processes": 1,
}
FULL = "No space left on device"


class Cloud(LocalProvider):
    """A provider that tells events from a list, one at each look, and lines of a log."""

    def __init__(self, *events: Event) -> None:
        self.events = [*events]
        self.stops = 0

    def poll_seconds(self, run: RunFolder) -> float:
        return 0.0

    def observe(self, run: RunFolder, state: RunState) -> Iterable[Observation]:
        if self.events:
            yield Observation(events=[self.events.pop(0)])
        yield Observation(
            lines=lambda _: [
                LogPart(node=0, lines=[(1.0, b"a line")], stream="log", position={"at": 1})
            ]
        )

    def stop(self, run: RunFolder, state: RunState, record: Any) -> bool:
        record(Observation(events=[StopRequested(time=2.0, reason="stop was asked")]))
        self.stops += 1
        return True


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> cloudtrain.Run:
    """A run in a data folder on a disk that is full from now on."""
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(tmp_path / "data"))
    folder = RunStore(tmp_path / "data").create(
        "digits-aaaa", {"plan.json": '{"provider": "local"}'}
    )
    write_events(folder, BORN, {"type": "submitted", "time": 1.5, "ref": {}})

    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, FULL)

    monkeypatch.setattr(os, "write", refuse)
    monkeypatch.setattr("cloudtrain.runs.history.acquire", refuse)
    return cloudtrain.Run(folder)


def use(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    monkeypatch.setattr(monitor, "get_provider", lambda _: cloud)
    return cloud


def test_status_and_list_show_what_the_provider_says(
    run: cloudtrain.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(Cloud(Phase(time=2.0, phase="Downloading", since=2.0)), monkeypatch)
    result = call("status", run.id)
    assert result.code == 0, result.err
    assert "Downloading" in result.out
    assert f"note: what was seen is not kept: {run.folder.events_file}: {FULL}" in result.err
    use(Cloud(Phase(time=2.0, phase="Downloading", since=2.0)), monkeypatch)
    listed = call("list")
    assert (listed.code, "damaged" in listed.out) == (0, False), listed.err


def test_a_run_is_followed_to_its_end(run: cloudtrain.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    use(
        Cloud(Phase(time=2.0, phase="a", since=2.0), Ended(time=3.0, state="succeeded")),
        monkeypatch,
    )
    updates = list(run.watch(timeout=60))
    assert updates[-1].state.state == "succeeded"
    assert any(FULL in update.last_error for update in updates)
    assert not any(isinstance(event, Ended) for event in run.folder.events())


def test_a_run_is_stopped(run: cloudtrain.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    cloud = use(Cloud(), monkeypatch)
    run.request_stop(run.cached_status())
    assert cloud.stops == 1


def test_what_was_not_kept_is_told_again_once_there_is_space(
    run: cloudtrain.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(Cloud(Ended(time=3.0, state="succeeded")), monkeypatch)
    assert run.status().state == "succeeded"
    monkeypatch.undo()
    use(Cloud(Ended(time=3.0, state="succeeded")), monkeypatch)
    run_again = cloudtrain.Run(run.folder)
    assert not run_again.cached_status().has_ended
    assert run_again.status().state == "succeeded"
    assert run_again.unstored == ""
    assert any(isinstance(event, Ended) for event in run.folder.events())


def test_a_submit_whose_start_cannot_be_written_down_says_that_the_job_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("print(1)\n")
    (tmp_path / "job.yaml").write_text("entrypoint: train.py\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(tmp_path.parent / f"{tmp_path.name}-data"))
    append = RunFolder.append

    def refuse(folder: RunFolder, *events: Event, durable: bool = False) -> None:
        if not isinstance(events[0], Submitting):
            raise StorageError(f"{folder.events_file}: {FULL}")
        append(folder, *events, durable=durable)

    monkeypatch.setattr(RunFolder, "append", refuse)
    result = call("submit", "--run-id", "digits-full")
    assert result.code == 0, result.err
    assert "the job was started, and goes on; " in result.err
    assert "digits-full" in result.out + result.err


@pytest.mark.parametrize("sent_before", [0, 1])
def test_a_disk_that_fills_up_between_two_requests_leaves_the_outcome_unknown(
    sent_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cloudtrain.providers.shared.idempotent_create.BACKOFF_SECONDS", 0)
    records = 0

    def record(observation: Observation) -> None:
        nonlocal records
        records += 1
        if records > sent_before:
            raise StorageError(FULL)

    def send(attempt: Attempt) -> dict[str, Any]:
        attempt.sending()
        raise CloudError("the answer is lost", transient=True)

    with pytest.raises(CloudtrainError) as caught:
        create("digits", send, lambda: None, record=record, attempts=3, name_taken_codes=())
    assert caught.value.outcome is (Outcome.UNKNOWN if sent_before else Outcome.REFUSED)
    assert FULL in caught.value.message
