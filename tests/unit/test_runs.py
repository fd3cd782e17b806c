"""Run folders appear whole, on full disks too; a submit knows its job's rehearsals."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import pytest

import cloudtrain
from cloudtrain.api import jobs as api
from cloudtrain.api import monitor
from cloudtrain.api.rehearsals import FILE, record_rehearsal
from cloudtrain.api.submit import documents_of
from cloudtrain.cli.plan_view import overview
from cloudtrain.errors import (
    CloudError,
    CloudtrainError,
    Outcome,
    RunExists,
    RunNotFound,
    StorageError,
)
from cloudtrain.planning.plan import Plan
from cloudtrain.providers.local.provider import LocalProvider
from cloudtrain.providers.shared.idempotent_create import Attempt, create
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.logs import LogPart, Observation
from cloudtrain.runs.state import RunState
from cloudtrain.runs.store import RunStore
from cloudtrain_wire.events import Ended, Event, Phase, StopRequested, Submitting
from tests.support.in_process import call
from tests.support.samples import BORN, as_json, born, event, events_of, write_events
from tests.support.waiting import HANG_SECONDS

# Run folders appear whole, events are only added, and they add up to the run's state.


def test_a_taken_id_is_refused(store: RunStore) -> None:
    store.create("a-1", {"plan.json": "1"})
    with pytest.raises(RunExists, match="run a-1 exists already; nothing was started"):
        store.create("a-1", {"plan.json": "2"})


def test_a_run_that_cannot_be_written_leaves_nothing(store: RunStore) -> None:
    with pytest.raises(StorageError):
        store.create("a-1", {"plan.json": "1", "no/such/folder": "2"})
    assert list(store.runs_dir.iterdir()) == []


def test_a_run_is_found_by_its_id_its_beginning_and_last(store: RunStore) -> None:
    for run_id, seconds in (("a-1", 2), ("b-2", 3), ("ab-3", 1)):
        os.utime(born(store, run_id).path / "plan.json", (seconds, seconds))
    assert [store.open(name).run_id for name in ("a-1", "b", "ab", "last")] == [
        "a-1",
        "b-2",
        "ab-3",
        "b-2",
    ]


def test_a_line_that_is_not_whole_yet_is_not_read_yet(store: RunStore) -> None:
    folder = store.create("a-1", {})
    folder.append(event("x"))
    with folder.events_file.open("ab") as file:
        file.write(b'{"type": "y"')
    first, offset = folder.events_since(0)
    with folder.events_file.open("ab") as file:
        file.write(b"}\n")
    second, _ = folder.events_since(offset)
    assert [as_json(event) for event in first] == [{"type": "x"}]
    assert [as_json(event) for event in second] == [{"type": "y"}]


def test_a_torn_line_does_not_swallow_the_next_event(store: RunStore) -> None:
    folder = store.create("a-1", {})
    folder.events_file.write_bytes(b'{"type": "torn", "a')
    folder.append(event("whole"))
    assert events_of(folder) == [{"type": "whole"}]


@pytest.mark.parametrize("text", ["two\nlines", "\u2028", "\r", "\udcff", "é", "\0"])
def test_any_text_survives_in_an_event(store: RunStore, text: str) -> None:
    folder = store.create("a-1", {})
    folder.append(event("x", text=text))
    assert events_of(folder) == [{"type": "x", "text": text}]


APPEND_MANY = """
import sys
from pathlib import Path
from cloudtrain.runs.folder import RunFolder
from cloudtrain_wire.events import from_json

folder = RunFolder(Path(sys.argv[1]))
for n in range(50):
    fields = {"writer": int(sys.argv[2]), "n": n, "filler": "é" * (n * 37 % 3000)}
    folder.append(from_json({"type": "x", **fields}))
"""


def test_events_of_four_processes_at_once_are_all_there_and_whole(store: RunStore) -> None:
    folder = store.create("a-1", {})
    program = [sys.executable, "-c", APPEND_MANY, str(folder.path)]
    writers = [subprocess.Popen([*program, str(writer)]) for writer in range(4)]
    assert [process.wait(HANG_SECONDS) for process in writers] == [0] * 4
    written = [(event["writer"], event["n"]) for event in events_of(folder)]
    assert sorted(written) == [(writer, n) for writer in range(4) for n in range(50)]
    assert [n for writer, n in written if writer == 0] == list(range(50))


def test_an_empty_name_is_no_run(store: RunStore) -> None:
    born(store, "a-1")
    with pytest.raises(RunNotFound):
        store.open("")


def test_a_run_of_another_machine_is_meant_by_its_whole_id_only(store: RunStore) -> None:
    born(store, "digits-mine")
    adopted = store.create("digits-theirs", {"plan.json": '{"adopted": 1.0}'}, event(**BORN))
    os.utime(adopted.path / "plan.json", (2e9, 2e9))
    names = ("last", "digits", "digits-m", "digits-theirs")
    assert [store.open(name).run_id for name in names] == [*["digits-mine"] * 3, "digits-theirs"]
    with pytest.raises(RunNotFound, match="there is no run"):
        store.open("digits-t")


# A submit knows the rehearsals of its job: the one with the same request, or the changes since.

JOB: dict[str, Any] = {
    "name": "tiny",
    "entrypoint": "train.py",
    "args": {"epochs": 3},
    "limits": {"max_runtime": "1 h"},
    "resources": {"instance": {"aws": "ml.m5.large", "azure": "Standard_D4s_v3"}},
    "image": {
        "aws": "123456789012.dkr.ecr.us-east-1.amazonaws.com/x:1",
        "azure": "x.azurecr.io/x:1",
    },
    "aws": {
        "region": "us-east-1",
        "role": "arn:aws:iam::123456789012:role/train",
        "bucket": "bucket-1",
    },
    "azure": {
        "subscription": "9" * 8 + "-1111-2222-3333-" + "4" * 12,
        "resource_group": "rg",
        "workspace": "ws",
    },
}
ACCOUNTS = ("aws", "azure")
pytestmark = pytest.mark.usefixtures("folder")


def plan(
    provider: str, *, leave_out: tuple[str, ...] = (), as_: str | None = None, **changes: Any
) -> Plan:
    values = {key: value for key, value in (JOB | changes).items() if key not in leave_out}
    return api.plan(api.load(values), None if as_ else provider, as_=as_)


def rehearse(
    provider: str, state: Literal["succeeded", "failed"] = "succeeded", **changes: Any
) -> str:
    """A rehearsal as a submit records it, without the processes; its run id."""
    made = plan(provider, as_=provider, **changes)
    request = api.render(made)
    record_rehearsal(made, request)
    run = RunStore(Path(made.context.data_dir)).create(made.run_id, documents_of(made, request))
    run.append(Ended(time=time.time(), state=state))
    return made.run_id


def tags(made: Plan) -> str:
    return json.dumps(dict(api.render(made).document))


@pytest.mark.parametrize("provider", ACCOUNTS)
def test_the_same_request_is_said_to_be_rehearsed_and_bears_a_tag(provider: str) -> None:
    run = rehearse(provider)
    made = plan(provider)
    assert made.context.rehearsal is not None
    assert (made.context.rehearsal.run, made.context.rehearsal.changes) == (run, ())
    assert f"by {run}: the same request" in overview(made)
    assert "cloudtrain-rehearsed" in tags(made)


@pytest.mark.parametrize("provider", ACCOUNTS)
def test_settings_of_the_account_that_the_rehearsal_lacked_are_no_difference(provider: str) -> None:
    run = rehearse(provider, leave_out=("aws", "azure"), aws={"region": "us-east-1"})
    made = plan(provider)
    assert made.context.rehearsal is not None
    assert (made.context.rehearsal.run, made.context.rehearsal.changes) == (run, ())


@pytest.mark.parametrize("provider", ACCOUNTS)
def test_a_request_that_has_changed_says_in_what_and_bears_no_tag(provider: str) -> None:
    rehearse(provider)
    made = plan(provider, args={"epochs": 5})
    assert made.context.rehearsal is not None
    assert "job.values.epochs: 3 → 5" in made.context.rehearsal.changes
    assert "argv" not in str(made.context.rehearsal.changes), "that would say the same again"
    assert "but changed since: " in overview(made)
    assert "cloudtrain-rehearsed" not in tags(made)


def test_another_source_is_a_change_though_the_request_only_names_it(folder: Path) -> None:
    rehearse("aws")
    (folder / "train.py").write_text("print(2)\n")
    made = plan("aws")
    assert made.context.rehearsal is not None
    assert [text[:10] for text in made.context.rehearsal.changes] == ["the source"]


@pytest.mark.parametrize(
    "changes", [{"state": "failed"}, {"name": "other"}], ids=["failed", "of another job"]
)
def test_only_a_rehearsal_of_this_job_that_succeeded_counts(changes: dict[str, Any]) -> None:
    rehearse("aws", **changes)
    assert plan("aws").context.rehearsal is None


def test_damaged_lines_and_removed_runs_are_passed_over(folder: Path) -> None:
    run = rehearse("aws")
    ledger = folder.parent / "data" / FILE
    text = ledger.read_text()
    ledger.write_bytes(
        b'\n{"name": "tiny", "provider": "aws"\n[]\n' + text.replace(run, "gone-1").encode() + b"\n"
    )
    assert plan("aws").context.rehearsal is None
    ledger.write_bytes(b"\xff\n")
    assert plan("aws").context.rehearsal is None


SUBMITTING = {
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
        record(Observation(events=[StopRequested(time=2.0, reason="stop requested")]))
        self.stops += 1
        return True


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> cloudtrain.Run:
    """A run in a data folder on a disk that is full from now on."""
    monkeypatch.setenv("CLOUDTRAIN_DATA_DIR", str(tmp_path / "data"))
    folder = RunStore(tmp_path / "data").create(
        "digits-aaaa", {"plan.json": '{"provider": "local"}'}
    )
    write_events(folder, SUBMITTING, {"type": "submitted", "time": 1.5, "ref": {}})

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
    updates = list(run.watch(timeout=HANG_SECONDS))
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
    (tmp_path / "job.yaml").write_text('launcher: none\nentrypoint: "true"\n')
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
