"""The state of a run is the sum of its events: each counts once, none brings back what has ended."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.runs.state import KEPT_POINTS, RunState
from cloudtrain_launcher.events import EVENT_TYPES
from tests.support.events import fold_json
from tests.support.samples import BORN

SUBMITTED = {"type": "submitted", "time": 101.0, "ref": {"pid": 7}}
STARTED = {"type": "node_started", "time": 102.0, "node": 0, "rank": -1, "seq": 1}
STOPPING = {"type": "stop_requested", "time": 105.0, "reason": "stop was asked"}


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


def test_the_cause_of_a_failure_brings_its_traceback() -> None:
    error = {
        "node": 0,
        "rank": 3,
        "time": 5.0,
        "exception": "ValueError",
        "message": "the dog ate shard 3",
    }
    state = state_of(
        {"type": "error", **error, "traceback": "File …"}, ended("failed", error=error)
    )
    assert state.to_json()["error"] == {**error, "traceback": "File …"}


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
