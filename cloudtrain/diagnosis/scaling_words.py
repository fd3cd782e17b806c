"""Words for a scaling curve: how many ranks to take, and what to try."""

from __future__ import annotations

from dataclasses import replace

from cloudtrain.diagnosis.scaling import AS_FAST, Point, ScalingCurve
from cloudtrain.diagnosis.slowness_words import Setup, change_for

WELL = 0.8
"""Least efficiency that counts as good scaling."""

CLEAR = 0.8
"""Least confidence of a clear verdict."""


def verdict(curve: ScalingCurve, setup: Setup) -> str:
    """Return the verdict as a sentence without its full stop."""
    if len(curve.measured) < 2:
        return f"only {_ranks(curve.base, setup)} could be measured: there is nothing to compare"
    text = _verdict(curve, setup)
    if curve.confidence >= CLEAR:
        return text
    return f"not clear, the measurements differ too much; most likely: {text}"


def _verdict(curve: ScalingCurve, setup: Setup) -> str:
    best = curve.best()
    most = max(curve.measured)
    more = {ranks: rate for ranks, rate in curve.rates.items() if ranks > best}
    point = next(point for point in curve.points if point.ranks == best)
    if best == curve.base:
        fastest = max(more, key=lambda ranks: more[ranks])
        return f"use {_ranks(best, setup)}: {_not_worth_it(curve, fastest, best, setup)}"
    against = f"{point.speedup:.1f} times as fast as {curve.base}"
    if best == most:
        if curve.is_priced:
            cost = curve.sample_cost_ratio(best, curve.base)
            return (
                f"{_ranks(best, setup)} are best: {against}, at {cost:.1f} times the cost of a"
                " sample"
            )
        return (
            f"scales{' well' if point.efficiency >= WELL else ''} to {_ranks(best, setup)}:"
            f" {_efficiency(point)}"
        )
    fastest = max(more, key=lambda ranks: more[ranks])
    not_more = _not_worth_it(curve, fastest, best, setup)
    return f"{_ranks(best, setup)} are best: {against}, {_efficiency(point)}; {not_more}"


def _efficiency(point: Point) -> str:
    return f"efficiency {point.efficiency:.2f}"


def _not_worth_it(curve: ScalingCurve, ranks: int, against: int, setup: Setup) -> str:
    """Return why more ranks than `against` are not worth it."""
    cost = curve.sample_cost_ratio(ranks, against)
    speed = curve.rates[ranks] / curve.rates[against]
    if speed < 1 - AS_FAST:
        return f"{ranks} are slower, {speed:.2f} times as fast"
    unit = "GPU" if setup.has_gpus else "process"
    costs = (
        f"cost {cost:.1f} times as much"
        if curve.is_priced
        else f"take {cost:.1f} times the {unit} time"
    )
    fast = "no faster" if speed < 1 + AS_FAST else f"only {speed:.1f} times as fast"
    return f"{ranks} {costs} per sample and are {fast}"


def what_to_try(curve: ScalingCurve, setup: Setup, cores: int | None = None) -> str:
    """Return what to change if the most ranks are not worth it; else empty.

    `cores`: cores of this machine that all ranks share; None if each rank has its own.
    """
    most = max(curve.measured)
    if len(curve.measured) < 2:
        return ""
    if curve.confidence < CLEAR:
        return "measure again, while nothing else runs on the machine"
    if curve.best() == most:
        return ""
    if cores is not None and all(ranks > cores for ranks in curve.measured if ranks > curve.best()):
        return f"a machine with a core or a GPU for each rank: this one has {cores} cores"
    measured = curve.measured[most]
    slowness = measured.slowness
    if slowness is not None and slowness.is_slow:
        return slowness.change
    if slowness is not None and slowness.cause == "compute":
        messages = measured.communication or 0.0
        return change_for("too-small", messages, replace(setup, ranks=most), None, "compute")
    return f"cloudtrain diagnose {measured.runs[-1]}: why it is slow" if measured.runs else ""


def _ranks(count: int, setup: Setup) -> str:
    word, several = ("GPU", "GPUs") if setup.has_gpus else ("process", "processes")
    return f"{count} {word if count == 1 else several}"
