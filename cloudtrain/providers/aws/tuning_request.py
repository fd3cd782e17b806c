"""Turns a plan with a `sweep` section into the body of CreateHyperParameterTuningJob. Pure.

A trial is the training job that the same plan would be without a sweep: image, channels, role,
network and limits are those of its request. What a tuning job's definition has no place for is
refused by `tuning_rules`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cloudtrain.planning.plan import Plan
from cloudtrain.planning.tuned import room_for, sweep_of, text_of, trial_texts
from cloudtrain.providers.aws.request import body_of, event_pattern, job_of
from cloudtrain.providers.shared.tags import TAG_PREFIX
from cloudtrain.spec.search_space import Choice, Dimension, Integers
from cloudtrain.spec.sweep import Sweep

if TYPE_CHECKING:  # looking after a sweep needs none of these
    from cloudtrain.planning.launch import JobDocument
    from cloudtrain.planning.reference import ResolvedImage

SWEEP_TAG = f"{TAG_PREFIX}sweep"
"""On the tuning job, and by SageMaker on each of its training jobs: the id of the sweep."""

STRATEGIES = {"grid": "Grid", "random": "Random", "bayesian": "Bayesian", "asha": "Hyperband"}

_DEFINED = (
    *(
        "RoleArn",
        "InputDataConfig",
        "OutputDataConfig",
        "ResourceConfig",
        "StoppingCondition",
        "Environment",
    ),
    *("EnableManagedSpotTraining", "RetryStrategy", "VpcConfig", "EnableNetworkIsolation"),
    "EnableInterContainerTrafficEncryption",
)
"""Members of CreateTrainingJob that HyperParameterTrainingJobDefinition has, too."""

_SMALLEST_VOLUME_GIB = 1


def tuning_body(plan: Plan, image: ResolvedImage | None = None) -> dict[str, Any]:
    """The request: `aws sagemaker create-hyper-parameter-tuning-job --cli-input-json` accepts it."""
    room, _ = room_for(plan)
    training = body_of(room, image, tuning_document(plan).to_json())
    return {
        "HyperParameterTuningJobName": plan.run_id,
        "HyperParameterTuningJobConfig": _config(sweep_of(plan)),
        "TrainingJobDefinition": _definition(plan, training),
        "Tags": [*training["Tags"], {"Key": SWEEP_TAG, "Value": plan.run_id}],
    }


def strategy_words(plan: Plan) -> str:
    """Name the strategy of a tuning job, for people."""
    return f"SageMaker's {STRATEGIES[sweep_of(plan).method]} strategy"


def tuning_document(plan: Plan) -> JobDocument:
    """The job document that all trials share: their launchers put the chosen values in, and their
    own run ids.
    """
    room, rules = room_for(plan)
    return replace(job_of(room), tuned=rules)


def trial_body(plan: Plan) -> dict[str, Any]:
    """The training job that SageMaker makes of the definition for a trial, whose values are
    arguments of the plan.
    """
    body = tuning_body(plan)
    definition = body["TrainingJobDefinition"]
    flexible = definition.pop("HyperParameterTuningResourceConfig", None)
    if flexible is not None:
        definition["ResourceConfig"] = {"InstancePreferences": flexible["InstanceConfigs"]}
    return {
        "TrainingJobName": plan.run_id,
        **definition,
        "HyperParameters": {
            **trial_texts(plan),
            "_tuning_objective_metric": sweep_of(plan).objective.metric,
        },
        "Tags": body["Tags"],
    }


def comes_back(plan: Plan) -> bool:
    """Return True if a trial's machines may be replaced while it trains, so that it needs its checkpoints
    in S3.
    """
    return bool(plan.spec.resources.spot or plan.spec.limits.retries)


def _definition(plan: Plan, training: Mapping[str, Any]) -> dict[str, Any]:
    algorithm = training["AlgorithmSpecification"]
    metrics = list(algorithm.get("MetricDefinitions", []))
    wanted = sweep_of(plan).objective.metric
    if all(each["Name"] != wanted for each in metrics):
        metrics.append({"Name": wanted, "Regex": event_pattern(wanted)})
    definition: dict[str, Any] = {
        "AlgorithmSpecification": {
            "TrainingImage": algorithm["TrainingImage"],
            "TrainingInputMode": algorithm["TrainingInputMode"],
            "MetricDefinitions": metrics,
        },
        **{name: training[name] for name in _DEFINED if name in training},
    }
    if comes_back(plan) or plan.spec.checkpoints.uri:
        definition["CheckpointConfig"] = training["CheckpointConfig"]
    preferences = training["ResourceConfig"].get("InstancePreferences")
    if preferences:
        del definition["ResourceConfig"]
        size = training["ResourceConfig"].get("VolumeSizeInGB", _SMALLEST_VOLUME_GIB)
        definition["HyperParameterTuningResourceConfig"] = {
            "AllocationStrategy": "Prioritized",
            "InstanceConfigs": [{**each, "VolumeSizeInGB": size} for each in preferences],
        }
        if key := training["ResourceConfig"].get("VolumeKmsKeyId"):
            definition["HyperParameterTuningResourceConfig"]["VolumeKmsKeyId"] = key
    return definition


def _config(sweep: Sweep) -> dict[str, Any]:
    config: dict[str, Any] = {
        "Strategy": STRATEGIES[sweep.method],
        "HyperParameterTuningJobObjective": {
            "Type": sweep.objective.goal.capitalize(),
            "MetricName": sweep.objective.metric,
        },
        "ResourceLimits": _limits(sweep),
        "ParameterRanges": _ranges(sweep),
        # Auto is a rule of SageMaker's own, which the section does not have
        "TrainingJobEarlyStoppingType": "Off",
    }
    if sweep.method == "asha" and sweep.stopping is not None and sweep.stopping.max is not None:
        resources = {"MinResource": sweep.stopping.grace or 1, "MaxResource": sweep.stopping.max}
        config["StrategyConfig"] = {"HyperbandStrategyConfig": resources}
    if sweep.objective.target is not None:
        config["TuningJobCompletionCriteria"] = {
            "TargetObjectiveMetricValue": sweep.objective.target
        }
    if sweep.method != "grid":
        config["RandomSeed"] = sweep.seed
    return config


def _limits(sweep: Sweep) -> dict[str, int]:
    limits = {
        "MaxNumberOfTrainingJobs": sweep.trial_count,
        "MaxParallelTrainingJobs": min(sweep.parallel, max(1, sweep.trial_count)),
    }
    if sweep.budget.max_time is not None:
        limits["MaxRuntimeInSeconds"] = sweep.budget.max_time
    return limits


def _ranges(sweep: Sweep) -> dict[str, list[dict[str, Any]]]:
    """Each kind in the order of the section. A grid takes nothing but categories."""
    found: dict[str, list[dict[str, Any]]] = {}
    for key, dimension in sweep.space.items():
        kind, of_range = range_of(dimension, grid=sweep.method == "grid")
        found.setdefault(kind, []).append({"Name": key, **of_range})
    return found


def range_of(dimension: Dimension, *, grid: bool) -> tuple[str, dict[str, Any]]:
    """The member of ParameterRanges that a dimension belongs to, and its range without its name."""
    if isinstance(dimension, Choice):
        return "CategoricalParameterRanges", {
            "Values": [text_of(value) for value in dimension.values]
        }
    if grid and isinstance(dimension, Integers):
        return "CategoricalParameterRanges", {
            "Values": [text_of(value) for value in dimension.values]
        }
    kind = (
        "IntegerParameterRanges" if isinstance(dimension, Integers) else "ContinuousParameterRanges"
    )
    ends = {"MinValue": text_of(dimension.low), "MaxValue": text_of(dimension.high)}
    return kind, {**ends, "ScalingType": "Logarithmic" if dimension.log else "Linear"}
