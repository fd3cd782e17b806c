"""The learning rate over the steps of a run: a warm-up, then a decay."""

from __future__ import annotations

import math


def lr_factor(step: int, steps: int, kind: str = "cosine", warm_up: float = 0.1) -> float:
    """The learning rate at a step (from 0), as a fraction of the peak: a linear warm-up, then a
    decay.

    `kind`: cosine or linear decay, to zero at the last step; or constant. `warm_up`: its fraction
    of all steps, 0 to 1.
    """
    rise = max(1, int(warm_up * steps)) if warm_up else 0
    if step < rise:
        return (step + 1) / rise
    passed = (step - rise) / max(1, steps - rise)
    if kind == "cosine":
        return 0.5 * (1 + math.cos(math.pi * passed))
    return 1 - passed if kind == "linear" else 1.0
