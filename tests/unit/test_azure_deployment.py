"""Why a deployment in Azure failed, what can be chosen about one, and what it costs while nothing
runs.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from cloudtrain.errors import DENIED
from cloudtrain.infrastructure.idle_costs import idle_cost, prices
from cloudtrain.infrastructure.parameters import read_parameters
from cloudtrain.providers.azure.infra.failures import Failure, explained, failures_of, root_failures
from cloudtrain.providers.azure.infra.kinds import WORDS, api_versions, template, type_of
from cloudtrain.providers.azure.infra.parameters import (
    NETWORK,
    PARAMETERS,
    chosen_values,
    resolved,
    template_parameters,
)

ROLE = {
    "code": "RoleAssignmentUpdateNotPermitted",
    "message": "Tenant ID is not allowed to be updated.",
}


def test_the_root_of_an_error_is_found_however_deep_and_in_whatever_form() -> None:
    """Azure puts services' errors into `details`, and as JSON into the message of another."""
    as_text = {"code": "BadRequest", "message": json.dumps({"error": ROLE})}
    shell = {
        "code": "ResourceDeploymentFailure",
        "message": "reached terminal provisioning state",
        "details": [as_text],
    }
    found = root_failures(
        {"code": "DeploymentFailed", "message": "At least one failed", "details": [shell, as_text]}
    )
    assert found == (
        Failure("RoleAssignmentUpdateNotPermitted", "Tenant ID is not allowed to be updated"),
    )


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
    assert error.message.startswith(
        "setting up lab: Microsoft.A/b c: Tenant ID is not allowed to be updated (Role"
    )
    assert "az role assignment delete --ids" in (error.hint or "")


@pytest.mark.parametrize(
    ("code", "message", "hint"),
    [
        (
            "MissingSubscriptionRegistration",
            "The subscription is not registered to use namespace X",
            "az provider register",
        ),
        (
            "RequestDisallowedByPolicy",
            "Resource was disallowed by policy",
            "a policy of your organisation",
        ),
        (
            "OperationNotAllowed",
            "exceeding approved Total Regional Cores quota",
            "Quota > Azure Machine Learning",
        ),
        (
            "ConflictError",
            "A vault with the same name already exists in deleted state.",
            "az keyvault recover",
        ),
        ("400", "Start date of budgets cannot be updated.", "--set budget=0"),
        (
            "RoleDefinitionHasAssignments",
            "There are existing role assignments",
            "again in some minutes",
        ),
        (
            "RoleDefinitionWithSameNameExists",
            "Role definition name must be unique.",
            "az role definition delete",
        ),
        (
            "ScopeLocked",
            "The scope cannot perform write operation because of locks",
            "az lock list",
        ),
        ("SomethingNew", "Nobody has seen this yet", None),
    ],
)
def test_what_is_known_of_an_error_is_told(code: str, message: str, hint: str | None) -> None:
    error = explained([Failure(code, message)], "setting up")
    assert (error.hint is None) == (hint is None)
    assert (hint or "") in (error.hint or "")
    assert message in error.message


def test_a_missing_right_is_known_as_one() -> None:
    message = (
        "The client 'a' does not have authorization to perform action 'b/write' over scope 'c'"
    )
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
        "cloudtrain infra parameters",
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


def test_what_a_new_network_costs_idle_is_what_the_resources_cost_that_it_makes() -> None:
    variables = template()["variables"]
    private = "[parameters('privateNetwork')]"
    made = {each["type"] for each in template()["resources"] if each.get("condition") == private}
    assert {each.type for each in NETWORK} == made & {type_ for type_, _ in prices("azure")}
    counted = {each.type.rpartition("/")[2]: each.how_many for each in NETWORK if each.how_many > 1}
    assert counted == {
        "privateEndpoints": len(variables["endpoints"]),
        "privateDnsZones": len(variables["zones"]),
    }
    told = {each.name: each.idle_usd_per_month for each in PARAMETERS if each.idle_usd_per_month}
    assert told == {
        "registry": {"basic": 5.08, "standard": 20.29, "premium": 50.70},
        "network": {"new": 83.30},
    }


def test_every_price_is_of_a_resource_of_the_template() -> None:
    assert {type_ for type_, _ in prices("azure")} <= set(WORDS)
    cost = idle_cost("azure", "Microsoft.ContainerRegistry/registries", "Basic")
    assert cost is not None
    assert (cost.usd_per_month, cost.note) == (5.08, "0.167 USD a day with 10 GB (2026-11)")
    assert idle_cost("azure", "Microsoft.MachineLearningServices/workspaces/computes") is None
