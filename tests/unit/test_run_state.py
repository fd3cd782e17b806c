"""Runs add up from their events, and a cache lists them."""

from __future__ import annotations

import errno
import itertools
import json
import os
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.runs.fold import fold
from cloudtrain.runs.state import KEPT_POINTS, RunState
from cloudtrain.runs.store import RunStore, summaries
from cloudtrain_wire.events import EVENT_TYPES
from tests.support.samples import BORN, born, fold_json

# The state of a run is the sum of its events: each counts once, none brings back what has ended.

SUBMITTED = {"type": "submitted", "time": 101.0, "ref": {"pid": 7}}
STARTED = {"type": "node_started", "time": 102.0, "node": 0, "rank": -1, "seq": 1}
STOPPING = {"type": "stop_requested", "time": 105.0, "reason": "stop requested"}


def ended(state: str, **more: Any) -> dict[str, Any]:
    return {"type": "ended", "time": 109.0, "state": state, **more}


def state_of(*events: dict[str, Any]) -> RunState:
    return fold_json("x", [BORN, *events])


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ((SUBMITTED,), "pending"),
        ((SUBMITTED, STARTED), "running"),
        ((STARTED, SUBMITTED), "running"),
        ((STARTED, STOPPING), "stopping"),
        ((STOPPING, STARTED), "stopping"),
        ((STARTED, ended("succeeded")), "succeeded"),
        ((STARTED, STOPPING, ended("stopped")), "stopped"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_run_moves_forward_only(events: tuple[dict[str, Any], ...], expected: str) -> None:
    assert state_of(*events).state == expected


@pytest.mark.parametrize("final", ["succeeded", "failed", "stopped"])
@pytest.mark.parametrize(
    "later", [SUBMITTED, STARTED, STOPPING, ended("failed", reason="late"), ended("succeeded")]
)
def test_the_end_is_never_left(final: str, later: dict[str, Any]) -> None:
    state = state_of(STARTED, ended(final, reason="first"), {**later, "time": 200.0})
    assert (state.state, state.reason, state.ended) == (final, "first", 109.0)


def test_an_event_met_twice_counts_once() -> None:
    point = {"type": "metrics", "node": 0, "rank": 0, "seq": 7, "step": 1, "values": {"loss": 1}}
    assert state_of(point, point, {**point, "seq": 8}).curves["loss"].count == 2


def test_folding_in_two_parts_is_folding_in_one() -> None:
    events = [
        BORN,
        SUBMITTED,
        STARTED,
        {"type": "metrics", "step": 1, "values": {"a": 1}},
        STARTED,
        ended("failed"),
    ]
    for cut in range(len(events)):
        assert fold_json("x", events[cut:], fold_json("x", events[:cut])) == fold_json("x", events)


def test_a_long_learning_curve_is_thinned_evenly_and_keeps_its_ends() -> None:
    events = (
        {"type": "metrics", "step": n, "values": {"ab"[n % 2]: n}} for n in range(20 * KEPT_POINTS)
    )
    curves = state_of(*events).curves
    for name, first in (("a", 0), ("b", 1)):
        values = curves[name].values
        gaps = {later - earlier for earlier, later in itertools.pairwise(values[:-1])}
        assert KEPT_POINTS / 2 <= len(values) <= KEPT_POINTS + 1
        assert len(gaps) == 1
        assert (values[0], values[-1]) == (first, 20 * KEPT_POINTS - 2 + first)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
FIELDS = (
    "time",
    "node",
    "rank",
    "seq",
    "step",
    "values",
    "attempt",
    "state",
    "error",
    "reason",
    "ref",
    "nodes",
    "name",
)


@given(
    st.lists(
        st.builds(
            lambda kind, fields: {"type": kind, **fields},
            st.sampled_from(sorted(EVENT_TYPES)),
            st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6),
        ),
        max_size=8,
    )
)
def test_no_event_whatever_breaks_the_fold(events: list[dict[str, Any]]) -> None:
    assert isinstance(fold_json("x", events).seconds(200.0), float)


def test_a_trial_that_has_ended_itself_says_how_until_a_restart_goes_on() -> None:
    reached = {
        "type": "rung_reached",
        "time": 103.0,
        "node": 0,
        "rank": -1,
        "report": 3,
        "value": None,
    }
    pruned = {**reached, "outcome": "pruned"}
    went_on = {**reached, "outcome": "goes_on"}
    assert state_of(STARTED).trial_outcome == ""
    state = state_of(STARTED, went_on, pruned, ended("succeeded"))
    assert (state.state, state.trial_outcome) == ("succeeded", "pruned")
    assert state.to_json()["trial_outcome"] == "pruned"
    assert state_of(STARTED, pruned, went_on).trial_outcome == ""


# The list of runs comes from a cache that is made anew whenever it is not what the folders say.

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
        b'["a-1"]\n',
        b'["a-1",\t"torn',
        b"]\n",
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
        "line with an id alone",
        "line cut off",
        "bracket",
    ],
)
def test_a_damaged_index_heals_itself(store: RunStore, damage: bytes) -> None:
    born(store, "a-1", ENDED)
    before = listed(store)
    index_of(store).write_bytes(damage + index_of(store).read_bytes())
    assert [listed(store), listed(store)] == [before, before]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"succeeded"', '"running"'),
        ('"a-1"', "null"),
        ("false", "0"),
        ("100.0", "NaN"),
        ("100.0", "1e300"),
        ("100.0", "1.0.0"),
        ("{}", '{"loss":"low"}'),
        (",", ", "),
        ("null,", "null,0,"),
    ],
)
def test_a_line_that_no_ended_run_has_is_not_taken(
    store: RunStore, before: str, after: str
) -> None:
    for run in ("a-1", "b-2"):
        born(store, run, ENDED)

    expected = listed(store)
    text = index_of(store).read_text()
    assert before in text
    index_of(store).write_text(text.replace(before, after))
    assert [listed(store), listed(store)] == [expected, expected]
    assert index_of(store).read_text() == text


def test_listed_runs_share_no_values(store: RunStore) -> None:
    for run in ("a-1", "b-2"):
        born(store, run, ENDED)

    for _ in range(2):  # read from their folders, then from the index
        first, second = summaries(store)
        first["tags"]["team"] = "vision"
        assert second["tags"] == {}


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


def test_a_damaged_index_on_a_disk_without_writes_is_done_without(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    born(store, "a-1", ENDED)
    index_of(store).write_bytes(b"{bad\n")

    def refuse(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "unlink", refuse)
    assert listed(store) == [("a-1", "succeeded")]


CREATING = {"type": "creating", "time": 101.0}
NOT_STARTED = {"type": "ended", "time": 109.0, "state": "failed", "reason": "nothing was started"}
SUBMITTED_EVENT = {"type": "submitted", "time": 120.0, "ref": {"name": "a-1"}}


def test_a_run_whose_job_may_exist_is_read_again(store: RunStore) -> None:
    born(store, "a-1", CREATING, NOT_STARTED)
    born(store, "b-2", NOT_STARTED, created=1)
    assert listed(store) == [("a-1", "failed"), ("b-2", "failed")]
    remembered = [json.loads(line)[3] for line in index_of(store).read_text().splitlines()]
    assert remembered == ["b-2"]


def test_a_run_goes_on_when_its_job_is_found_after_all(store: RunStore) -> None:
    folder = born(store, "a-1", CREATING, NOT_STARTED, SUBMITTED_EVENT)
    state = fold("a-1", folder.each_event())
    assert (state.state, state.reason, state.ended, state.may_have_started) == (
        "pending",
        "",
        0,
        False,
    )
