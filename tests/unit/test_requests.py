"""Requests of the clouds: members that a spec sets itself, and Azure ML's command job."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from hypothesis import strategies as st

from cloudtrain.api.context import read_uploads
from cloudtrain.errors import Issue
from cloudtrain.planning.azureml import CommandJob, command_job
from cloudtrain.planning.plan import Plan
from cloudtrain.planning.request_overrides import RequestForm, merge_request
from cloudtrain.planning.target import Target
from cloudtrain.providers import get_provider
from cloudtrain.providers.aws.request import FORM as AWS
from cloudtrain.providers.azure.request import BOOTSTRAP, OUTPUTS, input_uri, job_of, render
from cloudtrain.providers.azure.request import FORM as AZURE
from cloudtrain.providers.azure.rules import rule_issues
from cloudtrain.providers.rehearsal.base import EmulatedPlan
from cloudtrain.providers.rehearsal.sagemaker import SageMakerEmulator
from cloudtrain.runs.paths import RunPaths
from cloudtrain.spec.fields import Arguments
from tests.golden.cases import EARLIER, plan_of
from tests.support.waiting import HANG_SECONDS

MACHINES = {"aws": "ml.m5.xlarge", "azure": "Standard_DS3_v2"}
AWS_IMAGE = "763104351884.dkr.ecr.us-east-1.amazonaws.com/pytorch-training"
FORMS = {"aws": AWS, "azure": AZURE}
LISTED = RequestForm(section="aws", list_keys={"items": "id"}, reserved={})

TEXT = some.text("ab.:{'*é", max_size=3)
JSON = some.recursive(
    some.none() | some.booleans() | some.integers() | TEXT,
    lambda inner: some.lists(inner, max_size=2) | some.dictionaries(TEXT, inner, max_size=2),
    max_leaves=5,
)


def plan_with(request: str, provider: str = "aws") -> Plan:
    job = f"""
name: digits
resources: {{instance: {{{provider}: {MACHINES[provider]}}}}}
limits: {{max_runtime: 1 h}}
image: example.azurecr.io/train:1
{provider}:
  request:
    {request}
"""
    return plan_of(provider, job)


def errors(plan: Plan) -> list[Issue]:
    return [issue for issue in plan.issues if issue.is_error]


def own_errors(request: str, provider: str = "aws") -> list[Issue]:
    return [issue for issue in errors(plan_with(request, provider)) if "request" in issue.path]


def test_mappings_merge_and_null_removes() -> None:
    document = {"a": {"b": 1, "c": 2}, "d": [1], "e": 5}
    merged = merge_request(document, {"a": {"b": None, "x": {"y": None}}, "d": [2], "e": {}}, AWS)
    assert merged == {"a": {"c": 2, "x": {}}, "d": [2], "e": {}}
    assert document == {"a": {"b": 1, "c": 2}, "d": [1], "e": 5}


def test_items_of_a_keyed_list_merge_by_their_key() -> None:
    document = {"items": [{"id": "a", "x": 1}, {"id": "b", "x": 2}]}
    merged = merge_request(document, {"items": [{"id": "b", "y": 3}, {"id": "c"}]}, LISTED)
    assert merged["items"] == [{"id": "a", "x": 1}, {"id": "b", "x": 2, "y": 3}, {"id": "c"}]


@pytest.mark.parametrize("provider", FORMS)
def test_each_reserved_member_is_refused_with_what_to_use_instead(provider: str) -> None:
    for path, instead in FORMS[provider].reserved.items():
        names = [name.replace("*", "x") for name in path.split(".")]
        if names[0] in ("Tags", "InputDataConfig"):
            key = {"Tags": "Key", "InputDataConfig": "ChannelName"}[names[0]]
            request = f"{names[0]}: [{{{key}: {names[1]}, Value: x}}]"
        else:
            request = "".join(f"{name}: {{" for name in names[:-1])
            request += f"{names[-1]}: x{'}' * len(names[:-1])}"
        issues = own_errors(request, provider)
        assert issues, path
        assert issues[0].hint == instead
        assert issues[0].origin.startswith("job.yaml:8:")


@pytest.mark.parametrize("name", ["Tags", "Environment", "InputDataConfig", "StoppingCondition"])
def test_removing_what_cloudtrain_relies_on_is_refused(name: str) -> None:
    assert [issue.path for issue in own_errors(f"{name}: null")] == [("aws", "request", name)]


@pytest.mark.parametrize("provider", FORMS)
def test_removing_any_member_gives_issues_and_never_an_error(provider: str) -> None:
    for name in plan_with("{}", provider).request.document:
        _ = plan_with(f"{json.dumps(name)}: null", provider).issues


@pytest.mark.parametrize("provider", FORMS)
@given(value=JSON, data=some.data())
def test_any_value_of_any_member_gives_issues_and_never_an_error(
    provider: str, value: Any, data: some.DataObject
) -> None:
    plan = plan_with("{}", provider)
    name = data.draw(some.sampled_from([*plan.request.document, "other"]))
    _ = plan_with(f"{json.dumps(name)}: {json.dumps(value)}", provider).issues


def test_an_image_of_a_private_registry_comes_through_the_jobs_network() -> None:
    config = "{AlgorithmSpecification: {TrainingImageConfig: {TrainingRepositoryAccessMode: Vpc}}}"
    network = "subnets: [subnet-0123abcd]\n  security_groups: [sg-0123abcd]"
    plan = plan_with(f"{config}\n  {network}")
    assert errors(plan) == []
    assert plan.request.document["AlgorithmSpecification"]["TrainingImage"].startswith(
        "example.azurecr"
    )


def test_a_secret_in_the_request_is_warned_of() -> None:
    plan = plan_with("Environment: {HF_TOKEN: abc}")
    (issue,) = (issue for issue in plan.issues if "looks like a secret" in issue.message)
    assert issue.path == ("aws", "request", "Environment", "HF_TOKEN")


def test_the_request_is_part_of_the_digest_of_the_job() -> None:
    one, other = (plan_with(f"ExperimentConfig: {{ExperimentName: {name}}}") for name in "ab")
    assert one.spec_digest != other.spec_digest


def test_an_output_of_the_request_is_mounted_and_its_path_exported() -> None:
    plan = plan_with("outputs: {images: {type: uri_folder}}", "azure")
    assert not errors(plan)
    assert plan.request.document["outputs"]["images"] == {"type": "uri_folder"}
    assert ' AZURE_ML_OUTPUT_images="${{outputs.images}}" ' in plan.request.document["command"]


def sweep_with(request: str, provider: str) -> Plan:
    return plan_of(
        provider,
        f"""
name: digits
entrypoint: train.py
resources: {{instance: {{{provider}: {MACHINES[provider]}}}}}
limits: {{max_runtime: 1 h}}
image: example.azurecr.io/train:1
{provider}: {{request: {{{request}}}}}
sweep:
  engine: native
  method: random
  trials: 2
  objective: {{metric: loss, goal: minimize}}
  space: {{args.lr: [0.1, 0.2]}}
  budget: {{max_cost: 10 USD}}
""",
    )


@pytest.mark.parametrize(
    ("provider", "request_", "place"),
    [
        ("aws", "Environment: {SPEED: fast}", "TrainingJobDefinition Environment SPEED"),
        ("azure", "resources: {docker_args: fast}", "trial resources docker_args"),
        ("azure", "description: fast", "description"),
    ],
)
def test_trials_of_a_native_sweep_have_the_members_that_theirs_has(
    provider: str, request_: str, place: str
) -> None:
    plan = sweep_with(request_, provider)
    sweeps = get_provider(provider).native_sweeps()
    value: Any = sweeps.render(plan).document
    for name in place.split():
        value = value[name]
    assert value == "fast"
    assert not any("request" in issue.path for issue in [*sweeps.rules(plan), *plan.issues])


@pytest.mark.parametrize(
    ("provider", "request_"),
    [("aws", "ExperimentConfig: {ExperimentName: x}"), ("azure", "parent_job_name: x")],
)
def test_a_native_sweep_refuses_members_that_its_trials_lack(provider: str, request_: str) -> None:
    issues = get_provider(provider).native_sweeps().rules(sweep_with(request_, provider))
    name = request_.partition(":")[0]
    refused = [
        issue for issue in issues if issue.is_error and issue.path[:2] == (provider, "request")
    ]
    assert [issue.path[2] for issue in refused] == [name]
    assert f"no {name}" in refused[0].message


PLAIN = "name: digits\nresources: {nodes: 2, gpus: 8, gpu: H100}\nlimits: {max_runtime: 1 h}\n"
PLAN = plan_of("azure", PLAIN)
HERE = Target(provider="local", where="this machine", max_nodes=8, grace_seconds=30)
MARKS = st.sampled_from(
    ["$", "{", "${{", "${{inputs.x}}", "}", "\\", "\\u007b", "u007b", '"', "'", "\n"]
)
WORDS = st.lists(
    st.lists(MARKS | st.text(st.characters(codec="utf-8", exclude_characters="\0"))).map("".join)
)


def with_arguments(*words: str) -> Plan:
    return replace(PLAN, spec=PLAN.spec.model_copy(update={"args": Arguments(words, words)}))


def job_for(text: str) -> CommandJob:
    return command_job(render(plan_of("azure", PLAIN + text)).document, master="10.0.0.4")


@given(WORDS)
def test_any_argument_arrives_as_it_was_and_never_as_a_placeholder(words: list[str]) -> None:
    plan = with_arguments(*words)
    text = render(plan).document["environment_variables"]["CLOUDTRAIN_JOB"]
    assert "${{" not in text
    assert "\n" not in text
    assert json.loads(text) == json.loads(json.dumps(job_of(plan).to_json()))
    assert json.loads(text)["argv"] == words
    assert render(plan).document["command"] == render(PLAN).document["command"]


def test_a_shell_takes_the_command_as_it_is_whatever_blanks_are_in_the_paths(
    tmp_path: Path,
) -> None:
    stub = tmp_path / "bin" / "python3"
    stub.parent.mkdir()
    stub.write_text(
        '#!/bin/sh\nprintf "%s\\n" "$CLOUDTRAIN_INPUT_TRAIN" "$CLOUDTRAIN_MODEL_DIR" "$@"\n'
    )
    stub.chmod(0o755)
    job = job_for("inputs: {train: 'azureml:mnist:1'}\n")
    places = {f"outputs.{name}": f"/mnt/it's {name}" for name in OUTPUTS}
    places |= {"inputs.train": "/mnt/a  b", "inputs.cloudtrain_resume": "/mnt/c"}
    env = {"PATH": f"{stub.parent}:{os.environ['PATH']}"}
    line = ["/bin/sh", "-c", job.command_line(places)]
    process = subprocess.run(
        line, env=env, capture_output=True, text=True, check=True, timeout=HANG_SECONDS
    )
    assert process.stdout.splitlines() == ["/mnt/a  b", "/mnt/it's model", "-u", "-c", BOOTSTRAP]


def with_input(place: str) -> Plan:
    return plan_of("azure", f"{PLAIN}inputs: {{train: {place}}}\n")


@pytest.mark.parametrize(
    ("place", "lies"),
    [
        ("azureml://datastores/d/paths/mnist", "azureml://datastores/d/paths/mnist/"),
        ("azureml://datastores/d/paths/mnist//", "azureml://datastores/d/paths/mnist/"),
        ("azureml://datastores/d/paths/v1.0", "azureml://datastores/d/paths/v1.0/"),
        ("azureml://datastores/d/paths/t.csv", "azureml://datastores/d/paths/t.csv"),
        ("https://e.org/t.tar.gz", "https://e.org/t.tar.gz"),
        ("wasbs://c@a.blob.core.windows.net/x", "wasbs://c@a.blob.core.windows.net/x/"),
        ("azureml:words:3", "azureml:words:3"),
        ("azureml:words@latest", "azureml:words@latest"),
        ("azureml://registries/r/data/d/versions/1", "azureml://registries/r/data/d/versions/1"),
    ],
)
def test_an_input_lies_where_it_was_said_to(place: str, lies: str) -> None:
    assert input_uri(with_input(f"'{place}'"), "train") == lies
    by_provider = f"{{azure: '{place}', uri: 's3://b/x', mode: stream}}"
    assert input_uri(with_input(by_provider), "train") == lies


@pytest.mark.parametrize(
    ("place", "path"),
    [
        ("./data/", "/home/me/job/data"),
        ("data/../table.csv", "/home/me/job/table.csv"),
        ("/abs/data", "/abs/data"),
        ("~/data", "~/data"),
    ],
)
def test_an_input_of_this_machine_is_looked_for_from_the_job(
    own_home: Path, tmp_path: Path, place: str, path: str
) -> None:
    plan = with_input(f"'{place}'")
    uploads = read_uploads(plan.spec, Path("/home/me/job"), plan.target, tmp_path)
    assert uploads["train"].path == path.replace("~", str(own_home))
    assert uploads["train"].problem.startswith("no such file or folder")


def test_an_input_may_be_a_job_output_or_a_model_of_a_registry() -> None:
    inputs = """inputs:
  model: {azure: azureml://registries/azureml/models/m/versions/1, type: mlflow_model}
  result: azureml://jobs/j/outputs/artifacts/paths/outputs/model/
  page: http://example.org/images.tar
"""
    assert not errors(plan_of("azure", PLAIN + inputs))


@pytest.mark.parametrize(
    ("limits", "timeout", "stops"),
    [
        ("{max_runtime: 1 h}", 3600, 3480),
        ("{max_runtime: 10 min}", 600, 480),
        ("{max_runtime: 5 min}", 300, 240),
        ("{max_runtime: 60 s}", 60, 48),
        ("{max_runtime: 1 h, max_cost: 32.78 USD}", 600, 480),  # of 2 x 98.32 USD/h
        ("{}", 86_400, 86_280),
    ],
)
def test_a_job_stops_by_itself_before_azure_ends_it_without_a_word(
    limits: str, timeout: int, stops: int
) -> None:
    plan = plan_of("azure", PLAIN.replace("{max_runtime: 1 h}", limits))
    assert render(plan).document["limits"] == {"timeout": timeout}
    assert job_of(plan).stop_after_seconds == stops


def resume_of(plan: Plan) -> Mapping[str, Any] | None:
    resume_input: Mapping[str, Any] | None = (
        render(plan).document["inputs"].get("cloudtrain_resume")
    )
    return resume_input


def test_checkpoints_that_lie_where_this_run_keeps_its_own_are_no_input() -> None:
    assert (
        resume_of(plan_of("azure", f"{PLAIN}checkpoints: {{uri: '{EARLIER['azure']}'}}\n")) is None
    )


def test_a_rehearsal_finds_earlier_checkpoints_beside_its_own() -> None:
    context = replace(PLAN.context, resume_from="/home/me/data/runs/digits-7f3a/checkpoints")
    plan = replace(PLAN, host=HERE, context=context)
    assert plan.is_rehearsal
    assert resume_of(plan) == resume_of(PLAN)


def test_spot_on_a_cluster_is_not_sent_and_a_warning_says_so() -> None:
    both = PLAIN.replace("nodes: 2", "nodes: 2, spot: true") + "azure: {compute: my-cluster}\n"
    plan = plan_of("azure", both)
    assert "queue_settings" not in render(plan).document
    assert any("resources.spot changes nothing" in issue.message for issue in rule_issues(plan))


def test_shared_memory_is_never_less_than_was_asked_for() -> None:
    document = render(
        plan_of("azure", PLAIN.replace("nodes: 2", "nodes: 2, shm: 1500001 B"))
    ).document
    assert document["resources"]["shm_size"] == "2m"


def document(**changes: Any) -> dict[str, Any]:
    return {"name": "a", "command": "true", "resources": {"instance_count": 2}, **changes}


def test_placeholders_allow_blanks_and_unknown_ones_are_an_error() -> None:
    job = command_job(
        document(command="a ${{inputs.x}} ${{ outputs.y }} ${z} {{w}}"), master="10.0.0.4"
    )
    assert job.command_line({"inputs.x": "/x", "outputs.y": "\\1"}) == "a /x \\1 ${z} {{w}}"
    with pytest.raises(KeyError, match=r"outputs\.y"):
        job.command_line({"inputs.x": "/x"})


@pytest.mark.parametrize(("request_", "kept"), [("null", []), ("{LocalPath: /opt/ml/own}", ["1"])])
def test_a_rehearsal_keeps_the_checkpoints_that_sagemaker_would(
    tmp_path: Path, request_: str, kept: list[str]
) -> None:
    plan = plan_with(f"CheckpointConfig: {request_}")
    emulated = EmulatedPlan.from_json(plan.to_json())
    paths = RunPaths(tmp_path / "runs" / "run")
    emulator = SageMakerEmulator(paths, plan.request.document, emulated)

    saved = emulator.roots[0] / emulator.job.checkpoints / "1"
    saved.mkdir(parents=True)
    (saved / "weights").write_text("1")
    paths.checkpoints.mkdir()
    emulator.collect()
    assert [path.name for path in paths.checkpoints.iterdir()] == kept
