"""The verdict on a scaling curve: how many ranks to take, how sure that is, and what to try."""

from __future__ import annotations

from typing import Any

import pytest

from cloudtrain.diagnosis.scaling import Measurement, ScalingCurve, verdict, what_to_try
from cloudtrain.diagnosis.slowness import Setup, Slowness

GPUS = Setup(ranks=4, has_gpus=True)
WINDOWS = (0.98, 0.99, 1.0, 1.0, 1.0, 1.01, 1.02)
"""Difference between windows on a quiet machine."""


def measured(
    ranks: int, rate: float, windows: tuple[float, ...] = WINDOWS, **fields: Any
) -> Measurement:
    rates = tuple(rate * window for window in windows)
    return Measurement(ranks=ranks, windows=rates, run=f"digits-{ranks}", **fields)


def curve(*rates: float, **fields: Any) -> ScalingCurve:
    """With 1, 2, 4, ... ranks."""
    return ScalingCurve([measured(2**at, rate, **fields) for at, rate in enumerate(rates)])


def test_speed_up_and_efficiency_are_against_the_fewest_ranks() -> None:
    points = curve(100, 180, 300).points
    assert [(point.ranks, round(point.speedup, 6)) for point in points] == [
        (1, 1),
        (2, 1.8),
        (4, 3),
    ]
    assert [round(point.efficiency, 6) for point in points] == [1, 0.9, 0.75]


def test_one_is_the_answer_where_more_hardly_help() -> None:
    scaling_curve = curve(100, 110, 129)
    assert (
        verdict(scaling_curve, GPUS)
        == "use 1 GPU: 4 take 3.1 times the GPU time per sample and are only 1.3 times as fast"
    )
    assert scaling_curve.is_clear
    assert verdict(curve(100, 101), Setup()) == (
        "use 1 process: 2 take 2.0 times the process time per sample and are no faster"
    )
    assert verdict(curve(100, 60), GPUS) == "use 1 GPU: 2 are slower, 0.60 times as fast"


def test_the_best_may_lie_in_between() -> None:
    assert verdict(curve(100, 180, 216), GPUS) == (
        "2 GPUs are best: 1.8 times as fast as 1, efficiency 0.90; "
        "4 take 1.7 times the GPU time per sample and are only 1.2 times as fast"
    )


def test_known_prices_decide_instead_of_the_number_of_ranks() -> None:
    dear = ScalingCurve([measured(1, 100, usd_per_hour=3.6), measured(4, 120, usd_per_hour=14.4)])
    assert (
        verdict(dear, GPUS)
        == "use 1 GPU: 4 cost 3.3 times as much per sample and are only 1.2 times as fast"
    )
    assert dear.points[0].usd_per_million == pytest.approx(10)
    same_machine = ScalingCurve(
        [measured(1, 100, usd_per_hour=3.6), measured(4, 200, usd_per_hour=3.6)]
    )
    assert (
        verdict(same_machine, GPUS)
        == "4 GPUs are best: 2.0 times as fast as 1, at 0.5 times the cost of a sample"
    )


def test_windows_that_differ_too_much_give_no_certain_verdict() -> None:
    noisy = curve(100, 139, windows=(0.6, 0.7, 0.85, 1.0, 1.15, 1.3, 1.6))
    assert not noisy.is_clear
    assert verdict(noisy, GPUS).startswith(
        "not clear, the measurements differ too much; most likely: "
    )


def test_the_curve_goes_on_without_a_number_of_ranks_that_failed() -> None:
    scaling_curve = ScalingCurve(
        [Measurement(ranks=1, failure="out of memory"), measured(2, 100), measured(4, 190)]
    )
    assert scaling_curve.base == 2
    assert scaling_curve.failures == {1: "out of memory"}
    assert [(point.ranks, round(point.efficiency, 6)) for point in scaling_curve.points] == [
        (2, 1),
        (4, 0.95),
    ]
    assert verdict(scaling_curve, GPUS) == "scales well to 4 GPUs: efficiency 0.95"
    alone = ScalingCurve([measured(1, 100), Measurement(ranks=2, failure="out of memory")])
    assert verdict(alone, GPUS) == "only 1 GPU could be measured: there is nothing to compare"
    assert what_to_try(alone, GPUS) == ""


@pytest.mark.parametrize(
    ("slowness", "expected"),
    [
        (Slowness(cause="communication", change="--accumulate 4"), "--accumulate 4"),
        (Slowness(cause="compute"), "a larger --batch-size"),
        (Slowness(cause="unknown"), "cloudtrain diagnose digits-2: why it is slow"),
        (None, "cloudtrain diagnose digits-2: why it is slow"),
    ],
)
def test_what_to_try_follows_the_verdict_on_the_most_ranks(
    slowness: Slowness | None, expected: str
) -> None:
    scaling = ScalingCurve([measured(1, 100), measured(2, 110, slowness=slowness)])
    assert expected in what_to_try(scaling, GPUS)
