"""Next action of a sweep, from its state alone: start a trial, promote one, end, or wait."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cloudtrain.runs.store import trial_run_id
from cloudtrain.spec.search_space import points_of
from cloudtrain.sweeps.definition import Caps
from cloudtrain.sweeps.state import SweepState, Trial
from cloudtrain.units import format_number
from cloudtrain_wire.rungs import promotable

SHORTEST_SECONDS = 60
"""Minimum time limit of a trial."""
MAX_ALIKE = 3
"""Maximum trials that end for one cause that no value of a setting explains."""
MAX_WITHOUT_RESULT = 8
"""Maximum trials that end without a number for any cause.

If half of a space fails, the chance of this many failures in a row is 1 in 256.
"""
INDEPENDENT_OF_VALUES = frozenset(
    (
        "ImportError",
        "IndentationError",
        "ModuleNotFoundError",
        "NameError",
        "SyntaxError",
        "TabError",
    )
)
"""Exceptions that a program raises whatever its arguments are."""


@dataclass(frozen=True, slots=True)
class Suggest:
    """Choose the values of the next trial."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """Start a run of a trial: its first one, a retry, or one that continues from a rung."""

    trial: int
    run: str
    until: int | None
    resumes: str
    cap: Caps


@dataclass(frozen=True, slots=True)
class End:
    """End the sweep: no trial runs, and none will."""

    state: Literal["succeeded", "failed", "stopped"]
    reason: str = ""


Action = Suggest | Start | End


def next_action(state: SweepState, time_now: float) -> Action | None:
    """Return the next action; None to wait for running trials. `time_now`: a Unix timestamp."""
    running = [trial for trial in state.trials if trial.state == "running"]
    if state.state != "running":
        if running:
            return None

        return End("stopped", "stop requested")
    if state.reached is not None:
        if running:
            return None

        return End("succeeded", _target_reached(state, state.reached))
    if len(running) >= state.definition.parallel:
        return None
    if given_up := _why_to_give_up(state):
        if running:
            return None

        return _end(state, given_up)

    trial = _waiting(state) or _promotable(state)
    if trial is None and len(state.trials) >= _trial_count(state):
        if running:
            return None

        return _end(state, "")

    cap, refusal = cap_of_next(state, time_now)
    if refusal:
        if running:
            return None

        return _end(state, refusal)

    if trial is None:
        return Suggest()

    return _start(state, trial, cap)


def cap_of_next(state: SweepState, time_now: float) -> tuple[Caps, str]:
    """Return the caps of the next run, and the reason if it cannot be started.

    The cost of all runs and the caps of active ones never exceed the budget. A clock that is set
    back does not extend the time.
    """
    time_now = max(time_now, state.latest)
    definition = state.definition
    usd = definition.trial_cap.usd
    seconds = definition.trial_cap.seconds

    if definition.budget.usd is not None:
        usd_left = definition.budget.usd - state.spent_usd - state.committed_usd
        if usd is None:
            return Caps(), "what a trial may cost is not known, and the budget is in money"

        if usd > usd_left + 1e-9:
            refusal = (
                f"{max(0.0, usd_left):.2f} of {definition.budget.usd:.2f} USD are left, a trial may"
                f" take {usd:.2f}"
            )

            return Caps(), refusal

    if definition.budget.seconds is not None and state.started:
        remaining_seconds = state.started + definition.budget.seconds - time_now
        if remaining_seconds < SHORTEST_SECONDS:
            return Caps(), "the time of the budget is over"

        if seconds is None:
            seconds = remaining_seconds
        else:
            seconds = min(seconds, remaining_seconds)
    elif definition.budget.seconds is not None:
        budget = definition.budget.seconds
        if seconds is None:
            seconds = budget
        else:
            seconds = min(seconds, budget)

    return Caps(usd=usd, seconds=seconds), ""


def _start(state: SweepState, trial: Trial, cap: Caps) -> Start:
    return Start(
        trial=trial.number,
        run=trial_run_id(state.definition.sweep_id, trial.number, len(trial.runs) + 1),
        until=_until(state, trial),
        resumes=trial.reported_by,
        cap=cap,
    )


def _until(state: SweepState, trial: Trial) -> int | None:
    """Return the report that ends the next run of a trial: the next rung."""
    if not state.definition.promotes:
        return None
    return next((rung for rung in state.definition.rungs if rung > trial.reports), None)


def _trial_count(state: SweepState) -> int:
    """Return the number of trials, at most the number of points of a finite space."""
    points = points_of(state.definition.space)
    if points is None:
        return state.wanted

    return min(state.wanted, points)


def _waiting(state: SweepState) -> Trial | None:
    """Return the first trial that has values and waits for a run."""
    return next((trial for trial in state.trials if trial.state == "waiting"), None)


def _promotable(state: SweepState) -> Trial | None:
    """Return the next trial to promote, from the highest rung that has one."""
    definition = state.definition
    if not definition.promotes:
        return None

    paused = {
        trial.number: state.rung_of(trial) for trial in state.trials if trial.state == "paused"
    }
    for rung, values in reversed(list(enumerate(state.rungs))):
        departed = {number for number in values if paused.get(number) != rung}
        number = promotable(
            values, state.promoted[rung] | departed, definition.eta, definition.goal
        )
        if number is not None:
            return state.trials[number]

    return None


def _target_reached(state: SweepState, number: int) -> str:
    definition = state.definition
    return (
        f"trial {number} has reached the target: {definition.metric}"
        f" {format_number(definition.target)}"
    )


def _end(state: SweepState, reason: str) -> End:
    if state.best is None:
        failed = sum(trial.state == "failed" for trial in state.trials)
        if not reason and failed and failed == len(state.trials):
            reason = f"all {failed} trials failed"
        return End("failed", reason or f"no trial reported {state.definition.metric}")

    if not reason and len(state.trials) < state.wanted:
        reason = f"all {len(state.trials)} combinations of its values were tried"
    return End("succeeded", reason)


def _why_to_give_up(state: SweepState) -> str:
    """Return the reason to start no further trials; empty if the sweep may continue.

    A sweep is given up if no trial has reported a number and other values would not change that.
    Trials before the latest extension do not count: the user has seen their results.
    """
    if any(_has_result(trial) for trial in state.trials):
        return ""

    lost = [
        trial
        for trial in state.trials[state.extended_at :]
        if trial.state in ("failed", "completed")
    ]
    metric = state.definition.metric
    by_cause: dict[str, list[Trial]] = defaultdict(list)

    for trial in lost:
        by_cause[_cause(trial)].append(trial)

    for cause, trials in by_cause.items():
        if cause and len(trials) >= MAX_ALIKE:
            return (
                f"given up: {len(trials)} trials {_what_happened(trials, metric)}, which no value"
                " explains"
            )

    if len(lost) >= MAX_WITHOUT_RESULT:
        last = lost[-1].reason or f"it trained to its end without {metric}"
        return (
            f"given up: {len(lost)} trials ended, and none has reported {metric}; the last one:"
            f" {last}"
        )

    return ""


def _has_result(trial: Trial) -> bool:
    return any(math.isfinite(value) for value in trial.curve)


def _cause(trial: Trial) -> str:
    """Return a key of failures with one cause; empty if a value may be the cause."""
    if trial.state == "completed":
        return "" if trial.reports else "no report"
    return trial.cause if trial.cause in INDEPENDENT_OF_VALUES else ""


def _what_happened(trials: Sequence[Trial], metric: str) -> str:
    if trials[0].state == "completed":
        return f"trained to their end without reporting {metric}"
    return f"failed alike ({trials[-1].reason})"
