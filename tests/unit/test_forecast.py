"""The remaining time of a run and its cost, from constructed histories."""

from __future__ import annotations

from typing import Any

import pytest

from cloudtrain.runs.forecast import EVALUATION, Forecast, forecast, shown
from cloudtrain.runs.record import Terms
from cloudtrain.runs.state import RunState
from tests.support.samples import BORN, fold_json

STARTED = 110.0
"""When the node starts; the first step is reported 10 s later."""


class History:
    """The events of a run of 1,000 steps, 0.1 s each, which reports every tenth."""

    def __init__(self, steps: int | None = 1000, per_step: float = 0.1) -> None:
        self.now = STARTED + 10
        self.step = 0
        self.steps = steps
        self.per_step = per_step
        self.events: list[dict[str, Any]] = [
            BORN,
            {"type": "node_started", "time": STARTED, "node": 0},
        ]
        self.report(1)

    def report(self, step: int) -> None:
        self.step = step
        self.add("progress", step=step, **({} if self.steps is None else {"steps": self.steps}))

    def add(self, kind: str, **fields: Any) -> None:
        self.events.append({"type": kind, "time": self.now, "rank": 0, **fields})

    def train(self, to: int) -> History:
        """Steps up to this one."""
        while self.step < to:
            steps = min(10 - self.step % 10, to - self.step)
            self.now += steps * self.per_step
            self.report(self.step + steps)
        return self

    def pause(self, activity: str, seconds: float) -> History:
        self.add("activity", activity=activity)
        self.now += seconds
        self.add("activity", activity="")
        return self

    @property
    def state(self) -> RunState:
        return fold_json("digits-1", self.events)

    def forecast(self, **terms: Any) -> Forecast:
        prediction = forecast(self.state, Terms(**terms), now=self.now)
        assert prediction is not None
        return prediction


def test_the_time_of_all_steps_is_counted_from_the_pace_of_those_that_were_seen() -> None:
    forecast = History().train(200).forecast()
    assert forecast.remaining == pytest.approx(80.0, abs=0.1)
    assert (forecast.usd_so_far, forecast.usd) == (None, None)


def test_the_first_steps_of_a_process_are_not_repeated() -> None:
    history = History()
    history.now += 30.0  # the second step is compiled
    history.report(2)
    assert history.train(200).forecast().remaining == pytest.approx(80.0, abs=0.1)


def test_without_a_number_of_steps_the_cost_until_now_is_known_alone() -> None:
    history = History(steps=None).train(200)
    prediction = history.forecast(usd_per_hour=3600.0)
    assert (prediction.remaining, prediction.usd) == (None, None)
    assert prediction.usd_so_far == pytest.approx(29.9)
    assert forecast(history.state, Terms(), now=history.now) is None


def test_a_run_that_has_not_started_or_has_ended_has_no_forecast() -> None:
    waiting = fold_json("digits-1", [BORN])
    assert forecast(waiting, Terms(usd_per_hour=1.0), now=STARTED) is None
    history = History().train(1000)
    history.add("ended", state="succeeded")
    assert forecast(history.state, Terms(usd_per_hour=1.0), now=history.now) is None


def announced(history: History, **fields: Any) -> History:
    history.add("schedule", **fields)
    return history


def test_evaluations_count_as_often_as_announced_and_as_long_as_measured() -> None:
    history = announced(History(), evaluations=5, evaluation_samples=100, step_samples=10)
    forecast = history.train(200).pause("evaluating", 4.0).train(300).forecast()
    assert forecast.remaining == pytest.approx(70.0 + 4 * 4.0, abs=0.1)


def test_an_announced_evaluation_is_estimated_until_one_was_seen() -> None:
    history = announced(History(), evaluations=2, evaluation_samples=1000, step_samples=10)
    assert history.train(200).forecast().remaining == pytest.approx(
        80.0 + 2 * 100 * 0.1 * EVALUATION, abs=0.1
    )


@pytest.mark.parametrize("activity", ["evaluating", "saving", "drawing samples"])
def test_of_an_own_script_pauses_come_as_often_as_they_were_seen(activity: str) -> None:
    history = History().train(100).pause(activity, 2.0).train(200).pause(activity, 2.0).train(250)
    assert history.forecast().remaining == pytest.approx(75.0 + 8 * 2.0, abs=0.1)


def test_checkpoints_come_as_often_as_announced_and_once_at_the_end() -> None:
    history = announced(History(), checkpoint_steps=100)
    forecast = history.train(100).pause("saving", 2.0).train(150).forecast()
    assert forecast.remaining == pytest.approx(85.0 + 10 * 2.0, abs=0.1)


def test_a_restart_repeats_its_steps_but_not_its_compilation() -> None:
    history = History().train(200)
    history.now += 20.0
    history.add("restarted", node=0, attempt=1, rank=-1)
    history.add("resumed", step=150)
    history.report(151)
    history.now += 25.0  # compiled again
    history.report(152)
    assert history.train(300).forecast().remaining == pytest.approx(70.0, abs=0.1)


def test_the_time_since_the_last_report_counts() -> None:
    history = History().train(200)
    history.now += 30.0
    assert history.forecast().remaining == pytest.approx(50.0, abs=0.1)
    history.now += 100.0
    assert history.forecast().remaining == 0.0


def test_the_cost_is_that_of_the_time_and_of_machines_that_are_kept() -> None:
    forecast = History().train(200).forecast(usd_per_hour=36.0, kept_seconds=1800)
    assert forecast.usd_so_far == pytest.approx(0.01 * 29.9)
    assert forecast.usd == pytest.approx(0.01 * (29.9 + 80.0) + 18.0, abs=0.01)
    assert shown(forecast) == "1 min 20 s left, about 0.30 USD so far, 19.10 USD at the end"


def test_a_rehearsal_costs_nothing() -> None:
    forecast = History().train(200).forecast(usd_per_hour=36.0, is_billed=False)
    assert (forecast.usd_so_far, forecast.usd) == (None, None)
    assert shown(forecast) == "1 min 20 s left"


def test_the_keys_of_the_json_are_those_of_earlier_versions() -> None:
    document = History().train(200).forecast(usd_per_hour=3600.0).to_json()
    assert document["left_seconds"] == {"likely": pytest.approx(80.0, abs=0.1)}
    assert document["usd"] == {"likely": pytest.approx(109.9, abs=0.1)}
    assert document["usd_so_far"] == pytest.approx(29.9)


@pytest.mark.parametrize(
    "event",
    [
        {"type": "progress", "step": 300, "steps": 1e308},
        {"type": "progress", "step": 300, "steps": 10**400},
        {"type": "progress", "step": 300, "steps": 0},
        {"type": "progress", "step": 10**400, "steps": 1000},
        {"type": "metrics", "step": 10**400, "values": {"loss": 1.0}},
        {
            "type": "schedule",
            "evaluations": 10**400,
            "evaluation_samples": 10**400,
            "step_samples": 1,
        },
        {"type": "schedule", "checkpoint_seconds": 1e-300, "checkpoint_steps": 1},
        {"type": "schedule", "evaluations": -5, "step_samples": -1, "checkpoint_steps": -1},
    ],
    ids=lambda event: str(event)[:60],
)
def test_numbers_that_no_run_has_break_nothing(event: dict[str, Any]) -> None:
    history = History().train(200).pause("saving", 1.0)
    history.events.append({"time": history.now, "rank": 0, **event})
    prediction = forecast(history.state, now=history.now)
    assert prediction is None or shown(prediction)


def test_waiting_for_spot_machines_again_is_neither_time_of_the_run_nor_billed() -> None:
    def interrupted(wait: float) -> History:
        history = History().train(200)
        history.events.append(
            {"type": "phase", "time": history.now, "phase": "interrupted", "since": history.now}
        )
        history.now += wait
        history.events.append({"type": "node_started", "time": history.now, "node": 0})
        history.add("resumed", step=150)
        history.report(151)
        return history.train(300)

    short, long = (interrupted(wait).forecast(usd_per_hour=3600.0) for wait in (5.0, 5000.0))
    assert short.remaining == pytest.approx(long.remaining)
    assert short.usd_so_far == pytest.approx(long.usd_so_far)
    assert short.usd == pytest.approx(long.usd)
