"""A sweep of a space of which 44 % fails learns from failures instead of repeating them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Literal

import pytest

from cloudtrain.spec.search_space import Scalar
from cloudtrain.sweeps.events import Launching, Reported, RunEnded, Suggested
from cloudtrain.sweeps.state import SweepState, Trial
from cloudtrain.sweeps.suggest import suggester_of
from tests.support.sweep_lives import definition_of

SPACE = {"lr": "loguniform(1e-5, 1)", "width": "logint(8, 512)", "dropout": "uniform(0, 0.8)"}
TRIALS = 40
Loss = Literal["fails", "reports NaN", "reports nothing"]


def loss_of(parameters: Mapping[str, Scalar]) -> float | None:
    """Return the loss of a trial; None where the learning rate is too large for the width."""
    rate = math.log10(float(parameters["lr"]))
    width = math.log2(float(parameters["width"]))
    if rate + 0.25 * (width - 3) > -1.45:
        return None
    return (
        (rate + 2.2) ** 2
        + 0.3 * (width - 6) ** 2 / 4
        + 0.5 * (float(parameters["dropout"]) - 0.3) ** 2
    )


def search(sampler: str, seed: int, how: Loss = "fails") -> tuple[int, float]:
    """Return how many trials of a sweep were lost, and its least loss; `how`: what a lost trial
    does.
    """
    definition = definition_of(space=SPACE, sampler=sampler, trials=TRIALS, seed=seed)
    state = SweepState.new(definition)
    suggester = suggester_of(definition)
    losses: list[float | None] = []
    for number in range(TRIALS):
        parameters = suggester.suggest(state)
        state.apply(Suggested(time=1.0, trial=number, parameters=parameters))
        losses.append(loss_of(parameters))
        finish(state, state.trials[number], losses[-1], how)
    values = [loss for loss in losses if loss is not None]
    return TRIALS - len(values), min(values, default=math.inf)


def finish(state: SweepState, trial: Trial, loss: float | None, how: Loss) -> None:
    """Let a trial run to its end."""
    run = f"run-{trial.number}"
    state.apply(Launching(time=1.0, trial=trial.number, run=run))
    if loss is not None or how == "reports NaN":
        state.apply(Reported(time=1.0, trial=trial.number, report=1, value=loss))
    outcome: Literal["failed", "completed"] = (
        "failed" if loss is None and how == "fails" else "completed"
    )
    state.apply(RunEnded(time=1.0, trial=trial.number, run=run, outcome=outcome))


@pytest.mark.parametrize("how", ["fails", "reports NaN", "reports nothing"])
def test_trials_that_are_lost_teach_the_sampler(how: Loss) -> None:
    """Random values lose 17.4 of 40; TPE lost 27.5 when it ignored them, and 14.2 now, with 0.4
    times the loss.
    """
    histories = [search("tpe", seed, how) for seed in range(8)]
    assert statistics.fmean(lost for lost, _ in histories) < 18.5
    assert statistics.median(loss for _, loss in histories) < 0.09
