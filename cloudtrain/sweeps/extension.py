"""Extension of a sweep: new trials, their maximum cost, and refusals. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass

from cloudtrain.errors import UsageError
from cloudtrain.spec.search_space import points_of
from cloudtrain.sweeps.definition import Caps
from cloudtrain.sweeps.events import Extended
from cloudtrain.sweeps.schedule import cap_of_next
from cloudtrain.sweeps.state import SweepState, Trial


@dataclass(frozen=True, kw_only=True, slots=True)
class Extension:
    """Additions of `sweep more` to a sweep."""

    event: Extended
    new_trials: int
    resumed: tuple[int, ...]
    """Trials that a stop interrupted, by number."""
    worst_usd: float | None
    """Maximum cost of the extension; None without costs or with an unknown price."""


def plan_extension(
    state: SweepState,
    trials: int,
    now: float,
    *,
    parallel: int | None = None,
    budget: Caps | None = None,
) -> Extension:
    """Plan new trials in addition to trials that a stop interrupted.

    `parallel` and `budget` replace the sweep's values. Raise UsageError if there is nothing to do.
    """
    _refuse_what_cannot_grow(state)
    budget = budget or Caps()
    resumed = tuple(trial.number for trial in _resumable(state))
    points = points_of(state.definition.space)
    most = trials if points is None else min(trials, points - len(state.trials))
    if trials and not most and not resumed:
        message = f"sweep {_id(state)} has tried all {len(state.trials)} combinations of its values"
        raise UsageError(message, hint="start another one with a larger space")
    if not most and not resumed and (state.ended or (parallel is None and budget == Caps())):
        message = (
            f"nothing to do: no trial of sweep {_id(state)} was interrupted, and new trials were"
            " not requested"
        )
        raise UsageError(message, hint=f"cloudtrain sweep more {_id(state)} 20")
    planned = len(state.trials) if state.ended else max(state.wanted, len(state.trials))
    event = Extended(
        time=now,
        trials=planned + most,
        parallel=parallel,
        budget_usd=budget.usd,
        budget_seconds=budget.seconds,
        resumes=True,
    )
    extended = deepcopy(state)
    extended.apply(event)
    _refuse_budget(state, extended, now)
    return Extension(
        event=event,
        new_trials=most,
        resumed=resumed,
        worst_usd=_worst_usd(extended, most + len(resumed)),
    )


def _resumable(state: SweepState) -> Iterable[Trial]:
    if not state.ended:
        return ()
    return [trial for trial in state.trials if trial.state == "waiting" or trial.is_interrupted]


def _refuse_what_cannot_grow(state: SweepState) -> None:
    if state.definition.is_native:
        message = f"the service that carries out sweep {_id(state)} takes no more trials"
        hint = "start another sweep, or engine: portable, which continues from the same study"
        raise UsageError(message, hint=hint)
    if state.definition.is_batch_size_search:
        hint = "another range, or another objective, is another sweep"
        raise UsageError(f"sweep {_id(state)} ends when the largest batch size is found", hint=hint)
    if state.state == "stopping":
        hint = f"wait for its end: cloudtrain attach {_id(state)}"
        raise UsageError(f"sweep {_id(state)} is being stopped", hint=hint)


def _refuse_budget(state: SweepState, extended: SweepState, now: float) -> None:
    """Raise UsageError if the budget is too small for another run."""
    _, refusal = cap_of_next(extended, now)
    if refusal and state.ended:
        flag = "--max-time" if "time" in refusal else "--max-cost"
        raise UsageError(f"no trial can be started: {refusal}", hint=f"{flag} raises the budget")


def _worst_usd(extended: SweepState, trials: int) -> float | None:
    definition = extended.definition
    trial_usd = definition.trial_cap.usd
    if trial_usd is None:
        return None
    worst = trial_usd * definition.most_runs(trials)
    if definition.budget.usd is None:
        return worst
    return min(worst, definition.budget.usd - extended.spent_usd - extended.committed_usd)


def _id(state: SweepState) -> str:
    return state.definition.sweep_id
