"""Azure ML's rules for well-formed sweep jobs, each after a page of its documentation.

"Hyperparameter tuning a model (v2)", "CLI (v2) sweep job YAML schema", and of v1 the class
BayesianParameterSampling. What the service says is not documented: the words are ours.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from tests.fakes.azure.errors import invalid
from tests.fakes.azure.schema import duration_seconds

Body = Mapping[str, Any]
ENDS = {"uniform": 2, "loguniform": 2, "quniform": 3, "qloguniform": 3}
"""Expressions with a least and a most value -> how many numbers they take."""
OF_BAYESIAN = ("choice", "uniform", "quniform")
MAX_TRIALS = 1000
SHORTEST_SECONDS = 60
"""azure-ai-ml, job_limits.py: "Service rounds durations less than 60 seconds to 60 days"."""


def refuse(properties: Body) -> None:
    """Raise the first reason against the properties of a sweep job, if there is one."""
    for message in chain(_space(properties), _sampling(properties), _limits(properties)):
        raise invalid(message)


def _space(properties: Body) -> Iterator[str]:
    space = properties["searchSpace"]
    if not space:
        yield "The search space is empty."
    for name, expression in space.items():
        if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name):
            yield f"The name {name} must be composed of letters, numbers and underscores."
        yield from _expression(name, expression)
    used = set(re.findall(r"\$\{\{\s*search_space\.(.*?)\s*\}\}", properties["trial"]["command"]))
    if used - space.keys():
        yield (
            f"The command refers to search_space.{min(used - space.keys())}, which the search space"
            " does not have."
        )


def _expression(name: str, expression: Any) -> Iterator[str]:
    kind, arguments = (
        expression if isinstance(expression, list) and len(expression) == 2 else ("", [])
    )
    if kind == "choice":
        if len(arguments) != 1 or not isinstance(arguments[0], list) or not arguments[0]:
            yield f"The choice of {name} has no values."
        return
    if kind not in ENDS:
        yield f"{name}: {kind} is no parameter expression of this imitation."
    elif len(arguments) != ENDS[kind] or not all(_is_number(value) for value in arguments):
        yield f"{name}: {kind} takes {ENDS[kind]} numbers."
    elif not arguments[0] < arguments[1]:
        yield f"{name}: min_value must be less than max_value."


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _sampling(properties: Body) -> Iterator[str]:
    kind = properties["samplingAlgorithm"]["samplingAlgorithmType"]
    for name, (expression, _) in properties["searchSpace"].items():
        if kind == "Grid" and expression != "choice":
            yield f"{name}: grid sampling can only be used with choice hyperparameters."
        if kind == "Bayesian" and expression not in OF_BAYESIAN:
            yield f"{name}: Bayesian sampling supports choice, uniform and quniform."


def _limits(properties: Body) -> Iterator[str]:
    limits = properties.get("limits", {})
    total = limits.get("maxTotalTrials", MAX_TRIALS)
    at_once = limits.get("maxConcurrentTrials")
    if not 1 <= total <= MAX_TRIALS:
        yield f"max_total_trials must be an integer between 1 and {MAX_TRIALS}."
    if at_once is not None and not 1 <= at_once <= MAX_TRIALS:
        yield f"max_concurrent_trials must be an integer between 1 and {MAX_TRIALS}."
    if at_once is not None and at_once > total:
        yield "max_concurrent_trials must not exceed max_total_trials."
    for name in ("timeout", "trialTimeout"):
        seconds = duration_seconds(limits[name]) if name in limits else SHORTEST_SECONDS
        if not seconds or seconds < SHORTEST_SECONDS:
            yield (
                f"limits.{name}: '{limits[name]}' is not a duration in ISO 8601 format of at least"
                " a minute."
            )
