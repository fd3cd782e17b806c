"""Numbers that the first rank only prints are reported, and an expression that hangs is given up."""

from __future__ import annotations

from typing import Any

import pytest

from cloudtrain_launcher import rank_tracker
from cloudtrain_launcher.contract import Job
from cloudtrain_launcher.events import Event, RankStarted
from cloudtrain_launcher.rank_tracker import PrintedMetrics, RankTracker


def metrics_of(expressions: dict[str, str], *lines: str) -> list[dict[str, Any]]:
    events: list[Event] = []
    metrics = PrintedMetrics(expressions, events.append)
    for line in lines:
        metrics.on_line(line)
    return [event.to_json() for event in events]


ACCURACY = {"accuracy": "Accuracy: ([0-9.]+)"}


def test_a_printed_number_is_a_metric() -> None:
    assert metrics_of(ACCURACY, "Accuracy: 0.93.", "nothing", "Accuracy: ...") == [
        {"type": "metrics", "rank": 0, "values": {"accuracy": 0.93}}
    ]


def test_step_and_epoch_say_where_the_others_belong() -> None:
    expressions = {"step": "step ([0-9]+)", "loss": "loss ([-0-9.e]+)", "lr": "lr ([-0-9.e]+)"}
    assert metrics_of(expressions, "step 10", "loss 2.5e-1 lr 1e-3", "step 20 loss 0") == [
        {"type": "metrics", "rank": 0, "step": 10, "values": {"loss": 0.25, "lr": 0.001}},
        {"type": "metrics", "rank": 0, "step": 20, "values": {"loss": 0}},
    ]


@pytest.mark.parametrize("text", ["nan", "inf", "1e999", "", "word"])
def test_what_is_no_finite_number_is_left_out(text: str) -> None:
    assert metrics_of({"x": "x=(.*)"}, f"x={text}") == []


def test_an_expression_that_this_python_does_not_know_is_given_up() -> None:
    (warning,) = metrics_of({"x": "([0-9"}, "x")
    assert "metrics.x: the expression is not valid" in warning["message"]


def test_only_the_first_ranks_lines_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    emitted: list[Event] = []
    monkeypatch.setattr(rank_tracker, "emit", emitted.append)
    job = Job("r", "n", "script", "t.py", [], {}, 2, 2, 0, 0, 30, 600, 3, metrics=ACCURACY)
    ranks = RankTracker(job, node=1)
    for local_rank, rank in ((0, 1), (1, 0)):
        ranks.on_event(RankStarted(time=1.0, rank=rank, local_rank=local_rank))
        ranks.on_line(local_rank, f"Accuracy: 0.{rank + 1}")
    ranks.on_line(-1, "Accuracy: 0.9")
    assert [event.to_json()["values"] for event in emitted] == [{"accuracy": 0.1}]
