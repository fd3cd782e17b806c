"""The state of a search for a batch size: what is tried next, why it ends, and the size to take.
Pure.

The largest that fits need not be the one to take: of those that are about as fast as the fastest,
the smallest is, as it leaves memory, and a smaller batch generalises at least as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cloudtrain.spec.batch_sizes import next_size
from cloudtrain.units import format_number

if TYPE_CHECKING:
    from cloudtrain.sweeps.definition import Definition
    from cloudtrain.sweeps.state import SweepState, Trial

SAMPLER = "batch_size"
"""`Definition.sampler` of such a search."""
TOLERANCE = 0.05
"""Sizes whose objective differs by so much of the best are as good as it: what one measurement
varies by.
"""


def is_search(definition: Definition) -> bool:
    """Whether a sweep is a search for a batch size."""
    return definition.sampler == SAMPLER


def size_of(trial: Trial) -> int:
    """The batch size of a trial."""
    return int(next(iter(trial.parameters.values())))


def next_trial(state: SweepState) -> int | None:
    """The size of the next trial; None where nothing is left to be found out, or a trial failed for
    another reason.
    """
    if _problem(state):
        return None
    (found,) = state.definition.space.values()
    fitting = [size_of(trial) for trial in state.trials if trial.state == "completed"]
    too_large = [size_of(trial) for trial in state.trials if trial.state == "too_large"]
    return next_size(int(found.low), int(found.high), fitting, too_large)  # type: ignore[union-attr]  # by the spec


def best_of(state: SweepState) -> Trial | None:
    """The smallest size that is about as fast as the fastest; None before the first measurement."""
    found = {
        trial.number: trial.value
        for trial in state.trials
        if trial.state not in ("failed", "too_large")
    }
    values = {
        number: value
        for number, value in found.items()
        if value is not None and math.isfinite(value)
    }
    if not values:
        return None
    better = max if state.definition.goal == "maximize" else min
    best = better(values.values())
    near = [
        state.trials[number]
        for number, value in values.items()
        if abs(value - best) <= TOLERANCE * abs(best)
    ]
    return min(near, key=size_of)


def conclusion(state: SweepState) -> tuple[bool, str]:
    """Whether the search has found what it looked for, and what that is, or why it has not."""
    if problem := _problem(state):
        return False, problem
    fitting = [size_of(trial) for trial in state.trials if trial.state == "completed"]
    too_large = [trial for trial in state.trials if trial.state == "too_large"]
    if not fitting:
        smallest = min(too_large, key=size_of, default=None)
        return (
            False,
            (
                f"not even {size_of(smallest)} fits: {smallest.reason}"
                if smallest
                else "no size was tried"
            ),
        )
    largest = max(fitting)
    beyond = min(map(size_of, too_large), default=None)
    known = (
        f"{largest} fits, {beyond} does not"
        if beyond
        else f"{largest} fits, the most that was asked for"
    )
    best = best_of(state)
    return True, f"{known}; {_choice(state, best, largest)}" if best else known


def _choice(state: SweepState, best: Trial, largest: int) -> str:
    size = size_of(best)
    metric = state.definition.metric
    rate = f"{format_number(best.value)} {metric}" if best.value is not None else metric
    if size == largest:
        return f"it is the fastest, too: {rate}"
    return f"{size} is the smallest that is within {TOLERANCE:.0%} of the fastest: {rate}"


def _problem(state: SweepState) -> str:
    """Why the search cannot go on: of some trial it is not known whether it fits, or how fast it
    is; empty for none.
    """
    for trial in state.trials:
        if trial.state in ("failed", "stopped"):
            return f"the trial of {size_of(trial)} {_ended(trial)}: whether it fits is not known"
        if trial.state == "completed" and (trial.value is None or not math.isfinite(trial.value)):
            found = "no number" if trial.reports else "nothing"
            return f"the trial of {size_of(trial)} reported {found} as {state.definition.metric}"
    return ""


def _ended(trial: Trial) -> str:
    how = "was stopped" if trial.state == "stopped" else "failed"
    return f"{how} ({trial.reason})" if trial.reason else how


def advice(
    state: SweepState, args: Mapping[str, Any], *, is_trainer: bool
) -> list[tuple[str, str]]:
    """What to write into the spec: the size that was found, and how a larger batch is kept with it;
    each with a name.

    `args`: those of the job, by name. `is_trainer`: of the shared trainer, which accumulates
    gradients by itself.
    """
    best = best_of(state)
    if best is None:
        return []
    (key,), size = best.parameters, size_of(best)
    name = key.removeprefix("args.")
    lines = [("spec", f"args: {{{name}: {size}}}")]
    batch = args.get(name)
    passes = args.get("accumulate", 1) if is_trainer else 1
    if not isinstance(batch, int) or not isinstance(passes, int) or batch <= size:
        return lines
    parts = math.ceil(batch * passes / size)
    how = (
        f"args: {{{name}: {batch}, accumulate: {parts}}}"
        if is_trainer
        else f"accumulate {parts} of them in each step"
    )
    return [*lines, ("or", f"{how}, which keeps the batch of {batch}")]
