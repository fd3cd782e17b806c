"""Members that a spec sets itself in the request: `aws.request` and `azure.request`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from cloudtrain.errors import Issue
from cloudtrain.planning.plan import Plan
from cloudtrain.planning.request_overrides import RequestForm, merge_request
from cloudtrain.providers import get_provider
from cloudtrain.providers.aws.request import FORM as AWS
from cloudtrain.providers.azure.request import FORM as AZURE
from tests.golden.cases import plan_of

MACHINES = {"aws": "ml.m5.xlarge", "azure": "Standard_DS3_v2"}
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


@pytest.mark.parametrize(
    ("provider", "request_text", "path", "message"),
    [
        ("aws", "Nonsense: 1", ("Nonsense",), "not a known member"),
        ("aws", "Environment: {A: 5}", ("Environment", "A"), "expected text"),
        ("aws", "ExperimentConfig: {Experiment: x}", ("ExperimentConfig", "Experiment"), "member"),
        ("aws", "ModelPackageConfig: {}", ("ModelPackageConfig",), "is missing"),
        (
            "aws",
            "InputDataConfig: [{ChannelName: more}]",
            ("InputDataConfig", 0),
            "DataSource",
        ),
        ("azure", "descripton: x", ("descripton",), "did you mean 'description'"),
        ("azure", "resources: {docker_arg: x}", ("resources", "docker_arg"), "docker_args"),
    ],
)
def test_a_mistake_names_the_line_of_the_spec(
    provider: str, request_text: str, path: tuple[str | int, ...], message: str
) -> None:
    (issue,) = own_errors(request_text, provider)
    assert issue.path == (provider, "request", *path)
    assert message in issue.message
    assert issue.origin.startswith("job.yaml:8:")


@pytest.mark.parametrize("provider", FORMS)
@given(value=JSON, data=some.data())
def test_any_value_of_any_member_gives_issues_and_never_an_error(
    provider: str, value: Any, data: some.DataObject
) -> None:
    plan = plan_with("{}", provider)
    name = data.draw(some.sampled_from([*plan.request.document, "other"]))
    _ = plan_with(f"{json.dumps(name)}: {json.dumps(value)}", provider).issues


def test_a_secret_in_the_request_is_warned_of() -> None:
    plan = plan_with("Environment: {HF_TOKEN: abc}")
    (issue,) = (issue for issue in plan.issues if "looks like a secret" in issue.message)
    assert issue.path == ("aws", "request", "Environment", "HF_TOKEN")


def test_the_request_is_part_of_the_digest_of_the_job() -> None:
    one, other = (plan_with(f"ExperimentConfig: {{ExperimentName: {name}}}") for name in "ab")
    assert one.spec_digest != other.spec_digest


@pytest.mark.parametrize("provider", FORMS)
def test_a_native_sweep_refuses_it(provider: str) -> None:
    member = {"aws": "ExperimentConfig: {ExperimentName: x}", "azure": "description: x"}[provider]
    job = f"""
name: digits
entrypoint: train.py
resources: {{instance: {{{provider}: {MACHINES[provider]}}}}}
limits: {{max_runtime: 1 h}}
image: example.azurecr.io/train:1
{provider}: {{request: {{{member}}}}}
sweep:
  engine: native
  method: random
  trials: 2
  objective: {{metric: loss, goal: minimize}}
  space: {{lr: [0.1, 0.2]}}
  budget: {{max_cost: 10 USD}}
"""
    issues = get_provider(provider).native_sweeps().rules(plan_of(provider, job))
    assert (provider, "request") in [issue.path for issue in issues if issue.is_error]
