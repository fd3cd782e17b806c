"""The list of runs comes from a cache that is made anew whenever it is not what the folders say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cloudtrain.runs.fold import fold
from cloudtrain.runs.index import summaries
from cloudtrain.runs.store import RunStore
from tests.support.samples import born

ENDED = {"type": "ended", "time": 109.0, "state": "succeeded"}


def index_of(store: RunStore) -> Path:
    return store.data_dir / "index.jsonl"


def listed(store: RunStore) -> list[tuple[str, str]]:
    return [(summary["run"], summary["state"]) for summary in summaries(store)]


def test_the_list_shows_every_run_the_newest_first(store: RunStore) -> None:
    (
        born(store, "a-1", ENDED, created=1),
        born(store, "b-2", created=3),
        born(store, "c-3", ENDED, created=2),
    )
    assert listed(store) == [("b-2", "submitting"), ("c-3", "succeeded"), ("a-1", "succeeded")]


def test_only_runs_that_have_ended_are_remembered(store: RunStore) -> None:
    born(store, "a-1", ENDED), born(store, "b-2")
    listed(store)
    assert [json.loads(line)["run"] for line in index_of(store).read_text().splitlines()] == ["a-1"]


def test_a_remembered_run_is_not_read_again(store: RunStore) -> None:
    folder = born(store, "a-1", ENDED)
    listed(store)
    folder.events_file.unlink()
    assert listed(store) == [("a-1", "succeeded")]


@pytest.mark.parametrize(
    "damage",
    [
        b"{\n",
        b"\xff\n",
        b"\n\n",
        b"3\n",
        b"{}\n",
        b'{"run": "a-1"}\n',
        b"torn",
        b"null\n",
        b'{"run": []}\n',
    ],
    ids=[
        "open brace",
        "not UTF-8",
        "empty lines",
        "number",
        "empty object",
        "id alone",
        "torn",
        "null",
        "id is a list",
    ],
)
def test_a_damaged_index_heals_itself(store: RunStore, damage: bytes) -> None:
    born(store, "a-1", ENDED)
    before = listed(store)
    index_of(store).write_bytes(damage + index_of(store).read_bytes())
    assert [listed(store), listed(store)] == [before, before]


def test_a_new_run_under_the_id_of_a_removed_one_is_not_taken_for_it(store: RunStore) -> None:
    folder = born(store, "a-1", ENDED)
    listed(store)
    folder.path.rename(store.data_dir / "elsewhere")
    born(store, "a-1")
    assert listed(store) == [("a-1", "submitting")]


def test_an_index_that_cannot_be_written_is_done_without(store: RunStore) -> None:
    born(store, "a-1", ENDED)
    index_of(store).mkdir()
    assert listed(store) == [("a-1", "succeeded")]


CREATING = {"type": "creating", "time": 101.0}
NOT_STARTED = {"type": "ended", "time": 109.0, "state": "failed", "reason": "nothing was started"}
SUBMITTED = {"type": "submitted", "time": 120.0, "ref": {"name": "a-1"}}


def test_a_run_whose_job_may_exist_is_read_again(store: RunStore) -> None:
    born(store, "a-1", CREATING, NOT_STARTED)
    born(store, "b-2", NOT_STARTED, created=1)
    assert listed(store) == [("a-1", "failed"), ("b-2", "failed")]
    remembered = [json.loads(line)["run"] for line in index_of(store).read_text().splitlines()]
    assert remembered == ["b-2"]


def test_a_run_goes_on_when_its_job_is_found_after_all(store: RunStore) -> None:
    folder = born(store, "a-1", CREATING, NOT_STARTED, SUBMITTED)
    state = fold("a-1", folder.each_event())
    assert (state.state, state.reason, state.ended, state.may_have_started) == (
        "pending",
        "",
        0,
        False,
    )


def test_the_list_has_the_cause_of_a_failed_run(store: RunStore) -> None:
    error = {"rank": 3, "node": 1, "time": 9.0, "message": "was killed by SIGSEGV"}
    born(store, "a-1", {**ENDED, "state": "failed", "error": {**error, "exception": "SIGSEGV"}})
    assert [summary["cause"] for summary in summaries(store)] == [
        "rank 3 (node 1) was killed by SIGSEGV"
    ]
