"""Run folders appear whole, events are only added, and they add up to the run's state."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pytest

from cloudtrain.errors import RunExists, RunNotFound, StorageError
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.record import RunRecord
from cloudtrain.runs.store import RunStore
from tests.support.events import as_json, event, events_of
from tests.support.samples import BORN, born


def test_a_new_run_holds_its_documents(store: RunStore) -> None:
    folder = store.create("a-1", {"plan.json": '{"x": 1}', "spec.yaml": "é"})
    assert (folder.document("plan.json"), (folder.path / "spec.yaml").read_text("utf-8")) == (
        {"x": 1},
        "é",
    )


def test_a_taken_id_is_refused(store: RunStore) -> None:
    store.create("a-1", {"plan.json": "1"})
    with pytest.raises(RunExists, match="run a-1 exists already; nothing was started"):
        store.create("a-1", {"plan.json": "2"})


def test_a_run_that_cannot_be_written_leaves_nothing(store: RunStore) -> None:
    with pytest.raises(StorageError):
        store.create("a-1", {"plan.json": "1", "no/such/folder": "2"})
    assert list(store.runs_dir.iterdir()) == []


def test_a_document_that_was_damaged_is_reported(store: RunStore) -> None:
    folder = store.create("a-1", {"plan.json": "{"})
    with pytest.raises(StorageError, match=r"run a-1: plan\.json cannot be read"):
        folder.document("plan.json")


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


def test_events_come_back_in_the_order_they_were_added(store: RunStore) -> None:
    folder = store.create("a-1", {})
    folder.append(event("x", n=1), event("x", n=2))
    folder.append(event("x", n=3), durable=True)
    assert [entry["n"] for entry in events_of(folder)] == [1, 2, 3]


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


def test_what_a_plan_may_lack_is_empty_and_what_it_must_say_is_missed_by_its_name(
    store: RunStore,
) -> None:
    record = RunRecord(
        store.create("a-1", {"plan.json": '{"spec": [], "facts": {"source": null}, "host": null}'})
    )
    assert (record.spec, record.trial, record.source_digest, record.stop_after_seconds) == (
        {},
        {},
        "",
        0,
    )
    assert not record.is_rehearsal
    with pytest.raises(
        StorageError, match=r"run a-1: plan.json cannot be read: it does not say spec\.name"
    ):
        _ = record.name
    with pytest.raises(StorageError, match=r"it does not say facts\.source"):
        record.plan()
