"""The imitated tuning jobs refuse what SageMaker refuses: each rule with the page of its
documentation.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
from botocore.exceptions import ClientError, ParamValidationError

from tests.fakes.aws.cloud import Cloud
from tests.fakes.aws.samples import request
from tests.support.waiting import eventually

GONE = object()
_CONFIG = "HyperParameterTuningJobConfig"
_DEFINITION = "TrainingJobDefinition"
_RANGES = (_CONFIG, "ParameterRanges")
_LIMITS = (_CONFIG, "ResourceLimits")
X = {"Name": "x", "MinValue": "0.1", "MaxValue": "1", "ScalingType": "Linear"}
KIND = {"Name": "kind", "Values": ["a", "b"]}


def body(cloud: Cloud, name: str) -> dict[str, Any]:
    """A request that is taken."""
    training = request(cloud, name)
    definition = {
        key: training[key]
        for key in training
        if key not in ("TrainingJobName", "HyperParameters", "Tags")
    }
    definition["AlgorithmSpecification"] = {
        "TrainingImage": cloud.image,
        "TrainingInputMode": "File",
        "MetricDefinitions": [{"Name": "loss", "Regex": "loss: ([0-9.]+)"}],
    }
    return {
        "HyperParameterTuningJobName": name,
        _CONFIG: {
            "Strategy": "Random",
            "HyperParameterTuningJobObjective": {"Type": "Minimize", "MetricName": "loss"},
            "ResourceLimits": {"MaxNumberOfTrainingJobs": 2, "MaxParallelTrainingJobs": 1},
            "ParameterRanges": {
                "ContinuousParameterRanges": [X],
                "CategoricalParameterRanges": [KIND],
            },
        },
        _DEFINITION: definition,
    }


def put(value: Any, path: tuple[Any, ...], new: Any) -> None:
    """Set a field, or remove an existing one."""
    for key in path[:-1]:
        value = value[key]
    if new is GONE:
        del value[path[-1]]
    else:
        value[path[-1]] = new


def create(cloud: Cloud, made: dict[str, Any]) -> None:
    cloud.client("sagemaker").create_hyper_parameter_tuning_job(**made)


# By the page of the API reference or the developer guide.
REFUSED: dict[str, tuple[str, dict[tuple[Any, ...], Any], str]] = {
    "a grid of numbers": ("How hyperparameter tuning works", {(_CONFIG, "Strategy"): "Grid"}, "Only categorical"),
    "a part of a grid": (
        "How hyperparameter tuning works",
        {(_CONFIG, "Strategy"): "Grid", (*_RANGES, "ContinuousParameterRanges"): GONE,
         (*_LIMITS, "MaxNumberOfTrainingJobs"): 1},
        "must equal the total number",
    ),
    "no ranges": ("ParameterRanges", {_RANGES: {}}, "at least one range"),
    "a name twice": (
        "ParameterRanges", {(*_RANGES, "CategoricalParameterRanges"): [{**KIND, "Name": "x"}]}, "must be unique",
    ),
    "logarithm of zero": (
        "Define hyperparameter ranges",
        {(*_RANGES, "ContinuousParameterRanges"): [{**X, "MinValue": "0", "ScalingType": "Logarithmic"}]},
        "greater than 0",
    ),
    "a reverse logarithm of an integer": (
        "Define hyperparameter ranges",
        {(*_RANGES, "IntegerParameterRanges"): [
            {"Name": "n", "MinValue": "0", "MaxValue": "9", "ScalingType": "ReverseLogarithmic"}]},
        "needs a continuous range",
    ),
    "an empty range": (
        "ContinuousParameterRange", {(*_RANGES, "ContinuousParameterRanges"): [{**X, "MaxValue": "0.1"}]}, "less than",
    ),
    "a range of words": (
        "IntegerParameterRange",
        {(*_RANGES, "IntegerParameterRanges"): [{"Name": "n", "MinValue": "1.5", "MaxValue": "9"}]}, "of the type",
    ),
    "a static value that is searched": (
        "HyperParameterTrainingJobDefinition", {(_DEFINITION, "StaticHyperParameters"): {"x": "1"}}, "both a static",
    ),
    "an objective that nobody defines": (
        "HyperParameterTuningJobObjective",
        {(_CONFIG, "HyperParameterTuningJobObjective", "MetricName"): "accuracy"}, "not among the MetricDefinitions",
    ),
    "no objective": (
        "HyperParameterTuningJobObjective", {(_CONFIG, "HyperParameterTuningJobObjective"): GONE}, "is required",
    ),
    "Hyperband without an end": (
        "HyperbandStrategyConfig", {(_CONFIG, "Strategy"): "Hyperband"}, "MaxResource must be given",
    ),
    "Hyperband with early stopping": (
        "HyperParameterTuningJobConfig",
        {(_CONFIG, "Strategy"): "Hyperband", (_CONFIG, "TrainingJobEarlyStoppingType"): "Auto"}, "must be Off",
    ),
    "resources of another strategy": (
        "HyperbandStrategyConfig",
        {(_CONFIG, "StrategyConfig"): {"HyperbandStrategyConfig": {"MaxResource": 3}}}, "the Hyperband strategy only",
    ),
    "too many trials": (
        "Resource limits for automatic model tuning", {(*_LIMITS, "MaxNumberOfTrainingJobs"): 751}, "at most 750",
    ),
    "too many metrics": (
        "Resource limits for automatic model tuning",
        {(_DEFINITION, "AlgorithmSpecification", "MetricDefinitions"): [
            {"Name": name, "Regex": "x([0-9])"} for name in ("loss", *"abcdefghijklmnopqrst")]},
        "at most 20 metrics",
    ),
    "two months": (
        "Resource limits for automatic model tuning", {(*_LIMITS, "MaxRuntimeInSeconds"): 60 * 86_400}, "30 days",
    ),
    "too many at once": (
        "Resource limits for automatic model tuning", {(*_LIMITS, "MaxParallelTrainingJobs"): 11}, "is 10, with",
    ),
    "no machines": ("HyperParameterTrainingJobDefinition", {(_DEFINITION, "ResourceConfig"): GONE}, "Exactly one of"),
    "machines said twice": (
        "HyperParameterTuningResourceConfig",
        {(_DEFINITION, "ResourceConfig"): GONE, (_DEFINITION, "HyperParameterTuningResourceConfig"): {
            "InstanceType": "ml.m5.large",
            "InstanceConfigs": [{"InstanceType": "ml.m5.large", "InstanceCount": 1, "VolumeSizeInGB": 1}]}},
        "cannot be given together",
    ),
    "a command": (
        "HyperParameterAlgorithmSpecification",
        {(_DEFINITION, "AlgorithmSpecification", "ContainerEntrypoint"): ["python3"]}, "Unknown parameter",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_request_that_sagemaker_refuses_is_refused(account: Cloud, case: str) -> None:
    page, changes, fragment = REFUSED[case]
    made = copy.deepcopy(body(account, "refused"))
    for path, new in changes.items():
        put(made, path, new)
    with pytest.raises((ClientError, ParamValidationError), match=fragment):
        create(account, made)
    assert "refused" not in account.service.tuning_jobs, page


def test_a_name_is_taken_once_and_what_is_not_there_is_not_found(account: Cloud) -> None:
    account.account.capacity.add("ml.g5.xlarge")
    client = account.client("sagemaker")
    made = body(account, "taken")
    create(account, made)
    with pytest.raises(client.exceptions.ResourceInUse):
        create(account, made)
    client.stop_hyper_parameter_tuning_job(HyperParameterTuningJobName="taken")
    for call in (
        client.describe_hyper_parameter_tuning_job,
        client.stop_hyper_parameter_tuning_job,
    ):
        with pytest.raises(client.exceptions.ResourceNotFound):
            call(HyperParameterTuningJobName="nobody")


def test_trials_carry_the_tags_and_what_sagemaker_adds(account: Cloud) -> None:
    account.account.phase_seconds = 3600
    made = {**body(account, "tags"), "Tags": [{"Key": "team", "Value": "vision"}]}
    create(account, made)
    tuning = account.service.tuning_jobs["tags"]
    eventually(lambda: tuning.trials)
    [job] = tuning.trials
    described = job.describe()
    assert job.tags == {"team": "vision"}
    assert described["HyperParameters"]["_tuning_objective_metric"] == "loss"
    assert 0.1 <= float(described["HyperParameters"]["x"]) <= 1
    assert described["HyperParameters"]["kind"] in ("a", "b")
    listed = account.client("sagemaker").list_training_jobs_for_hyper_parameter_tuning_job(
        HyperParameterTuningJobName="tags"
    )["TrainingJobSummaries"]
    assert [set(summary["TunedHyperParameters"]) for summary in listed] == [{"x", "kind"}]
    tuning.stop()
