"""Turn a plan with a `sweep` section into the body of CreateHyperParameterTuningJob. Pure.

A trial is the training job that the same plan would be without a sweep: image, channels, role,
network and limits are those in its request. `tuning_rules` refuses what a tuning job cannot express.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import Keys, dotted
from cloudtrain.planning.launch import TAG_PREFIX, Request
from cloudtrain.planning.plan import Plan
from cloudtrain.planning.request_overrides import RequestForm, merge_request
from cloudtrain.planning.tuned import room_for, sweep_of, trial_texts
from cloudtrain.providers.aws.request import event_pattern, job_of, request_with, section_of
from cloudtrain.spec.search_space import Choice, Dimension, Integers
from cloudtrain.spec.sweep import Sweep
from cloudtrain_wire.tuned_values import text_of

if TYPE_CHECKING:
    from cloudtrain.planning.registry import ResolvedImage

SWEEP_TAG = f"{TAG_PREFIX}sweep"
"""Tag of the tuning job, and of each training job in it: the id of the sweep."""

STRATEGIES = {"grid": "Grid", "random": "Random", "bayesian": "Bayesian", "asha": "Hyperband"}

CONFIG = "HyperParameterTuningJobConfig"
_RANGES = f"{CONFIG}.ParameterRanges"

DEFINED = (
    "RoleArn",
    "InputDataConfig",
    "OutputDataConfig",
    "ResourceConfig",
    "StoppingCondition",
    "Environment",
    "EnableManagedSpotTraining",
    "RetryStrategy",
    "VpcConfig",
    "EnableNetworkIsolation",
    "EnableInterContainerTrafficEncryption",
)
"""Members of CreateTrainingJob that HyperParameterTrainingJobDefinition has, too."""

FIELDS: Mapping[str, Keys] = {
    "HyperParameterTuningJobObjective": ("sweep", "objective", "metric"),
    "RandomSeed": ("sweep", "seed"),
    "ResourceLimits": ("sweep", "trials"),
    "Strategy": ("sweep", "method"),
    "StrategyConfig": ("sweep", "early_stopping"),
    "TuningJobCompletionCriteria.TargetObjectiveMetricValue": ("sweep", "objective", "target"),
}
"""Members of HyperParameterTuningJobConfig that a field of the spec sets."""

SWEEP_FORM = RequestForm(
    section="aws",
    field="sweep_request",
    list_keys={
        f"{_RANGES}.ContinuousParameterRanges": "Name",
        f"{_RANGES}.IntegerParameterRanges": "Name",
    },
    reserved={
        **{f"{CONFIG}.{name}": f"use {dotted(field)}" for name, field in FIELDS.items()},
        f"{_RANGES}.*.*.MinValue": "use sweep.space",
        f"{_RANGES}.*.*.MaxValue": "use sweep.space",
        f"{CONFIG}.ResourceLimits": "use sweep.trials, sweep.parallel and sweep.budget",
        "HyperParameterTuningJobName": "use name, or --run-id",
        "TrainingJobDefinition*": "use aws.request",
        "Tags": "use tags",
    },
)
"""Members of CreateHyperParameterTuningJob that `aws.sweep_request` may not set."""

_SMALLEST_VOLUME_GIB = 1


def render(plan: Plan, image: ResolvedImage | None = None) -> Request:
    """Return the body of CreateHyperParameterTuningJob, and the job document of all trials.

    Each trial's launcher fills its values and its run id into that document.
    """
    room, rules = room_for(plan)
    job = replace(job_of(room), tuned=rules)
    training = request_with(job, room, image).document
    body = {
        "HyperParameterTuningJobName": plan.run_id,
        CONFIG: _config(sweep_of(plan)),
        "TrainingJobDefinition": _definition(plan, training),
        "Tags": [*training["Tags"], {"Key": SWEEP_TAG, "Value": plan.run_id}],
    }
    document = merge_request(body, section_of(plan).sweep_request, SWEEP_FORM)
    return Request(provider="aws", document=document, job=job)


def render_trial(plan: Plan, image: ResolvedImage | None = None) -> Request:
    """Return the training job of a trial whose values are arguments of the plan."""
    sweep = render(plan, image)
    document = {
        "TrainingJobName": plan.run_id,
        **training_definition(sweep.document),
        "HyperParameters": {
            **trial_texts(plan),
            "_tuning_objective_metric": sweep_of(plan).objective.metric,
        },
        "Tags": sweep.document["Tags"],
    }
    return Request(provider="aws", document=document, job=sweep.job)


def training_definition(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the definition in a tuning job's request as members of a training job's."""
    definition = dict(body["TrainingJobDefinition"])
    flexible = definition.pop("HyperParameterTuningResourceConfig", None)
    if flexible is not None:
        definition["ResourceConfig"] = {"InstancePreferences": flexible["InstanceConfigs"]}
    return definition


def comes_back(plan: Plan) -> bool:
    """Return True if machines may be replaced during a trial, so that it needs checkpoints."""
    return bool(plan.spec.resources.spot or plan.spec.limits.retries)


def _definition(plan: Plan, training: Mapping[str, Any]) -> dict[str, Any]:
    algorithm = training["AlgorithmSpecification"]
    metrics = list(algorithm.get("MetricDefinitions", []))
    objective = sweep_of(plan).objective.metric
    if all(metric["Name"] != objective for metric in metrics):
        metrics.append({"Name": objective, "Regex": event_pattern(objective)})

    definition: dict[str, Any] = {
        "AlgorithmSpecification": {
            "TrainingImage": algorithm["TrainingImage"],
            "TrainingInputMode": algorithm["TrainingInputMode"],
            "MetricDefinitions": metrics,
        },
    }
    for name in DEFINED:
        if name in training:
            definition[name] = training[name]
    keep = training.get("CheckpointConfig")
    if keep and (comes_back(plan) or plan.spec.checkpoints.uri):
        definition["CheckpointConfig"] = keep

    preferences = training["ResourceConfig"].get("InstancePreferences")
    if preferences:
        del definition["ResourceConfig"]
        size = training["ResourceConfig"].get("VolumeSizeInGB", _SMALLEST_VOLUME_GIB)
        configs = []
        for preference in preferences:  # without training plans, which the rules refuse
            names = ("InstanceType", "InstanceCount")
            configs.append({name: preference[name] for name in names} | {"VolumeSizeInGB": size})

        definition["HyperParameterTuningResourceConfig"] = {
            "AllocationStrategy": "Prioritized",
            "InstanceConfigs": configs,
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
    """Return the ranges of each kind, in the order of the section. A grid has only categories."""
    ranges: dict[str, list[dict[str, Any]]] = {}
    for key, dimension in sweep.space.items():
        kind, of_range = range_of(dimension, grid=sweep.method == "grid")
        ranges.setdefault(kind, []).append({"Name": key, **of_range})
    return ranges


def range_of(dimension: Dimension, *, grid: bool) -> tuple[str, dict[str, Any]]:
    """Return a dimension's member of ParameterRanges, and its range without its name."""
    if isinstance(dimension, Choice) or (grid and isinstance(dimension, Integers)):
        values = [text_of(value) for value in dimension.values]
        return "CategoricalParameterRanges", {"Values": values}

    kind = "ContinuousParameterRanges"
    if isinstance(dimension, Integers):
        kind = "IntegerParameterRanges"

    ends = {"MinValue": text_of(dimension.low), "MaxValue": text_of(dimension.high)}
    scale = "Logarithmic" if dimension.log else "Linear"
    return kind, {**ends, "ScalingType": scale}
