"""Which batch sizes a search for the largest that fits tries: doubled until one does not, then
halved in between. Pure.

All of them are multiples of the least, so that a batch that ranks share goes on to be one that they
can share.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from cloudtrain.issues import Issue

METRIC = "samples_per_s"
"""What the shared trainer reports in such a search."""
RESOLUTION = 16
"""The largest size that fits is found to within 1/16 of itself: a batch at the very edge fails some
day in training.
"""


def next_size(
    least: int, most: int, fitting: Collection[int], too_large: Collection[int]
) -> int | None:
    """The size to be tried after those; None where nothing is left to be found out.

    `least`, `most`: of the range. `fitting`, `too_large`: the sizes that were tried.
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
    """How many sizes are tried at most, wherever the largest that fits lies."""
    doublings = (max(1, most // least) - 1).bit_length()
    return 1 + doublings + min(RESOLUTION.bit_length() - 1, max(0, doublings - 1))


def contradictions(section: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[Issue]:
    """What in a section with this method is impossible together, each at its place below `sweep`."""
    for key, why in _UNUSED.items():
        if section.get(key) is not None:
            yield Issue((key,), f"is not for the method batch_size: {why}", "leave it out")
    if section.get("parallel", 1) != 1:
        yield Issue(
            ("parallel",),
            "is 1 with the method batch_size: each size follows from those before",
            "leave it out",
        )
    if section.get("engine") in ("native", "ray"):
        message = "has no search for a batch size"
        yield Issue(("engine",), message, "engine: portable runs trials wherever jobs run")
    yield from _space(section.get("space"))
    objective = section.get("objective")
    metric = objective.get("metric") if isinstance(objective, dict) else None
    if spec.get("entrypoint") is None and isinstance(metric, str) and metric != METRIC:
        message = f"the shared trainer reports only {METRIC} in a search for a batch size"
        yield Issue(
            ("objective", "metric"), message, f"objective: {{metric: {METRIC}, goal: maximize}}"
        )


_UNUSED = {
    "trials": "it ends by itself",
    "early_stopping": "each trial ends once it has measured",
}


def _space(space: Any) -> Iterator[Issue]:
    from cloudtrain.spec.search_space import Integers
    from cloudtrain.spec.varied_settings import dimension_of

    hint = "one range, such as batch-size: int(1, 4096)"
    if not isinstance(space, dict) or not space:
        return
    for name in list(space)[1:]:
        yield Issue(
            ("space", str(name)), "is a second setting, and the method batch_size varies one", hint
        )
    key, written = next(iter(space.items()))
    dimension = dimension_of(written)
    if dimension is not None and not isinstance(dimension, Integers):
        yield Issue(
            ("space", str(key)),
            "is no range of whole numbers, which the method batch_size needs",
            hint,
        )
    elif isinstance(dimension, Integers) and dimension.step > 1:
        yield Issue(
            ("space", str(key)), "has a step, and all sizes are multiples of the least", hint
        )
    elif isinstance(dimension, Integers) and dimension.low < 1:
        yield Issue(
            ("space", str(key)),
            f"begins at {dimension.low}, and a batch has at least 1 sample",
            hint,
        )
