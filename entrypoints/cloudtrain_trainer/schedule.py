"""The learning rate over a run: a function of the step alone, so that there is no state to save."""

from __future__ import annotations

import math


def lr_factor(step: int, steps: int, kind: str = "cosine", warm_up: float = 0.1) -> float:
    """The learning rate at a step (from 0) as a share of the highest: a linear rise, then what `kind` says.

    `kind`: cosine or linear, to zero at the last step; constant. `warm_up`: the rise's share of all steps.
    """
    rise = max(1, int(warm_up * steps)) if warm_up else 0
    if step < rise:
        return (step + 1) / rise
    passed = (step - rise) / max(1, steps - rise)
    if kind == "cosine":
        return 0.5 * (1 + math.cos(math.pi * passed))
    return 1 - passed if kind == "linear" else 1.0
