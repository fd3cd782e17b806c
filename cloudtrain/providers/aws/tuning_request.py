"""Turn a plan with a `sweep` section into the body of CreateHyperParameterTuningJob. Pure.

A trial is the training job that the same plan would be without a sweep: image, channels, role,
network and limits are those in its request. Rules
refuse what a tuning job cannot express of a `sweep` section, or of its budget, after the API
reference of CreateHyperParameterTuningJob and the developer guide's pages "How hyperparameter tuning
works", "Resource limits for automatic model tuning" and "HyperbandStrategyConfig". Nothing is
approximated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import Issue, Keys, dotted, warning
from cloudtrain.planning.launch import TAG_PREFIX, Request
from cloudtrain.planning.plan import Plan
from cloudtrain.planning.request_overrides import (
    RequestForm,
    merge_request,
    override_path,
    reserved_issues,
    spec_overrides,
)
from cloudtrain.planning.tuned import room_for, sweep_of, trial_texts
from cloudtrain.providers.aws.request import FORM, event_pattern, job_of, request_with, section_of
from cloudtrain.providers.aws.request_fields import spec_issues, spec_path
from cloudtrain.providers.aws.service_model import TUNING_INPUT, request_violations
from cloudtrain.providers.native_sweep import PORTABLE, ServiceLimits, service_issues
from cloudtrain.spec.search_space import MAX_CHOICES, Choice, Dimension, Integers, Normal
from cloudtrain.spec.sweep import Sweep
from cloudtrain_launcher.contract import text_of

if TYPE_CHECKING:
    from cloudtrain.planning.reference import ResolvedImage


SWEEP_TAG = f"{TAG_PREFIX}sweep"
"""Tag of the tuning job, and of each training job in it: the id of the sweep."""

STRATEGIES = {"grid": "Grid", "random": "Random", "bayesian": "Bayesian", "asha": "Hyperband"}

_CONFIG = "HyperParameterTuningJobConfig"
_RANGES = f"{_CONFIG}.ParameterRanges"

_DEFINED = (
    *("RoleArn", "InputDataConfig", "OutputDataConfig", "ResourceConfig", "StoppingCondition"),
    *("Environment", "EnableManagedSpotTraining", "RetryStrategy", "VpcConfig"),
    *("EnableNetworkIsolation", "EnableInterContainerTrafficEncryption"),
)
"""Members of CreateTrainingJob that HyperParameterTrainingJobDefinition has, too."""

_TAKEN = (*_DEFINED, "AlgorithmSpecification.MetricDefinitions", "Tags")
"""Members of `aws.request` that reach the trials."""

_FIELDS: Mapping[str, Keys] = {
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
    list_keys={f"{_RANGES}.{kind}ParameterRanges": "Name" for kind in ("Continuous", "Integer")},
    reserved={
        **{f"{_CONFIG}.{name}": f"use {dotted(field)}" for name, field in _FIELDS.items()},
        **dict.fromkeys((f"{_RANGES}.*.*.MinValue", f"{_RANGES}.*.*.MaxValue"), "use sweep.space"),
        f"{_CONFIG}.ResourceLimits": "use sweep.trials, sweep.parallel and sweep.budget",
        "HyperParameterTuningJobName": "use name, or --run-id",
        "TrainingJobDefinition*": "use aws.request",
        "Tags": "use tags",
    },
)
"""Members of CreateHyperParameterTuningJob that `aws.sweep_request` may not set."""

_SMALLEST_VOLUME_GIB = 1

MAX_NAME = 32
MAX_METRICS = 20
MAX_TRIALS = 10_000
DEFAULT_TRIALS = 750
"""Maximum number of trials; the larger one for random search and on request only."""
MIN_SECONDS = 120
MAX_SECONDS = 30 * 86_400
MAX_RESOURCE = 20_000
_NO_MEMBER = {
    "tensorboard": "uploads nothing for TensorBoard while a trial trains",
    "remote_debug": "allows no shell in its trials",
    "infra_check": "tests no hardware before its trials",
}
"""Keys of `aws` without a member in the definition -> what a tuning job does instead."""


def render(plan: Plan, image: ResolvedImage | None = None) -> Request:
    """Return the body of CreateHyperParameterTuningJob, and the job document of all trials.

    Each trial's launcher fills its values and its run id into that document.
    """
    room, rules = room_for(plan)
    job = replace(job_of(room), tuned=rules)
    training = request_with(job, room, image).document
    body = {
        "HyperParameterTuningJobName": plan.run_id,
        _CONFIG: _config(sweep_of(plan)),
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
            "InstanceConfigs": [
                {**preference, "VolumeSizeInGB": size} for preference in preferences
            ],
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
        return "CategoricalParameterRanges", {
            "Values": [text_of(value) for value in dimension.values]
        }

    kind = (
        "IntegerParameterRanges" if isinstance(dimension, Integers) else "ContinuousParameterRanges"
    )
    ends = {"MinValue": text_of(dimension.low), "MaxValue": text_of(dimension.high)}
    return kind, {**ends, "ScalingType": "Logarithmic" if dimension.log else "Linear"}


def tuning_issues(plan: Plan) -> list[Issue]:
    """Return issues: errors refuse the sweep, warnings name differences to our own trials."""
    most = MAX_TRIALS if sweep_of(plan).method == "random" else DEFAULT_TRIALS
    issues = [
        *_names(plan),
        *_space(plan),
        *_stopping(plan),
        *_job(plan),
        *service_issues(plan, ServiceLimits("a tuning job", most, (MIN_SECONDS, MAX_SECONDS))),
    ]
    issues += _model(plan, {issue.path for issue in issues if issue.is_error})

    return [plan.located(issue) for issue in (*issues, *_notes(plan))]


def _names(plan: Plan) -> Iterator[Issue]:
    if len(plan.run_id) > MAX_NAME:
        message = (
            f"the sweep's id {plan.run_id} is {len(plan.run_id)} characters long, a tuning job's at"
            f" most {MAX_NAME}"
        )
        yield Issue(("name",), message, "a shorter name, or a shorter --run-id")


def _space(plan: Plan) -> Iterator[Issue]:
    sweep = sweep_of(plan)
    for key, dimension in sweep.space.items():
        path = ("sweep", "space", key)
        if key.startswith("_tuning_"):
            message = "begins with _tuning_, as SageMaker's own hyperparameters do"
            yield Issue(path, message, "choose another name")
        if isinstance(dimension, Normal):
            message = "is a normal distribution, which a tuning job does not have"
            yield Issue(path, message, f"uniform(low, high); or {PORTABLE}")
        if sweep.method == "grid" and isinstance(dimension, Integers):
            count = dimension.size
            if count > MAX_CHOICES:
                message = f"has {count} values, a grid of SageMaker at most {MAX_CHOICES} of each"
                yield Issue(path, message, PORTABLE)


def _stopping(plan: Plan) -> Iterator[Issue]:
    sweep = sweep_of(plan)
    if sweep.method != "asha":
        return

    path = ("sweep", "early_stopping")
    rules = sweep.early_stopping
    if rules is None or rules.max is None:
        hint = "early_stopping: {max: 27}, the reports of a whole trial, such as its epochs"
        message = "is missing: Hyperband needs to know how long a trial is"
        yield Issue((*path, "max") if rules else path, message, hint)
    elif rules.max > MAX_RESOURCE:
        message = f"is {rules.max}, and Hyperband takes at most {MAX_RESOURCE}"
        yield Issue((*path, "max"), message, PORTABLE)
    if rules is not None and "eta" in rules.model_fields_set:
        message = "SageMaker's Hyperband decides itself how many trials continue"
        yield Issue((*path, "eta"), message, PORTABLE)
    if rules is not None and rules.promote == "always":
        message = "SageMaker's Hyperband brings no trial back from its checkpoints"
        yield Issue((*path, "promote"), message, PORTABLE)


def _job(plan: Plan) -> Iterator[Issue]:
    address = plan.target.image_address
    section = section_of(plan)
    if "/pytorch-training" in address:
        message = (
            "AWS's containers start programs their own way, and a tuning job cannot name another"
            " command"
        )
        yield Issue(("image",), message, f"aws.repository, for our own image; or {PORTABLE}")
    for name, instead in _NO_MEMBER.items():
        if getattr(section, name):
            yield Issue(("aws", name), f"a tuning job {instead}", f"leave it out, or {PORTABLE}")

    for item in spec_overrides(plan.spec, "aws"):
        name = ".".join(item.names)
        is_taken = any(f"{name}.".startswith(f"{taken}.") for taken in _TAKEN)
        if item.keys[1] == FORM.field and not is_taken:
            message = f"the trials of a tuning job have no {name}"
            yield Issue(item.keys, message, f"leave it out, or {PORTABLE}")

    yield from reserved_issues(section.sweep_request, SWEEP_FORM)

    count = len(
        render(plan).document["TrainingJobDefinition"]["AlgorithmSpecification"][
            "MetricDefinitions"
        ]
    )
    if count > MAX_METRICS:
        yield Issue(
            ("metrics",),
            f"are {count} with the trainer's, and a tuning job takes at most {MAX_METRICS}",
        )


def _notes(plan: Plan) -> Iterator[Issue]:
    image = plan.target.image
    if image is None or image.recipe is None or not image.recipe.kind:
        yield warning(
            "the image must have our program `train` (docker/train) on its PATH: a tuning job"
            " cannot name a command",
            path=("image",),
        )

    if comes_back(plan):
        yield warning(
            "each trial also downloads the checkpoints of those before it: SageMaker keeps them"
            " together"
        )
    elif not plan.spec.checkpoints.uri:
        yield warning(
            "checkpoints of a trial end with it: a tuning job has no folder in S3 for each (model"
            " and output stay)"
        )


def _model(plan: Plan, reported: set[Keys]) -> list[Issue]:
    """Return violations of SageMaker's service model, at the fields that they come from."""
    violations = request_violations(render(plan).document, TUNING_INPUT)
    return spec_issues(
        "CreateHyperParameterTuningJob", violations, lambda path: _path_of(plan, path), reported
    )


def _path_of(plan: Plan, path: Keys) -> Keys:
    """Return the field of the spec behind a member of the request; empty for none."""
    override = override_path(
        section_of(plan).sweep_request, render(plan).document, path, SWEEP_FORM
    )
    if override is not None:
        return override
    if path[:1] == ("TrainingJobDefinition",):
        return spec_path(plan, path[1:])
    if path[:1] == ("HyperParameterTuningJobName",):
        return ("name",)
    if path[:1] != (_CONFIG,):
        return spec_path(plan, path)

    if path[1:2] == ("ParameterRanges",):
        return ("sweep", "space")
    return _FIELDS.get(dotted(path[1:3])) or _FIELDS.get(dotted(path[1:2]), ("sweep",))
