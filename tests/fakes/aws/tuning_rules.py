"""What SageMaker refuses of a CreateHyperParameterTuningJob request that its service model alone
would let pass.

After the API reference (HyperParameterTuningJobConfig, ParameterRanges, HyperbandStrategyConfig,
ResourceLimits, HyperParameterTuningResourceConfig) and the developer guide ("Define hyperparameter
ranges", "How hyperparameter tuning works", "Resource limits for automatic model tuning"). What the
service says is not documented: the words are ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from tests.fakes.aws.account import Account
from tests.fakes.aws.errors import invalid
from tests.fakes.messages import ServiceError

Body = Mapping[str, Any]
KINDS = ("IntegerParameterRanges", "ContinuousParameterRanges", "CategoricalParameterRanges")
MAX_RANGES = 30
MAX_VALUES = 30
MAX_METRICS = 20
MAX_JOBS = 750
MAX_DAYS = 30
MAX_RESOURCE = 20_000
INFERRED = {"epochs", "numepochs", "n-epochs", "n_epochs", "num_epochs"}
"""Static hyperparameters that Hyperband takes its MaxResource from."""


def refuse(body: Body, account: Account) -> None:
    """Raise the first reason against a request, if there is one."""
    config = body["HyperParameterTuningJobConfig"]
    if ("TrainingJobDefinition" in body) == ("TrainingJobDefinitions" in body):
        raise invalid(
            "You must specify exactly one of TrainingJobDefinition and TrainingJobDefinitions."
        )
    if "TrainingJobDefinitions" in body or "WarmStartConfig" in body or "Autotune" in body:
        raise invalid(
            "Several definitions, warm start and autotune are not part of this imitation."
        )
    definition = body["TrainingJobDefinition"]
    for message in (
        *_ranges(config, definition),
        *_strategy(config, definition),
        *_objective(config, definition),
    ):
        raise invalid(message)
    for message in (*_limits(config), *_resources(definition)):
        raise invalid(message)
    parallel = config["ResourceLimits"]["MaxParallelTrainingJobs"]
    if parallel > account.tuning_parallel:
        raise ServiceError(
            "ResourceLimitExceeded",
            "The account-level service limit 'Number of parallel training jobs per hyperparameter"
            f" tuning job' is {account.tuning_parallel}, with a request of {parallel}.",
        )


def combinations(config: Body) -> int:
    """How many points a grid has."""
    ranges = config.get("ParameterRanges", {}).get("CategoricalParameterRanges", [])
    return math.prod(len(parameter["Values"]) for parameter in ranges)


def _ranges(config: Body, definition: Body) -> Iterator[str]:
    ranges = config.get("ParameterRanges", {})
    parameters = [parameter for kind in KINDS for parameter in ranges.get(kind, [])]
    names = [parameter["Name"] for parameter in parameters]
    if not parameters:
        yield "ParameterRanges must have at least one range."
    if len(parameters) > MAX_RANGES:
        yield f"The number of hyperparameters in all ranges must not exceed {MAX_RANGES}."
    if len(set(names)) < len(names):
        yield "Hyperparameter names must be unique among the ranges."
    both = set(names) & definition.get("StaticHyperParameters", {}).keys()
    if both:
        yield f"{sorted(both)[0]} is both a static hyperparameter and one to be searched."
    for parameter in ranges.get("CategoricalParameterRanges", []):
        if len(parameter["Values"]) > MAX_VALUES or len(set(parameter["Values"])) < len(
            parameter["Values"]
        ):
            yield f"The values of {parameter['Name']} must be distinct and at most {MAX_VALUES}."
    for kind, number in (("IntegerParameterRanges", int), ("ContinuousParameterRanges", float)):
        for parameter in ranges.get(kind, []):
            yield from _range(parameter, kind, number)


def _range(parameter: Body, kind: str, number: type[float]) -> Iterator[str]:
    name = parameter["Name"]
    scale = parameter.get("ScalingType", "Auto")
    try:
        low = number(parameter["MinValue"])
        high = number(parameter["MaxValue"])
    except ValueError:
        yield f"MinValue and MaxValue of {name} must be of the type of its range."
        return
    if not low < high:
        yield f"MinValue of {name} must be less than its MaxValue."
    if scale == "Logarithmic" and low <= 0:
        yield f"Logarithmic scaling of {name} needs values greater than 0."
    if scale == "ReverseLogarithmic" and (kind.startswith("Integer") or not 0 <= low <= high < 1):
        yield f"Reverse logarithmic scaling of {name} needs a continuous range within 0 <= x < 1."


def _strategy(config: Body, definition: Body) -> Iterator[str]:
    strategy = config["Strategy"]
    ranges = config.get("ParameterRanges", {})
    early = config.get("TrainingJobEarlyStoppingType", "Off")
    special = config.get("StrategyConfig")
    if strategy == "Grid":
        if any(ranges.get(kind) for kind in KINDS[:2]):
            yield "Only categorical parameters are supported when using the grid search strategy."
        limit = config["ResourceLimits"].get("MaxNumberOfTrainingJobs")
        if limit not in (None, combinations(config)):
            yield (
                "MaxNumberOfTrainingJobs must equal the total number of distinct categorical"
                " combinations possible."
            )
    if special and strategy != "Hyperband":
        yield "StrategyConfig is supported for the Hyperband strategy only."
    if strategy == "Hyperband":
        resources = (special or {}).get("HyperbandStrategyConfig", {})
        if early != "Off":
            yield "TrainingJobEarlyStoppingType must be Off to use Hyperband."
        if (
            "MaxResource" not in resources
            and not INFERRED & definition.get("StaticHyperParameters", {}).keys()
        ):
            yield "MaxResource must be given, or inferred from a static hyperparameter."
        if (
            not resources.get("MinResource", 1)
            <= resources.get("MaxResource", MAX_RESOURCE)
            <= MAX_RESOURCE
        ):
            yield f"MinResource must not exceed MaxResource, which must not exceed {MAX_RESOURCE}."


def _objective(config: Body, definition: Body) -> Iterator[str]:
    metrics = definition["AlgorithmSpecification"].get("MetricDefinitions", [])
    objective = config.get("HyperParameterTuningJobObjective")
    if objective is None:
        yield "HyperParameterTuningJobObjective is required."
    elif objective["MetricName"] not in {metric["Name"] for metric in metrics}:
        yield f"The objective metric {objective['MetricName']} is not among the MetricDefinitions."
    if len(metrics) > MAX_METRICS:
        yield f"A hyperparameter tuning job has at most {MAX_METRICS} metrics."


def _limits(config: Body) -> Iterator[str]:
    limits = config["ResourceLimits"]
    count = limits.get(
        "MaxNumberOfTrainingJobs", combinations(config) if config["Strategy"] == "Grid" else None
    )
    if count is None:
        yield "MaxNumberOfTrainingJobs is required."
    elif count > MAX_JOBS:
        yield f"A hyperparameter tuning job has at most {MAX_JOBS} training jobs."
    if limits.get("MaxRuntimeInSeconds", 0) > MAX_DAYS * 86_400:
        yield f"A hyperparameter tuning job runs for at most {MAX_DAYS} days."


def _resources(definition: Body) -> Iterator[str]:
    flexible = definition.get("HyperParameterTuningResourceConfig")
    if (flexible is None) == ("ResourceConfig" not in definition):
        yield "Exactly one of ResourceConfig and HyperParameterTuningResourceConfig is needed."
    elif flexible is not None and "InstanceConfigs" in flexible:
        taken = {"InstanceType", "InstanceCount", "VolumeSizeInGB"} & flexible.keys()
        if taken:
            yield f"{sorted(taken)[0]} cannot be given together with InstanceConfigs."
