"""Successive halving with the rules of the launcher, for drivers and jobs."""

from __future__ import annotations

from cloudtrain_launcher.rungs import goes_on, is_better, promotable, rungs_of

__all__ = ["goes_on", "is_better", "most_runs", "promotable", "rungs_of"]


def most_runs(trials: int, retries: int, promoting_rungs: int, eta: int) -> int:
    """Return the maximum number of runs: every trial, its promotions, and their retries.

    `promoting_rungs`: 0 without promotions. At each rung the best 1/eta continue.
    """
    runs = promoted = trials
    for _ in range(promoting_rungs):
        promoted //= eta
        runs += promoted
    return runs * (1 + retries)
