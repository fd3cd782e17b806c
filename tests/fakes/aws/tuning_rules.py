"""SageMaker's rules of CreateHyperParameterTuningJob beyond its service model.

After the API reference (HyperParameterTuningJobConfig, ParameterRanges, HyperbandStrategyConfig,
ResourceLimits) and the developer guide ("Define hyperparameter ranges", "How hyperparameter tuning
works", "Resource limits for automatic model tuning"). What the service says is not documented: the
words are ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from tests.fakes.aws.account import Account
from tests.fakes.aws.errors import invalid
from tests.fakes.aws.request_rules import SUPPORTED as OF_TRAINING_JOB
from tests.fakes.messages import ServiceError

Body = Mapping[str, Any]
KINDS = ("IntegerParameterRanges", "ContinuousParameterRanges", "CategoricalParameterRanges")
MAX_VALUES = 30
MAX_METRICS = 20
MAX_JOBS = 750
MAX_DAYS = 30
MAX_RESOURCE = 20_000

SUPPORTED = {
    *("HyperParameterTuningJobName", "HyperParameterTuningJobConfig", "TrainingJobDefinition"),
    "Tags",
}
SUPPORTED_CONFIG = {
    *("Strategy", "StrategyConfig", "HyperParameterTuningJobObjective", "ResourceLimits"),
    *("ParameterRanges", "TrainingJobEarlyStoppingType", "TuningJobCompletionCriteria"),
    "RandomSeed",
}
SUPPORTED_DEFINITION = OF_TRAINING_JOB | {"HyperParameterTuningResourceConfig"}
"""Members of a request that the imitation knows; it refuses all others."""


def refuse(body: Body, account: Account) -> None:
    """Raise the first reason against a request, if there is one."""
    config = body["HyperParameterTuningJobConfig"]
    definition = body.get("TrainingJobDefinition", {})
    unknown = (
        {*body} - SUPPORTED | {*config} - SUPPORTED_CONFIG | {*definition} - SUPPORTED_DEFINITION
    )
    if unknown or config.get("TrainingJobEarlyStoppingType", "Off") != "Off":
        raise invalid(f"Not part of this imitation: {', '.join(sorted(unknown))}")
    for message in (
        *_ranges(config),
        *_strategy(config),
        *_objective(config, definition),
        *_limits(config),
    ):
        raise invalid(message)
    if ("HyperParameterTuningResourceConfig" in definition) == ("ResourceConfig" in definition):
        raise invalid(
            "Exactly one of ResourceConfig and HyperParameterTuningResourceConfig is needed."
        )
    parallel = config["ResourceLimits"]["MaxParallelTrainingJobs"]
    if parallel > account.tuning_parallel:
        raise ServiceError(
            "ResourceLimitExceeded",
            "The account-level service limit 'Number of parallel training jobs per hyperparameter"
            f" tuning job' is {account.tuning_parallel}, with a request of {parallel}.",
        )


def combinations(config: Body) -> int:
    """Return the number of points of a grid."""
    ranges = config.get("ParameterRanges", {}).get("CategoricalParameterRanges", [])
    return math.prod(len(parameter["Values"]) for parameter in ranges)


def _ranges(config: Body) -> Iterator[str]:
    ranges = config.get("ParameterRanges", {})
    names = [parameter["Name"] for kind in KINDS for parameter in ranges.get(kind, [])]
    if not names or len(set(names)) < len(names):
        yield "ParameterRanges must have at least one range, and each name once."
    for parameter in ranges.get("CategoricalParameterRanges", []):
        values = parameter["Values"]
        if not len(set(values)) == len(values) <= MAX_VALUES:
            yield f"The values of {parameter['Name']} must be distinct and at most {MAX_VALUES}."
    for kind, number in (("IntegerParameterRanges", int), ("ContinuousParameterRanges", float)):
        for parameter in ranges.get(kind, []):
            yield from _range(parameter, number)


def _range(parameter: Body, number: type[float]) -> Iterator[str]:
    name = parameter["Name"]
    try:
        low = number(parameter["MinValue"])
        high = number(parameter["MaxValue"])
    except ValueError:
        yield f"MinValue and MaxValue of {name} must be of the type of its range."
        return
    if not low < high:
        yield f"MinValue of {name} must be less than its MaxValue."
    if parameter["ScalingType"] not in ("Linear", "Logarithmic"):
        yield "Not part of this imitation."
    if parameter["ScalingType"] == "Logarithmic" and low <= 0:
        yield f"Logarithmic scaling of {name} needs values greater than 0."


def _strategy(config: Body) -> Iterator[str]:
    strategy = config["Strategy"]
    ranges = config.get("ParameterRanges", {})
    if strategy == "Grid":
        if any(ranges.get(kind) for kind in KINDS[:2]):
            yield "Only categorical parameters are supported when using the grid search strategy."
        if config["ResourceLimits"].get("MaxNumberOfTrainingJobs") != combinations(config):
            yield (
                "MaxNumberOfTrainingJobs must equal the total number of distinct categorical"
                " combinations possible."
            )
    if "StrategyConfig" in config and strategy != "Hyperband":
        yield "StrategyConfig is supported for the Hyperband strategy only."
    if strategy == "Hyperband":
        resources = config.get("StrategyConfig", {}).get("HyperbandStrategyConfig", {})
        most = resources.get("MaxResource", 0)
        if not resources.get("MinResource", 1) <= most <= MAX_RESOURCE:
            yield f"MaxResource must be given, above MinResource, and not exceed {MAX_RESOURCE}."


def _objective(config: Body, definition: Body) -> Iterator[str]:
    metrics = definition["AlgorithmSpecification"].get("MetricDefinitions", [])
    objective = config.get("HyperParameterTuningJobObjective", {}).get("MetricName")
    if objective not in {metric["Name"] for metric in metrics}:
        yield f"The objective metric {objective} is not among the MetricDefinitions."
    if len(metrics) > MAX_METRICS:
        yield f"A hyperparameter tuning job has at most {MAX_METRICS} metrics."


def _limits(config: Body) -> Iterator[str]:
    limits = config["ResourceLimits"]
    if not limits.get("MaxNumberOfTrainingJobs", 0) <= MAX_JOBS:
        yield f"A hyperparameter tuning job has at most {MAX_JOBS} training jobs."
    if limits.get("MaxRuntimeInSeconds", 0) > MAX_DAYS * 86_400:
        yield f"A hyperparameter tuning job runs for at most {MAX_DAYS} days."
