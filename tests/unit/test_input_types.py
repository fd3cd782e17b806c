"""Inputs with a declared type in a request, the guess that a plan shows, and long arguments that
travel once.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloudtrain.cli.plan_view import overview
from cloudtrain.planning.job_document import job_document
from cloudtrain.planning.launch import JobDocument
from cloudtrain.providers import get_provider
from cloudtrain_launcher import contract
from tests.golden.cases import plan_of


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


def test_a_plan_shows_what_it_takes_an_input_for_and_that_it_guessed() -> None:
    places = (
        "a: 'azureml:words:3', b: 'https://e.org/t.csv', c: {uri: 'azureml:bert:1', type: model},"
        " d: ./data"
    )
    shown = overview(
        plan_of("azure", f"name: x\nlimits: {{max_runtime: 1 h}}\ninputs: {{{places}}}\n")
    )
    assert "input a  azureml:words:3  (a folder, without a suffix; set type: if not)" in shown
    assert "input b  https://e.org/t.csv  (one file, by its suffix; set type: if not)" in shown
    assert "input c  azureml:bert:1  (model)\n" in shown
    assert "input d  ./data\n" in shown


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


@pytest.mark.parametrize(
    ("launch", "warm"), [("{}", True), ("{warm: true}", True), ("{warm: false}", False)]
)
def test_the_launcher_reads_whether_ranks_may_be_forked(
    launch: str, warm: bool, tmp_path: Path
) -> None:
    text = f"name: d\nentrypoint: train.py\nlimits: {{max_runtime: 1 h}}\nlaunch: {launch}\n"
    (tmp_path / "job.json").write_text(json.dumps(job_document(plan_of("azure", text)).to_json()))
    assert contract.read_job(tmp_path / "job.json").warm is warm


@pytest.mark.parametrize(
    ("limits", "seconds"), [("", 1800), (", hang: 45 min", 2700), (", hang: 0", 0)]
)
def test_the_launcher_reads_after_how_long_a_hang_ends_the_job(
    limits: str, seconds: int, tmp_path: Path
) -> None:
    text = f"name: d\nentrypoint: train.py\nlimits: {{max_runtime: 1 h{limits}}}\n"
    (tmp_path / "job.json").write_text(json.dumps(job_document(plan_of("azure", text)).to_json()))
    assert contract.read_job(tmp_path / "job.json").hang_seconds == seconds
