"""The imitation of SageMaker answers in the form of the service, and refuses what that refuses."""

from __future__ import annotations

import copy
import urllib.error
import urllib.request
from typing import Any

import pytest
from botocore.exceptions import ClientError

from cloudtrain.providers.aws.service_model import violations
from tests.fakes.aws.cloud import Cloud
from tests.fakes.aws.samples import channel, ended, request

Changes = dict[tuple[str, ...], Any]
RESOURCES = ("ResourceConfig",)
STOPPING = ("StoppingCondition",)
SPOT: Changes = {("EnableManagedSpotTraining",): True}
ELSEWHERE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/a:1"
PREFERENCES = [{"InstanceType": "ml.g5.xlarge", "InstanceCount": 1}]

REFUSED: dict[str, tuple[Changes, str]] = {
    "name": (
        {("TrainingJobName",): "bad_name"},
        "1 validation error detected: Value 'bad_name' at 'trainingJobName'",
    ),
    "instance type": ({(*RESOURCES, "InstanceType"): "ml.p99.48xlarge"}, "known values"),
    "unknown part": ({("ExperimentConfig",): {}}, "Not part of"),
    "spot without wait": (SPOT, "Invalid MaxWaitTimeInSeconds"),
    "preferences and spot": (
        {**SPOT, RESOURCES: {"InstancePreferences": PREFERENCES}},
        "together with EnableManagedSpotTraining",
    ),
    "CPU machines waited for": (
        {
            (*RESOURCES, "InstanceType"): "ml.m5.xlarge",
            (*STOPPING, "MaxPendingTimeInSeconds"): 3600,
        },
        "MaxPendingTimeInSeconds is not supported",
    ),
    "image elsewhere": (
        {("AlgorithmSpecification", "TrainingImage"): ELSEWHERE},
        "Invalid training image",
    ),
    "input bucket": (
        {("InputDataConfig",): [channel("a", "s3://no-such/a/")]},
        "No S3 objects found",
    ),
    "file streamed": (
        {("InputDataConfig",): [channel("a", "s3://loopback-bucket/a.txt", InputMode="FastFile")]},
        "must be a folder",
    ),
    "role": (
        {("RoleArn",): "arn:aws:iam::123456789012:role/untrusted"},
        "Could not assume role .*untrusted",
    ),
}


def changed(body: dict[str, Any], changes: Changes) -> dict[str, Any]:
    """Return a copy of a request with these values in it."""
    changed_body = copy.deepcopy(body)
    for path, value in changes.items():
        place = changed_body
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
    return changed_body


def test_description_fits_the_service_model(account: Cloud) -> None:
    account.client("sagemaker").create_training_job(**request(account, "described"))
    described = ended(account, "described")
    phases = [transition["Status"] for transition in described["SecondaryStatusTransitions"]]
    assert phases[-3:] == ["Training", "Uploading", "Completed"]
    assert described["BillableTimeInSeconds"] == described["TrainingTimeInSeconds"] >= 1
    answer = account.service.call("DescribeTrainingJob", {"TrainingJobName": "described"})
    shape = account.service.model.operation_model("DescribeTrainingJob").output_shape
    assert violations(shape, answer) == []


@pytest.mark.parametrize("name", REFUSED)
def test_request_that_sagemaker_refuses_is_refused(account: Cloud, name: str) -> None:
    changes, message = REFUSED[name]
    body = changed(request(account, "refused"), changes)
    with pytest.raises(ClientError, match=message) as refused:
        account.client("sagemaker").create_training_job(**body)
    assert refused.value.response["Error"]["Code"] == "ValidationException"
    assert "refused" not in account.service.jobs


CONFIG = ("HyperParameterTuningJobConfig",)
LIMITS = (*CONFIG, "ResourceLimits")
RANGES = (*CONFIG, "ParameterRanges")
RANGE = {"Name": "x", "MinValue": "0.1", "MaxValue": "1", "ScalingType": "Linear"}

TUNING_REFUSED: dict[str, tuple[Changes, str]] = {
    "unknown part": ({("Autotune",): {"Mode": "Enabled"}}, "Not part of"),
    "grid of numbers": ({(*CONFIG, "Strategy"): "Grid"}, "Only categorical"),
    "logarithm of zero": (
        {
            (*RANGES, "ContinuousParameterRanges"): [
                {**RANGE, "MinValue": "0", "ScalingType": "Logarithmic"}
            ]
        },
        "greater than 0",
    ),
    "undefined objective": (
        {(*CONFIG, "HyperParameterTuningJobObjective", "MetricName"): "accuracy"},
        "not among the MetricDefinitions",
    ),
    "Hyperband without an end": ({(*CONFIG, "Strategy"): "Hyperband"}, "MaxResource"),
    "too many trials": ({(*LIMITS, "MaxNumberOfTrainingJobs"): 751}, "at most 750"),
    "too many at once": ({(*LIMITS, "MaxParallelTrainingJobs"): 11}, "is 10, with"),
}


def tuning_request(cloud: Cloud) -> dict[str, Any]:
    """Return a CreateHyperParameterTuningJob body that is accepted."""
    definition = request(cloud, "refused")
    for name in ("TrainingJobName", "Tags"):
        del definition[name]
    del definition["AlgorithmSpecification"]["ContainerEntrypoint"]
    metrics = [{"Name": "loss", "Regex": "loss: ([0-9.]+)"}]
    definition["AlgorithmSpecification"]["MetricDefinitions"] = metrics
    return {
        "HyperParameterTuningJobName": "refused",
        "HyperParameterTuningJobConfig": {
            "Strategy": "Random",
            "HyperParameterTuningJobObjective": {"Type": "Minimize", "MetricName": "loss"},
            "ResourceLimits": {"MaxNumberOfTrainingJobs": 2, "MaxParallelTrainingJobs": 1},
            "ParameterRanges": {"ContinuousParameterRanges": [RANGE]},
        },
        "TrainingJobDefinition": definition,
    }


@pytest.mark.parametrize("name", TUNING_REFUSED)
def test_tuning_job_that_sagemaker_refuses_is_refused(account: Cloud, name: str) -> None:
    changes, message = TUNING_REFUSED[name]
    body = changed(tuning_request(account), changes)
    with pytest.raises(ClientError, match=message):
        account.client("sagemaker").create_hyper_parameter_tuning_job(**body)
    assert "refused" not in account.service.tuning_jobs


def test_unknown_operations_and_jobs_are_refused(account: Cloud) -> None:
    sagemaker = account.client("sagemaker")
    with pytest.raises(ClientError, match="Requested resource not found"):
        sagemaker.describe_training_job(TrainingJobName="never-was")
    with pytest.raises(ClientError, match="UnknownOperationException"):
        sagemaker.list_models()


def test_unsigned_request_is_rejected(account: Cloud) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"{account.endpoint.url}/{account.bucket}?list-type=2")
    refused.value.close()
    assert refused.value.code == 403
