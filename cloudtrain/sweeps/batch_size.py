"""Search for a batch size: the next size, its end, and the settings to recommend.

 The best size is the smallest that is about as fast as the fastest: it leaves memory, and a smaller
batch generalises at least as well.
"""

from __future__ import annotations

import math

from cloudtrain.spec.batch_sizes import next_size
from cloudtrain.sweeps.state import SIZE_TOLERANCE, SweepState, Trial
from cloudtrain.units import format_number


def next_trial(state: SweepState) -> int | None:
    """Return the size of the next trial.

    None if the largest size is known, or a trial failed for another reason.
    """
    if _problem(state):
        return None
    (dimension,) = state.definition.space.values()
    fitting = [trial.batch_size for trial in state.trials if trial.state == "completed"]
    too_large = [trial.batch_size for trial in state.trials if trial.state == "too_large"]
    return next_size(int(dimension.low), int(dimension.high), fitting, too_large)  # type: ignore[union-attr]  # by the spec


def conclusion(state: SweepState) -> tuple[bool, str]:
    """Return whether the search succeeded, and its result or the reason."""
    if problem := _problem(state):
        return False, problem
    fitting = [trial.batch_size for trial in state.trials if trial.state == "completed"]
    too_large = [trial for trial in state.trials if trial.state == "too_large"]
    if not fitting:
        smallest = min(too_large, key=lambda trial: trial.batch_size, default=None)
        return (
            False,
            (
                f"not even {smallest.batch_size} fits: {smallest.reason}"
                if smallest
                else "no size was tried"
            ),
        )
    largest = max(fitting)
    beyond = min((trial.batch_size for trial in too_large), default=None)
    limit = (
        f"{largest} fits, {beyond} does not"
        if beyond
        else f"{largest} fits, the most that was asked for"
    )
    best = state.best
    return True, f"{limit}; {_choice(state, best, largest)}" if best else limit


def _choice(state: SweepState, best: Trial, largest: int) -> str:
    size = best.batch_size
    metric = state.definition.metric
    rate = f"{format_number(best.value)} {metric}" if best.value is not None else metric
    if size == largest:
        return f"it is the fastest, too: {rate}"
    return f"{size} is the smallest that is within {SIZE_TOLERANCE:.0%} of the fastest: {rate}"


def _problem(state: SweepState) -> str:
    """Return why the search cannot continue; empty if it can."""
    for trial in state.trials:
        if trial.state in ("failed", "stopped"):
            return f"the trial of {trial.batch_size} {_ended(trial)}: whether it fits is not known"
        if trial.state == "completed" and (trial.value is None or not math.isfinite(trial.value)):
            reported = "no number" if trial.reports else "nothing"
            return (
                f"the trial of {trial.batch_size} reported {reported} as {state.definition.metric}"
            )
    return ""


def _ended(trial: Trial) -> str:
    how = "was stopped" if trial.state == "stopped" else "failed"
    return f"{how} ({trial.reason})" if trial.reason else how
