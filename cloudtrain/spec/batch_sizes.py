"""Batch sizes that a search for the largest tries: doubled until one fails, then halved.

All sizes are multiples of the smallest, so ranks can always share a batch.
"""

from __future__ import annotations

from collections.abc import Collection

METRIC = "samples_per_s"
"""Metric that the shared trainer reports in this search."""
RESOLUTION = 16
"""Precision of the result: 1/16. A batch at the very limit fails later in training."""


def next_size(
    least: int, most: int, fitting: Collection[int], too_large: Collection[int]
) -> int | None:
    """Return the next size to try, or None at the end of the search.

    `least`, `most`: limits of the range. `fitting`, `too_large`: results of earlier trials.
    """
    limit = most // least
    if not fitting:
        return None if too_large else least
    fits = max(fitting) // least
    if not too_large:
        return None if fits >= limit else min(2 * fits, limit) * least
    gap = min(too_large) // least - fits
    return None if gap <= max(1, fits // RESOLUTION) else (fits + gap // 2) * least


def most_trials(least: int, most: int) -> int:
    """Return the maximum number of sizes that a search tries."""
    doublings = (max(1, most // least) - 1).bit_length()
    return 1 + doublings + min(RESOLUTION.bit_length() - 1, max(0, doublings - 1))
