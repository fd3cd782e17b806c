"""Why a deployment in Azure failed, what can be chosen about one, and what it costs while nothing runs."""

from __future__ import annotations

import csv
import json
from typing import Any

import pytest

from cloudtrain.bundle import bundled
from cloudtrain.errors import DENIED
from cloudtrain.infrastructure.parameters import read_parameters
from cloudtrain.providers.azure.infra.failures import Failure, explained, failures_of, root_failures
from cloudtrain.providers.azure.infra.kinds import WORDS, api_versions, idle_cost, type_of
from cloudtrain.providers.azure.infra.parameters import PARAMETERS, chosen_values, resolved, template_parameters

ROLE = {"code": "RoleAssignmentUpdateNotPermitted", "message": "Tenant ID is not allowed to be updated."}


def test_the_root_of_an_error_is_found_however_deep_and_in_whatever_form() -> None:
    """Azure puts services' errors into `details`, and as JSON into the message of another."""
    as_text = {"code": "BadRequest", "message": json.dumps({"error": ROLE})}
    shell = {
        "code": "ResourceDeploymentFailure",
        "message": "reached terminal provisioning state",
        "details": [as_text],
    }
    found = root_failures({"code": "DeploymentFailed", "message": "At least one failed", "details": [shell, as_text]})
    assert found == (Failure("RoleAssignmentUpdateNotPermitted", "Tenant ID is not allowed to be updated"),)


def test_a_reason_that_has_no_other_inside_is_its_own_root() -> None:
    assert root_failures({"code": "BadRequest", "message": "No."}) == (Failure("BadRequest", "No"),)
    assert root_failures({}) == ()


def test_failures_of_a_deployment_name_their_resources() -> None:
    target = {"id": "/x", "resourceType": "Microsoft.A/b", "resourceName": "c"}
    steps: list[dict[str, Any]] = [
        {"provisioningState": "Succeeded", "targetResource": target},
        {"provisioningState": "Failed", "targetResource": target, "statusMessage": {"error": ROLE}},
        {"provisioningState": "Failed"},
    ]
    error = explained(failures_of(steps), "setting up lab")
    assert error.message.startswith("setting up lab: Microsoft.A/b c: Tenant ID is not allowed to be updated (Role")
    assert "az role assignment delete --ids" in (error.hint or "")


@pytest.mark.parametrize(
    ("code", "message", "hint"),
    [
        (
            "MissingSubscriptionRegistration",
            "The subscription is not registered to use namespace X",
            "az provider register",
        ),
        ("RequestDisallowedByPolicy", "Resource was disallowed by policy", "a policy of your organisation"),
        ("OperationNotAllowed", "exceeding approved Total Regional Cores quota", "Quota > Azure Machine Learning"),
        ("ConflictError", "A vault with the same name already exists in deleted state.", "az keyvault recover"),
        ("400", "Start date of budgets cannot be updated.", "--set budget=0"),
        ("ScopeLocked", "The scope cannot perform write operation because of locks", "az lock list"),
        ("SomethingNew", "Nobody has seen this yet", None),
    ],
)
def test_what_is_known_of_an_error_is_told(code: str, message: str, hint: str | None) -> None:
    error = explained([Failure(code, message)], "setting up")
    assert (error.hint is None) == (hint is None)
    assert (hint or "") in (error.hint or "")
    assert message in error.message


def test_a_missing_right_is_known_as_one() -> None:
    message = "The client 'a' does not have authorization to perform action 'b/write' over scope 'c'"
    assert explained([Failure("AuthorizationFailed", message)], "x").code == DENIED


def test_choices_become_parameters_of_the_template_and_back() -> None:
    given = read_parameters(
        [
            "clusters=gpu:Standard_NC24ads_A100_v4:4:spot,cpu:Standard_DS3_v2:2",
            "submitters=me,aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee:group",
            "network=new",
            "alarm_email=a@b.org,c@d.org",
        ],
        PARAMETERS,
    )
    me = ("11111111-bbbb-cccc-dddd-eeeeeeeeeeee", "app")
    chosen = resolved({**{each.name: each.default for each in PARAMETERS}, **given}, me)
    parameters = template_parameters(chosen)
    assert parameters["clusters"][0] == {
        "name": "gpu",
        "size": "Standard_NC24ads_A100_v4",
        "maxNodes": 4,
        "priority": "LowPriority",
    }
    assert parameters["submitters"] == [
        {"id": me[0], "type": "ServicePrincipal"},
        {"id": "aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee", "type": "Group"},
    ]
    assert parameters["privateNetwork"] is True
    assert chosen_values(parameters) == chosen


def test_every_default_is_a_value_that_can_be_chosen() -> None:
    for each in PARAMETERS:
        assert each.problem(each.default) == "", each.name
        assert not each.example or each.problem(each.example) == "", each.name


def test_the_type_of_an_extension_is_its_own() -> None:
    group = "/subscriptions/s/resourceGroups/g/providers"
    assert type_of(f"{group}/Microsoft.A/b/one/c/two") == "Microsoft.A/b/c"
    assert type_of(f"{group}/Microsoft.A/b/one/providers/Microsoft.D/e/two") == "Microsoft.D/e"


def test_every_type_of_the_template_has_words_of_its_own() -> None:
    assert set(WORDS) == set(api_versions())


def test_every_price_has_a_source_and_a_date_or_is_said_to_be_unverified() -> None:
    with (bundled("infra") / "azure" / "idle_costs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        assert row["source"].startswith("https://"), row
        assert row["as_of"] == "unverified" or row["as_of"].startswith("2026-"), row
        assert row["type"] in WORDS, row
    cost = idle_cost("Microsoft.ContainerRegistry/registries", "Basic")
    assert cost is not None
    assert (cost.usd_per_month, cost.note) == (5.08, "0.167 USD a day with 10 GB (2026-11)")
    assert idle_cost("Microsoft.MachineLearningServices/workspaces/computes", "") is None
