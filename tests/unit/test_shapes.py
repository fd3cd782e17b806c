"""A request held against botocore's own model of SageMaker: each mistake is found, named once, and
with all others.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest

from cloudtrain.issues import Issue, Keys, warning
from cloudtrain.providers.aws.shapes import violations

pytest.importorskip("botocore", reason='pip install "cloudtrain[aws]"')
GONE = object()
GOOD: dict[str, Any] = {
    "TrainingJobName": "digits-k2x9",
    "RoleArn": "arn:aws:iam::123456789012:role/service-role/train",
    "AlgorithmSpecification": {
        "TrainingImage": "1.dkr.ecr.us-east-1.amazonaws.com/a:1",
        "TrainingInputMode": "File",
    },
    "OutputDataConfig": {"S3OutputPath": "s3://bucket/out"},
    "ResourceConfig": {"InstanceType": "ml.g5.xlarge", "InstanceCount": 2, "VolumeSizeInGB": 30},
    "StoppingCondition": {"MaxRuntimeInSeconds": 3600},
    "HyperParameters": {"lr": "0.1"},
    "Environment": {"NCCL_DEBUG": "WARN"},
    "Tags": [{"Key": "team", "Value": "vision"}],
}


@cache
def input_shape(service: str, operation: str) -> Any:
    """The shape of an operation's input, from botocore's own data."""
    import botocore.session

    return (
        botocore.session.get_session()
        .get_service_model(service)
        .operation_model(operation)
        .input_shape
    )


def training_job(*changes: tuple[Keys, Any]) -> dict[str, Any]:
    """A good request with some values put in (`GONE`: taken out)."""
    request = copy.deepcopy(GOOD)
    for keys, value in changes:
        place: Any = request
        for key in keys[:-1]:
            place = place[key] if isinstance(key, int) else place.setdefault(key, {})
        if value is GONE:
            del place[keys[-1]]
        else:
            place[keys[-1]] = value
    return request


def violations_of(request: Any) -> list[Issue]:
    return violations(input_shape("sagemaker", "CreateTrainingJob"), request)


def test_a_good_request_has_no_violation() -> None:
    assert violations_of(training_job()) == []


NAME = "[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}"
TYPE: Keys = ("ResourceConfig", "InstanceType")
MODE: Keys = ("AlgorithmSpecification", "TrainingInputMode")
COUNT: Keys = ("ResourceConfig", "InstanceCount")
S3_TYPE: Keys = ("InputDataConfig", 0, "DataSource", "S3DataSource", "S3DataType")


def channel(**source: Any) -> dict[str, Any]:
    return {"ChannelName": "train", "DataSource": {"S3DataSource": source}}


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("RoleArn",), GONE, "is missing"),
        (("AlgorithmSpecification", "TrainingInputMode"), GONE, "is missing"),
        (("TrainingJobNam",), "x", "is not a known member (did you mean 'TrainingJobName'?)"),
        (("Qqq",), 1, "is not a known member"),
        (
            ("ResourceConfig", "instancetype"),
            "x",
            "is not a known member (did you mean 'InstanceType'?)",
        ),
        (("TrainingJobName",), 5, "expected text, got a whole number"),
        (("TrainingJobName",), None, "expected text, got nothing"),
        (("ResourceConfig",), [], "expected a structure, got a list"),
        (("Tags",), {}, "expected a list, got a mapping"),
        (("Environment",), "A=1", "expected a map, got text"),
        (("HyperParameters", "lr"), 0.1, "expected text, got a number"),
        (("HyperParameters", "flag"), True, "expected text, got true"),
        (("EnableManagedSpotTraining",), "true", "expected true or false, got text"),
        (("EnableManagedSpotTraining",), 1, "expected true or false, got a whole number"),
        (COUNT, "2", "expected a whole number, got text"),
        (COUNT, True, "expected a whole number, got true"),
        (COUNT, 2.0, "expected a whole number, got a number"),
        (COUNT, -1, "is -1, at least 0"),
        (COUNT, 2**31, "is 2147483648, at most 2147483647"),
        (("ResourceConfig", "KeepAlivePeriodInSeconds"), 21601, "is 21601, at most 21600"),
        (("StoppingCondition", "MaxRuntimeInSeconds"), 0, "is 0, at least 1"),
        (("RetryStrategy", "MaximumRetryAttempts"), 31, "is 31, at most 30"),
        (("TrainingJobName",), "", "is 0 characters long, at least 1"),
        (("TrainingJobName",), "a" * 64, "is 64 characters long, at most 63"),
        (("TrainingJobName",), "bad name!", f"'bad name!' does not match {NAME}"),
        (("TrainingJobName",), "digits\n", rf"'digits\n' does not match {NAME}"),
        (("TrainingJobName",), "ä" * 50, f"{'ä' * 50!r} does not match {NAME}"),
        (MODE, "file", "'file' is none of the 3 known values (Pipe, File, FastFile)"),
        (("InputDataConfig",), [], "has 0 items, at least 1"),
        (
            ("InputDataConfig",),
            [channel(S3DataType="S3Prefix", S3Uri="s3://b/a")] * 21,
            "has 21 items, at most 20",
        ),
        (("Environment",), {f"V{n}": "" for n in range(101)}, "has 101 entries, at most 100"),
        (("Environment", "1-bad"), "x", "the name '1-bad' does not match [a-zA-Z_][a-zA-Z0-9_]*"),
        (("Environment", "A" * 513), "x", "the name is 513 characters long, at most 512"),
        (("Environment", "TOKEN"), "x" * 513, "is 513 characters long, at most 512"),
        (("HyperParameters", "text"), "y" * 50 + "\n", f"{'y' * 39 + '…'!r} does not match .*"),
        (("Tags", 0, "Key"), GONE, "is missing"),
    ],
    ids=lambda part: ".".join(map(str, part)) if isinstance(part, tuple) else None,
)
def test_a_mistake_is_found_and_named_once(keys: Keys, value: Any, message: str) -> None:
    assert [
        (violation.path, violation.message)
        for violation in violations_of(training_job((keys, value)))
    ] == [(keys, message)]


@pytest.mark.parametrize(
    ("name", "similar"),
    [
        ("ml.p99.48xlarge", " (near: ml.p5.48xlarge, ml.p5e.48xlarge, ml.p5.4xlarge)"),
        ("ML.G5.48XLARGE", " (near: ml.g5.48xlarge, ml.g5.8xlarge, ml.g5.4xlarge)"),
        ("qqqqqqqqq", ""),
    ],
)
def test_a_wrong_type_of_machine_is_told_with_its_neighbours_not_with_all(
    name: str, similar: str
) -> None:
    members = (
        input_shape("sagemaker", "CreateTrainingJob")
        .members["ResourceConfig"]
        .members["InstanceType"]
        .enum
    )
    message = f"{name!r} is none of the {len(members)} known values{similar}"
    assert violations_of(training_job((TYPE, name))) == [warning(message, path=TYPE)]


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (TYPE, "ml.p99.48xlarge"),
        (("TrainingJobName",), "bad name!"),
        (("TrainingJobName",), "a" * 64),
        (("Environment", "1-bad"), "x"),
        (("ResourceConfig", "KeepAlivePeriodInSeconds"), 21601),
        (("InputDataConfig",), [channel(S3DataType="S3Prefix", S3Uri="s3://b/a")] * 21),
    ],
)
def test_an_enum_a_pattern_or_a_maximum_is_a_warning(keys: Keys, value: Any) -> None:
    assert [issue.severity for issue in violations_of(training_job((keys, value)))] == ["warning"]


@pytest.mark.parametrize(
    ("keys", "value"),
    [
        (("RoleArn",), GONE),
        (("Qqq",), 1),
        (("TrainingJobName",), 5),
        (("TrainingJobName",), ""),
        (COUNT, -1),
        (COUNT, 2**31),
        (("StoppingCondition", "MaxRuntimeInSeconds"), 0),
    ],
)
def test_what_is_missing_of_another_type_or_too_little_is_wrong_for_every_version(
    keys: Keys, value: Any
) -> None:
    assert [issue.severity for issue in violations_of(training_job((keys, value)))] == ["error"]


def test_a_pattern_that_only_java_understands_is_passed_over() -> None:
    assert violations_of(training_job((("Tags", 0, "Value"), "5 €"))) == []


def test_a_name_that_is_no_text_is_a_mistake_of_its_entry() -> None:
    message = "the name: expected text, got a whole number"
    assert violations_of(training_job((("Environment",), {5: "x"}))) == [
        Issue(("Environment", "5"), message)
    ]


def test_a_mistake_deep_in_a_list_has_its_whole_path() -> None:
    request = training_job(
        (("InputDataConfig",), [channel(S3DataType="S3Prefix", S3Uri="s3://b/a")]),
        (S3_TYPE, "Prefix"),
    )
    [violation] = violations_of(request)
    assert violation.path == S3_TYPE


def test_all_mistakes_come_at_once() -> None:
    wrong = training_job(
        (("RoleArn",), GONE),
        (("TrainingJobName",), "bad_name"),
        (("Bogus",), 1),
        (TYPE, "ml.bogus"),
        (COUNT, "two"),
        (("StoppingCondition", "MaxRuntimeInSeconds"), 0),
        (("Environment",), {"1-bad": "x" * 600, "OK": 1}),
        (("Tags",), [{"Key": "a", "Value": "b" * 257}, {"Key": ""}]),
        (("OutputDataConfig", "S3OutputPath"), "out/here"),
    )
    paths = [violation.path for violation in violations_of(wrong)]
    assert sorted(map(str, paths)) == sorted(
        map(
            str,
            [
                ("RoleArn",),
                ("TrainingJobName",),
                ("Bogus",),
                TYPE,
                COUNT,
                ("StoppingCondition", "MaxRuntimeInSeconds"),
                ("Environment", "1-bad"),
                ("Environment", "1-bad"),
                ("Environment", "OK"),
                ("Tags", 0, "Value"),
                ("Tags", 1, "Key"),
                ("Tags", 1, "Value"),
                ("OutputDataConfig", "S3OutputPath"),
            ],
        )
    )


def test_no_more_than_the_beginning_of_an_environment_value_is_shown() -> None:
    secret = "sk-" + "s3cr3t" * 100
    for value in (secret, [secret], {"a": secret}, secret.encode()):
        message = " ".join(
            violation.message
            for violation in violations_of(training_job((("Environment", "TOKEN"), value)))
        )
        assert message
        assert "s3cr3t" not in message
    [violation] = violations_of(training_job((("HyperParameters", "t"), "s3cr3t" * 100 + "\n")))
    assert len(violation.message) < 80
