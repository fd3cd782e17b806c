"""Search for a batch size: the next size, its end, and the settings to recommend.

 The best size is the smallest that is about as fast as the fastest: it leaves memory, and a smaller
batch generalises at least as well.
"""

from __future__ import annotations

import math

from cloudtrain.spec.batch_sizes import next_size
from cloudtrain.sweeps.state import SIZE_TOLERANCE, SweepState
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
    smallest = min(too_large, key=lambda trial: trial.batch_size, default=None)
    if not fitting:
        if smallest is None:
            return False, "no size was tried"
        return False, f"not even {smallest.batch_size} fits: {smallest.reason}"
    beyond = f"{smallest.batch_size} does not" if smallest else "the most that was asked for"
    text = f"{max(fitting)} fits, {beyond}"
    best = state.best
    if best is None or best.value is None:
        return True, text
    rate = f"{format_number(best.value)} {state.definition.metric}"
    return True, (
        f"{text}; {best.batch_size} is the smallest that is within {SIZE_TOLERANCE:.0%} of the"
        f" fastest: {rate}"
    )


def _problem(state: SweepState) -> str:
    """Return why the search cannot continue; empty if it can."""
    for trial in state.trials:
        if trial.state in ("failed", "stopped"):
            why = f" ({trial.reason})" if trial.reason else ""
            return f"the trial of {trial.batch_size} {trial.state}{why}: whether it fits is unknown"
        if trial.state == "completed" and (trial.value is None or not math.isfinite(trial.value)):
            metric = state.definition.metric
            return f"the trial of {trial.batch_size} reported no number as {metric}"
    return ""
