"""The imitated Resource Manager itself: what it evaluates, and what it refuses as Azure does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fakes.azure.account import Account
from tests.fakes.azure.resource_manager.expressions import ExpressionError, evaluate
from tests.fakes.azure.resource_manager.store import ASSIGNMENTS, DEFINITIONS, IDENTITIES
from tests.fakes.azure.resource_manager.subscription import ResourceManager
from tests.fakes.azure.resource_manager.template import Template
from tests.fakes.azure.roles import READER
from tests.fakes.azure.storage import Storage
from tests.fakes.azure.tokens import Tokens
from tests.fakes.messages import ServiceError

GROUP = {
    "id": "/subscriptions/s/resourceGroups/lab",
    "name": "lab",
    "location": "eastus",
    "subscription": "s",
    "tenant": "t",
}
IDENTITY = {
    "type": IDENTITIES,
    "apiVersion": "2024-11-30",
    "name": "one",
    "location": "eastus",
    "properties": {},
}


@pytest.fixture
def ground(tmp_path: Path) -> ResourceManager:
    made = ResourceManager(
        Account(subscription="s", folder=tmp_path, storage=Storage(tmp_path), tokens=Tokens())
    )
    made.groups["lab"] = {key: GROUP[key] for key in ("id", "name", "location")}
    return made


def template(*resources: dict[str, Any], **parameters: dict[str, Any]) -> dict[str, Any]:
    return {
        "$schema": "x",
        "contentVersion": "1.0.0.0",
        "parameters": parameters,
        "resources": list(resources),
    }


def begin(ground: ResourceManager, *resources: dict[str, Any], name: str = "d") -> dict[str, Any]:
    """The properties of a deployment when it has ended."""
    ground.deployments.begin(GROUP, name, {"mode": "Incremental", "template": template(*resources)})
    while True:
        found = ground.deployments.look(name)
        assert found is not None
        if found.state in ("Succeeded", "Failed"):
            properties: dict[str, Any] = found.document()["properties"]
            return properties


def code(ground: ResourceManager, *resources: dict[str, Any]) -> str:
    """The code at the root of a deployment's failure."""
    begin(ground, *resources)
    [failed] = [
        each
        for each in ground.deployments.known["d"].operations
        if "statusMessage" in each["properties"]
    ]
    error = failed["properties"]["statusMessage"]["error"]
    return str(error.get("details", [error])[0]["code"])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[concat('it''s ', toLower('ONE'))]", "it's one"),
        ("[[literally]", "[literally]"),
        ("[if(empty(''), take('abc', 2), null())]", "ab"),
        ("[createObject('id', 'x').ID]", "x"),
        ("[cidrSubnet('10.20.0.0/16', 24, 16)]", "10.20.16.0/24"),
    ],
)
def test_expressions_are_evaluated(text: str, value: object) -> None:
    assert evaluate(text, {}) == value


@pytest.mark.parametrize(
    "text", ["[concat('a']", "[concat('a'))]", "[1 +]", "[nothing('x')]", "['a'.b.c('d')]"]
)
def test_what_is_no_expression_is_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        evaluate(text, {})


@pytest.mark.parametrize(
    ("document", "given", "message"),
    [
        (
            template(),
            {"nmae": {"value": "x"}},
            "The template parameters 'nmae' in the parameters file are not valid",
        ),
        (
            template(a={"type": "string"}),
            {},
            "The value for the template parameter 'a' is not provided",
        ),
        (template(a={"type": "int"}), {"a": {"value": "1"}}, "expected int"),
        (
            template(a={"type": "string", "allowedValues": ["x"]}),
            {"a": {"value": "y"}},
            "not part of the allowed",
        ),
        (
            template(a={"type": "string", "maxLength": 1}),
            {"a": {"value": "yy"}},
            "Length or value is 2",
        ),
        (template({**IDENTITY, "dependson": []}), {}, "Could not find member 'dependson'"),
        (template({**IDENTITY, "name": "a/b"}), {}, "identical number of segments"),
        (
            template({**IDENTITY, "dependsOn": ["/nowhere"]}),
            {},
            "The resource '/nowhere' is not defined",
        ),
        (template(IDENTITY, IDENTITY), {}, "defined multiple times"),
        (template({**IDENTITY, "name": "[parameters('gone')]"}), {}, "cannot be evaluated"),
        ({**template(), "resource": []}, {}, "Could not find member 'resource'"),
    ],
)
def test_a_template_that_is_wrong_in_itself_is_refused(
    document: dict[str, Any], given: dict[str, Any], message: str
) -> None:
    with pytest.raises(ServiceError, match="InvalidTemplate") as refused:
        Template(document, given, GROUP).planned()
    assert message in refused.value.message


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"type": "Microsoft.Made/up"}, "InvalidResourceType"),
        ({"apiVersion": "2024-11-31"}, "NoRegisteredProviderFound"),
        ({"name": "x"}, "InvalidResourceName"),
        ({"location": ""}, "LocationRequired"),
        ({"properties": {"isolationscope": "None"}}, "InvalidRequestContent"),
    ],
)
def test_a_resource_that_its_provider_would_refuse_is_told_by_what_if(
    ground: ResourceManager, change: dict[str, Any], code: str
) -> None:
    with pytest.raises(ServiceError, match="InvalidTemplateDeployment") as refused:
        ground.deployments.what_if(
            GROUP, {"mode": "Incremental", "template": template({**IDENTITY, **change})}
        )
    assert [each["code"] for each in refused.value.details] == [code]  # type: ignore[attr-defined]
    assert ground.store.resources == {}


def test_what_if_tells_what_is_new_what_differs_what_stays_and_what_is_of_others(
    ground: ResourceManager,
) -> None:
    begin(ground, IDENTITY, {**IDENTITY, "name": "two"}, {**IDENTITY, "name": "theirs"})
    ask = template(
        IDENTITY, {**IDENTITY, "name": "two", "tags": {"a": "b"}}, {**IDENTITY, "name": "three"}
    )
    found = ground.deployments.what_if(GROUP, {"mode": "Incremental", "template": ask})[
        "properties"
    ]["changes"]
    told = {each["resourceId"].rpartition("/")[2]: each["changeType"] for each in found}
    assert told == {"one": "NoChange", "two": "Modify", "three": "Create", "theirs": "Ignore"}
    [changed] = [each["delta"] for each in found if each["changeType"] == "Modify"]
    assert [(each["path"], each["propertyChangeType"]) for each in changed] == [("tags", "Create")]


def test_a_deployment_that_goes_on_is_not_replaced(ground: ResourceManager) -> None:
    properties = {"mode": "Incremental", "template": template(IDENTITY)}
    ground.deployments.begin(GROUP, "d", properties)
    with pytest.raises(ServiceError, match="DeploymentActive"):
        ground.deployments.begin(GROUP, "d", properties)


def role(name: str, principal: str, definition: str = READER) -> dict[str, Any]:
    return {
        "type": "Microsoft.Authorization/roleAssignments",
        "apiVersion": "2022-04-01",
        "name": f"00000000-0000-0000-0000-00000000000{name}",
        "scope": f"{GROUP['id']}/providers/{IDENTITIES}/one",
        "properties": {"principalId": principal, "roleDefinitionId": definition},
    }


def test_a_role_is_assigned_once_to_those_there_are_and_to_nobody_else_later(
    ground: ResourceManager,
) -> None:
    ground.people |= {"me", "you"}
    begin(ground, IDENTITY)
    assert code(ground, role("1", "nobody")) == "PrincipalNotFound"
    assert begin(ground, role("1", "me"))["provisioningState"] == "Succeeded"
    assert code(ground, role("2", "me")) == "RoleAssignmentExists"
    assert code(ground, role("1", "you")) == "RoleAssignmentUpdateNotPermitted"


def definition(name: str, role_name: str, *actions: str) -> dict[str, Any]:
    return {
        "type": DEFINITIONS,
        "apiVersion": "2022-04-01",
        "name": f"00000000-0000-0000-0000-00000000000{name}",
        "properties": {
            "roleName": role_name,
            "permissions": [{"actions": list(actions)}],
            "assignableScopes": [GROUP["id"]],
        },
    }


def test_a_role_has_a_name_of_its_own_and_actions_that_there_are_and_outlives_its_assignments(
    ground: ResourceManager,
) -> None:
    ground.people |= {"me"}
    begin(ground, IDENTITY)
    assert (
        code(ground, definition("7", "mine", "Microsoft.Made/up/read"))
        == "InvalidActionOrNotAction"
    )
    own = definition("7", "mine", "Microsoft.KeyVault/vaults/read")
    assert code(ground, role("1", "me", own["name"])) == "RoleDefinitionDoesNotExist"
    assert begin(ground, own, name="first")["provisioningState"] == "Succeeded"
    assert code(ground, definition("8", "mine")) == "RoleDefinitionWithSameNameExists"
    assert (
        begin(ground, role("1", "me", own["name"]), name="second")["provisioningState"]
        == "Succeeded"
    )
    id_ = f"{GROUP['id']}/providers/{DEFINITIONS}/{own['name']}"
    with pytest.raises(ServiceError, match="RoleDefinitionHasAssignments"):
        ground.store.delete(id_, {})
    [assigned] = [each.id for each in ground.store.resources.values() if each.kind == ASSIGNMENTS]
    ground.store.delete(assigned, {})
    assert ground.store.delete(id_, {})


def test_a_deleted_vault_keeps_its_name_until_it_is_recovered(ground: ResourceManager) -> None:
    properties = {"tenantId": "t", "sku": {"family": "A", "name": "standard"}}
    vault = {
        "type": "Microsoft.KeyVault/vaults",
        "apiVersion": "2024-11-01",
        "name": "v-1",
        "location": "eastus",
    }
    begin(ground, {**vault, "properties": properties})
    ground.store.delete(f"{GROUP['id']}/providers/Microsoft.KeyVault/vaults/v-1", {})
    assert code(ground, {**vault, "properties": properties}) == "ConflictError"
    assert (
        begin(ground, {**vault, "properties": {**properties, "createMode": "recover"}})[
            "provisioningState"
        ]
        == "Succeeded"
    )
    assert (
        code(
            ground, {**vault, "name": "v-2", "properties": {**properties, "createMode": "recover"}}
        )
        == "VaultNotFound"
    )


def test_a_workspace_whose_identity_has_no_roles_is_refused(ground: ResourceManager) -> None:
    """As "Set up authentication between Azure Machine Learning and other services" asks for."""
    ids = f"{GROUP['id']}/providers/{IDENTITIES}/one"
    parts = ("storageAccount", "keyVault", "containerRegistry", "applicationInsights")
    workspace = {
        "type": "Microsoft.MachineLearningServices/workspaces",
        "apiVersion": "2025-06-01",
        "name": "lab",
        "location": "eastus",
        "properties": {**dict.fromkeys(parts, ids), "primaryUserAssignedIdentity": ids},
    }
    begin(ground, IDENTITY)
    assert code(ground, workspace) == "FailedIdentityOperation"


def test_what_is_in_use_is_not_deleted(ground: ResourceManager) -> None:
    network = {"apiVersion": "2024-05-01", "location": "eastus"}
    kind = "Microsoft.Network/publicIPAddresses"
    address = f"{GROUP['id']}/providers/{kind}/out"
    begin(ground, {**network, "type": kind, "name": "out"})
    gateway = {"publicIpAddresses": [{"id": address}]}
    begin(
        ground,
        {**network, "type": "Microsoft.Network/natGateways", "name": "nat", "properties": gateway},
    )
    with pytest.raises(ServiceError, match="InUse"):
        ground.store.delete(address, {})
    ground.store.delete(f"{GROUP['id']}/providers/Microsoft.Network/natGateways/nat", {})
    assert ground.store.delete(address, {})
