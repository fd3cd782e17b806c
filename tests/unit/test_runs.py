"""Run folders appear whole, and a submit knows the rehearsals of its job."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any, Literal

import pytest

from cloudtrain.cli.plan_view import overview
from cloudtrain.errors import RunExists, RunNotFound, StorageError
from cloudtrain.planning.plan import Plan
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.store import RunStore
from cloudtrain.submission import jobs as api
from cloudtrain.submission.rehearsals import FILE, record_rehearsal
from cloudtrain.submission.submit import documents_of
from cloudtrain_launcher.events import Ended
from tests.support.samples import BORN, as_json, born, event, events_of

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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a", "'a' fits 2 runs: a-1, a-2"),
        ("zzz", "there is no run 'zzz'"),
        ("a-3", "did you mean"),
        ("", "there is no run ''"),
        ("../a-1", "there is no run"),
        (".", "there is no run"),
    ],
)
def test_a_name_that_is_not_one_run_is_refused(store: RunStore, name: str, message: str) -> None:
    born(store, "a-1"), born(store, "a-2")
    with pytest.raises(RunNotFound, match=message):
        store.open(name)


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


def _append_many(path: str, writer: int) -> None:
    folder = RunFolder(Path(path))
    for n in range(50):
        folder.append(event("x", writer=writer, n=n, filler="é" * (n * 37 % 3000)))


def test_events_of_four_processes_at_once_are_all_there_and_whole(store: RunStore) -> None:
    folder = store.create("a-1", {})
    context = multiprocessing.get_context("spawn")
    writers = [
        context.Process(target=_append_many, args=(str(folder.path), writer)) for writer in range(4)
    ]
    for process in writers:
        process.start()
    for process in writers:
        process.join()
    written = [(event["writer"], event["n"]) for event in events_of(folder)]
    assert sorted(written) == [(writer, n) for writer in range(4) for n in range(50)]
    assert [n for writer, n in written if writer == 0] == list(range(50))


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
