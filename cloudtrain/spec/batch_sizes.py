"""Batch sizes that a search for the largest tries: doubled until one fails, then halved.

All sizes are multiples of the smallest, so ranks can always share a batch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from cloudtrain.issues import Issue

METRIC = "samples_per_s"
"""Metric that the shared trainer reports in this search."""
RESOLUTION = 16
"""Precision of the result: 1/16. A batch at the very limit fails later in training."""


def next_size(
    least: int, most: int, fitting: Collection[int], too_large: Collection[int]
) -> int | None:
    """Return the next size to try, or None at the end of the search.

    `least`, `most`: limits of the range. `fitting`, `too_large`: results so far.
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


def contradictions(section: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[Issue]:
    """Yield what is impossible together in a section with this method."""
    for key, why in _UNUSED.items():
        if section.get(key) is not None:
            yield Issue((key,), f"does not apply to the method batch_size: {why}", "remove it")
    if section.get("parallel", 1) != 1:
        yield Issue(
            ("parallel",),
            "must be 1 for the method batch_size: each size depends on the previous one",
            "remove it",
        )
    if section.get("engine") in ("native", "ray"):
        message = "cannot search for a batch size"
        yield Issue(("engine",), message, "use engine: portable")
    yield from _space(section.get("space"))
    objective = section.get("objective")
    metric = objective.get("metric") if isinstance(objective, dict) else None
    if spec.get("entrypoint") is None and isinstance(metric, str) and metric != METRIC:
        message = f"the shared trainer reports only {METRIC} in a search for a batch size"
        yield Issue(
            ("objective", "metric"), message, f"objective: {{metric: {METRIC}, goal: maximize}}"
        )


_UNUSED = {
    "trials": "the search ends by itself",
    "early_stopping": "each trial ends after one measurement",
}


def _space(space: Any) -> Iterator[Issue]:
    from cloudtrain.spec.search_space import Integers
    from cloudtrain.spec.varied_settings import dimension_of

    hint = "one range, such as batch-size: int(1, 4096)"
    if not isinstance(space, dict) or not space:
        return
    for name in list(space)[1:]:
        yield Issue(
            ("space", str(name)), "is a second setting; the method batch_size varies only one", hint
        )
    key, written = next(iter(space.items()))
    dimension = dimension_of(written)
    if dimension is not None and not isinstance(dimension, Integers):
        yield Issue(
            ("space", str(key)),
            "must be a range of whole numbers for the method batch_size",
            hint,
        )
    elif isinstance(dimension, Integers) and dimension.step > 1:
        yield Issue(
            ("space", str(key)),
            "must not have a step: all sizes are multiples of the smallest",
            hint,
        )
    elif isinstance(dimension, Integers) and dimension.low < 1:
        yield Issue(
            ("space", str(key)),
            f"starts at {dimension.low}, but a batch has at least 1 sample",
            hint,
        )
