"""Successive halving, as the launcher has it: driver and jobs decide by the same rules."""

from __future__ import annotations

from cloudtrain_launcher.rungs import goes_on, is_better, promotable, rungs_of

__all__ = ["goes_on", "is_better", "most_runs", "promotable", "rungs_of"]


def most_runs(trials: int, retries: int, promoting_rungs: int, eta: int) -> int:
    """How many runs so many trials are at most: each, its retries, and those that bring the best
    1/eta of a rung back.

    `promoting_rungs`: 0 where no trial is promoted. A promotion is as likely to fail as a first
    run, and has as many retries.
    """
    runs = promoted = trials
    for _ in range(promoting_rungs):
        promoted //= eta
        runs += promoted
    return runs * (1 + retries)
