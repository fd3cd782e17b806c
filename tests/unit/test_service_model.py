"""SageMaker's service model, inputs with a type, and long arguments."""

from __future__ import annotations

import copy
import gzip
import json
import os
from dataclasses import fields
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain import catalog
from cloudtrain.errors import Issue, Keys
from cloudtrain.planning.launch import JobDocument, job_document
from cloudtrain.providers import get_provider
from cloudtrain.providers.aws.service_model import (
    OPERATION_INPUT,
    TABLE,
    TUNING_INPUT,
    request_violations,
)
from cloudtrain_launcher import contract
from tests.golden.cases import plan_of

# The table of SageMaker's service model is botocore's own, and finds each mistake of a request
# once.
# `CLOUDTRAIN_REWRITE_TABLES=1 pytest tests/unit/test_service_model.py` makes the table anew.

REWRITE = os.environ.get("CLOUDTRAIN_REWRITE_TABLES")
PATH = Path(catalog.__file__).with_name(TABLE)
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
    "Tags": [{"Key": "team", "Value": "5 €"}],
}
"""A valid request; only Java understands the pattern of a tag."""


def shapes_of_botocore() -> dict[str, Any]:
    """Return the shapes of the requests out of botocore's whole model, without their prose."""
    spec = find_spec("botocore")
    if spec is None or spec.origin is None:
        pytest.skip("botocore is not installed")
    [path] = (Path(spec.origin).parent / "data" / "sagemaker").glob("*/service-2.json.gz")
    model = json.loads(gzip.decompress(path.read_bytes()))["shapes"]
    shapes: dict[str, Any] = {}
    names = [OPERATION_INPUT, TUNING_INPUT]
    while names:
        name = names.pop()
        if name in shapes:
            continue
        shapes[name] = without_prose(model[name])
        parts = [
            *shapes[name].get("members", {}).values(),
            *(shapes[name].get(key) for key in ("member", "key", "value")),
        ]
        names += [part["shape"] for part in parts if part]
    return dict(sorted(shapes.items()))


def without_prose(value: Any) -> Any:
    """Return a part of the model without its documentation."""
    if isinstance(value, dict):
        return {
            key: without_prose(item)
            for key, item in value.items()
            if not (key == "documentation" and isinstance(item, str))
        }
    return [without_prose(item) for item in value] if isinstance(value, list) else value


def test_the_table_is_botocores_own() -> None:
    shapes = shapes_of_botocore()
    if REWRITE:
        lines = [
            f"{json.dumps(name)}:{json.dumps(shape, separators=(',', ':'))}"
            for name, shape in shapes.items()
        ]
        head = f'{{"botocore":"{version("botocore")}",\n"shapes":{{\n'
        PATH.write_text(head + ",\n".join(lines) + "\n}}\n", encoding="utf-8")
    assert json.loads(PATH.read_text("utf-8"))["shapes"] == shapes


def request(*changes: tuple[Keys, Any]) -> dict[str, Any]:
    """Return a good request with some values put in (`GONE`: taken out)."""
    body = copy.deepcopy(GOOD)
    for keys, value in changes:
        place: Any = body
        for key in keys[:-1]:
            place = place[key] if isinstance(key, int) else place.setdefault(key, {})
        if value is GONE:
            del place[keys[-1]]
        else:
            place[keys[-1]] = value
    return body


def channels(count: int, kind: str = "S3Prefix") -> list[dict[str, Any]]:
    source = {"S3DataSource": {"S3DataType": kind, "S3Uri": "s3://b/a"}}
    return [{"ChannelName": "train", "DataSource": source}] * count


def test_a_good_request_has_no_violation() -> None:
    assert request_violations(request()) == []


NAME: Keys = ("TrainingJobName",)
COUNT: Keys = ("ResourceConfig", "InstanceCount")
MODE: Keys = ("AlgorithmSpecification", "TrainingInputMode")
CHANNELS: Keys = ("InputDataConfig",)

ERRORS: list[tuple[Keys, Any, str]] = [
    (("RoleArn",), GONE, "is missing"),
    (("Tags", 0, "Key"), GONE, "is missing"),
    (("TrainingJobNam",), "x", "is not a known member (did you mean 'TrainingJobName'?)"),
    (NAME, 5, "expected text, got a whole number"),
    (NAME, None, "expected text, got nothing"),
    (("ResourceConfig",), [], "expected a structure, got a list"),
    (("Tags",), {}, "expected a list, got a mapping"),
    (("Environment",), "A=1", "expected a map, got text"),
    (("EnableManagedSpotTraining",), 1, "expected true or false, got a whole number"),
    (COUNT, True, "expected a whole number, got true"),
    (COUNT, 2.0, "expected a whole number, got a number"),
    (COUNT, -1, "is -1, at least 0"),
    (COUNT, 2**31, "is 2147483648, at most 2147483647"),
    (NAME, "", "is 0 characters long, at least 1"),
    (CHANNELS, [], "has 0 items, at least 1"),
]
WARNINGS: list[tuple[Keys, Any, str]] = [
    (("ResourceConfig", "KeepAlivePeriodInSeconds"), 21601, "is 21601, at most 21600"),
    (NAME, "a" * 64, "is 64 characters long, at most 63"),
    (NAME, "digits\n", r"'digits\n' does not match [a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}"),
    (MODE, "file", "'file' is none of the 3 known values (Pipe, File, FastFile)"),
    (CHANNELS, channels(21), "has 21 items, at most 20"),
    (("Environment",), {f"V{n}": "" for n in range(101)}, "has 101 entries, at most 100"),
    (("Environment", "1-bad"), "x", "the name '1-bad' does not match [a-zA-Z_][a-zA-Z0-9_]*"),
]


@pytest.mark.parametrize("severity", ["error", "warning"])
def test_each_mistake_is_named_once_with_its_path(severity: str) -> None:
    for keys, value, message in ERRORS if severity == "error" else WARNINGS:
        [issue] = request_violations(request((keys, value)))
        assert (issue.path, issue.message, issue.severity) == (keys, message, severity)


def test_only_the_beginning_of_an_environment_value_is_shown() -> None:
    secret = "sk-" + "s3cr3t" * 100
    for value in (secret, [secret], {"a": secret}):
        issues: list[Issue] = request_violations(request((("Environment", "TOKEN"), value)))
        assert issues
        assert not [issue for issue in issues if "s3cr3t" in issue.message]


# Inputs with a declared type in a request, the guess that a plan shows, and long arguments that
# travel once.


def rendered(provider: str, text: str) -> Any:
    return get_provider(provider).render(
        plan_of(provider, f"name: d\nlimits: {{max_runtime: 1 h}}\n{text}")
    )


@pytest.mark.parametrize(
    ("place", "kind", "sent", "lies"),
    [
        ("azureml:words:3", "", "uri_folder", "azureml:words:3"),
        ("azureml:words:3", "file", "uri_file", "azureml:words:3"),
        ("azureml:words:3", "table", "mltable", "azureml:words:3"),
        ("azureml:bert:1", "model", "custom_model", "azureml:bert:1"),
        ("azureml:bert:1", "mlflow_model", "mlflow_model", "azureml:bert:1"),
        (
            "azureml://datastores/d/paths/v1.csv",
            "folder",
            "uri_folder",
            "azureml://datastores/d/paths/v1.csv/",
        ),
        (
            "azureml://datastores/d/paths/LICENSE",
            "file",
            "uri_file",
            "azureml://datastores/d/paths/LICENSE",
        ),
        (
            "azureml://datastores/d/paths/table",
            "table",
            "mltable",
            "azureml://datastores/d/paths/table/",
        ),
        (
            "azureml://datastores/d/paths/bert.pt",
            "model",
            "custom_model",
            "azureml://datastores/d/paths/bert.pt",
        ),
    ],
)
def test_an_input_of_azure_is_what_it_is_said_to_be(
    place: str, kind: str, sent: str, lies: str
) -> None:
    suffix = f", type: {kind}" if kind else ""
    item = rendered("azure", f"inputs: {{a: {{uri: '{place}'{suffix}}}}}\n").document["inputs"]["a"]
    assert (item["type"], item["path"]) == (sent, lies)


@pytest.mark.parametrize(
    ("place", "kind", "file", "lies"),
    [
        ("s3://b/v1.csv", "", "v1.csv", "s3://b/v1.csv"),
        ("s3://b/v1.csv", "folder", None, "s3://b/v1.csv/"),
        ("s3://b/LICENSE", "file", "LICENSE", "s3://b/LICENSE"),
        ("s3://b/bert", "model", None, "s3://b/bert/"),
    ],
)
def test_an_input_of_aws_is_what_it_is_said_to_be(
    place: str, kind: str, file: str | None, lies: str
) -> None:
    suffix = f", type: {kind}" if kind else ""
    request = rendered("aws", f"inputs: {{a: {{uri: '{place}'{suffix}}}}}\n")
    channel = next(
        item for item in request.document["InputDataConfig"] if item["ChannelName"] == "a"
    )
    assert channel["DataSource"]["S3DataSource"]["S3Uri"] == lies
    assert (request.job.inputs or {})["a"].get("file") == file


SWITCHES = (
    *(
        "AZUREML_COMPUTE_USE_COMMON_RUNTIME",
        "AZUREML_COMMON_RUNTIME_USE_INTERACTIVE_CAPABILITY",
        "AZUREML_SSH_KEY",
    ),
    "AZUREML_ARTIFACTS_DEFAULT_TIMEOUT",
)
"""Variables of azureml-examples and others, `cli/jobs/deepspeed/deepspeed-training/job.yml` the
first three.
"""


@pytest.mark.parametrize("name", SWITCHES)
def test_a_switch_that_microsofts_examples_set_is_taken(name: str) -> None:
    plan = plan_of("azure", f"name: d\nlimits: {{max_runtime: 1 h}}\nenv: {{{name}: 'True'}}\n")
    assert [issue.line() for issue in plan.issues if issue.is_error] == []
    assert get_provider("azure").render(plan).document["environment_variables"][name] == "True"


TEXTS = st.sampled_from(["a", "x" * 300, "y" * 300, "é" * 250, "--flag", "$argv"])
VALUES = st.one_of(
    st.lists(TEXTS, max_size=4),
    st.dictionaries(
        st.sampled_from(["a", "b", "$argv"]),
        st.one_of(TEXTS, st.integers(0, 9), st.lists(TEXTS, max_size=3)),
        max_size=3,
    ),
)


@given(VALUES)
def test_the_launcher_reads_the_arguments_as_they_were_said(
    tmp_path_factory: pytest.TempPathFactory, values: Any
) -> None:
    plan = plan_of(
        "azure",
        "name: d\nentrypoint: -m train\nlimits: {max_runtime: 1 h}\nargs:"
        f" {json.dumps(values)}\n",
    )
    path = tmp_path_factory.getbasetemp() / "job.json"
    path.write_text(json.dumps(job_document(plan).to_json()), encoding="utf-8")
    job = contract.read_job(path)
    assert job.values == values
    assert job.argv == list(plan.spec.args.argv)


def test_the_launcher_knows_every_field_of_a_job_document() -> None:
    assert {item.name for item in fields(JobDocument)} == {
        item.name for item in fields(contract.Job)
    }


def test_a_long_argument_travels_once() -> None:
    plan = plan_of(
        "azure",
        "name: d\nentrypoint: -m train\nlimits: {max_runtime: 1 h}\nargs: {x:"
        f" {'y' * 90_000}}}\n",
    )
    assert json.dumps(job_document(plan).to_json()).count("y" * 90_000) == 1
    assert [issue.line() for issue in plan.issues if issue.is_error] == []
