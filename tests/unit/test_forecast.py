"""The forecast of a run, from constructed histories."""

from __future__ import annotations

from typing import Any

import pytest

from cloudtrain.runs.forecast import (
    Forecast,
    forecast,
    in_all,
    limit_warning,
    raised_limit,
    remaining_seconds,
    told_once,
)
from cloudtrain.runs.record import Terms
from cloudtrain.runs.state import RunState
from tests.support.samples import BORN, fold_json

# The forecast of a run from constructed histories: the time that it counts and the time that it
# omits.

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
    assert forecast.total.likely == pytest.approx(10 + 0.1 * 999 + 1.0, abs=0.2)
    assert forecast.remaining.likely == pytest.approx(forecast.total.likely - 10 - 19.9)
    assert forecast.total.low < forecast.total.likely < forecast.total.high
    assert (forecast.step, forecast.steps, forecast.seen_steps, forecast.usd, forecast.ending) == (
        200,
        1000,
        190,
        None,
        None,
    )


def test_the_interval_gets_narrower_as_more_is_seen_and_wider_where_steps_differ() -> None:
    def width(forecast: Forecast) -> float:
        return (forecast.total.high - forecast.total.low) / forecast.total.likely

    early = History().train(100)
    late = History().train(700)
    uneven = History()
    for number in range(1, 11):
        uneven.per_step = 0.15 if number % 2 else 0.05
        uneven.train(10 * number)
    assert width(late.forecast()) < width(early.forecast()) < width(uneven.forecast())


def test_the_first_steps_of_a_process_are_counted_once_and_not_repeated() -> None:
    history = History()
    history.now += 30.0  # the second step is compiled
    history.report(2)
    usual = 30.0 + 10 + 0.1 * 998 + 1.0
    assert history.train(200).forecast().total.likely == pytest.approx(usual, abs=0.2)


def announced(history: History, **fields: Any) -> History:
    history.add("schedule", **fields)
    return history


def test_evaluations_count_as_often_as_announced_and_as_long_as_measured() -> None:
    history = announced(History(), evaluations=5, evaluation_samples=100, step_samples=10)
    forecast = history.train(200).pause("evaluating", 4.0).train(300).forecast()
    assert forecast.total.likely == pytest.approx(10 + 99.9 + 5 * 4.0 + 1.0, abs=0.3)


@pytest.mark.parametrize("activity", ["evaluating", "saving", "drawing samples"])
def test_of_an_own_script_pauses_come_as_often_as_they_were_seen(activity: str) -> None:
    history = History().train(100).pause(activity, 2.0).train(200).pause(activity, 2.0).train(250)
    assert history.forecast().total.likely == pytest.approx(10 + 99.9 + 10 * 2.0 + 1.0, abs=0.3)


def test_a_restart_costs_the_time_that_it_took_and_the_steps_that_are_repeated() -> None:
    history = History().train(200)
    history.now += 20.0
    history.add("restarted", node=0, attempt=1, rank=-1)
    history.add("resumed", step=150)
    history.report(151)
    history.now += 25.0  # compiled again
    history.report(152)
    forecast = history.train(300).forecast()
    assert forecast.total.likely == pytest.approx(10 + 19.9 + 20 + 25 + 0.1 * 848 + 1.0, abs=0.5)


def test_the_cost_is_that_of_the_time_and_of_machines_that_are_kept() -> None:
    forecast = History().train(200).forecast(usd_per_hour=36.0, kept_seconds=1800)
    assert forecast.usd is not None
    assert forecast.usd.likely == pytest.approx(0.01 * forecast.total.likely + 18.0)
    assert in_all(forecast).startswith("1 min 51 s in all (")
    assert in_all(forecast).endswith(
        f", {forecast.usd.likely:.2f} USD ({forecast.usd.low:.2f} to {forecast.usd.high:.2f})"
    )


@pytest.mark.parametrize(
    ("seconds", "certainty", "words"),
    [
        (60, "sure", "will stop"),
        (110, "likely", "will probably stop"),
        (113, "possible", "may stop"),
        (900, None, ""),
    ],
)
def test_a_limit_that_ends_the_run_early_is_named_with_the_step_that_it_reaches(
    seconds: int, certainty: str | None, words: str
) -> None:
    forecast = History().train(200).forecast(seconds=seconds, limit="limits.max_runtime")
    assert (forecast.ending and forecast.ending.certainty) == certainty
    assert words in limit_warning(forecast)
    if forecast.ending and certainty == "sure":
        assert forecast.ending.step == pytest.approx(500, abs=15), "of 60 s, 50 train"
        assert raised_limit(forecast) == "limits.max_runtime=3 min", (
            "what the end of the interval needs, in whole minutes"
        )


def test_advice_for_a_cost_limit_covers_the_run_and_the_reserve() -> None:
    forecast = History().train(200).forecast(
        usd_per_hour=3600.0, seconds=60, overhead_seconds=120, limit="limits.max_cost"
    )  # fmt: skip
    assert forecast.ending is not None
    assert forecast.ending.needs == pytest.approx(forecast.total.high + 120)
    text = told_once(forecast, "digits-1")
    assert text.startswith("limits.max_cost will stop this run after 1 min, at about step ")
    assert (
        "cloudtrain stop digits-1, then cloudtrain rerun digits-1 --set 'limits.max_cost=" in text
    )


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
    assert prediction is None or in_all(prediction)
    assert remaining_seconds(history.state, history.now) != -1


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
    assert short.total.likely == pytest.approx(long.total.likely)
    assert short.usd is not None
    assert short.usd.likely == pytest.approx(short.total.likely), "a dollar a second"
