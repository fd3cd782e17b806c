"""The ARM template of infra/azure: every expression resolves, every part is used, security rules
hold by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from cloudtrain.bundle import bundled
from cloudtrain.providers.azure.declaration import DECLARATION
from cloudtrain.providers.azure.permissions import DOCTOR, SUBMITTER, WORKSPACES
from cloudtrain.providers.infrastructure import DEFAULT_NAME
from pages import ROOT
from tests.fakes.azure.expressions import FUNCTIONS, calls, is_expression, parse
from tests.fakes.azure.permissions import KNOWN
from tests.fakes.azure.rbac import role_of
from tests.fakes.azure.resource_kinds import KINDS, problem
from tests.fakes.azure.roles import BUILT_IN, SCIENTIST
from tests.support.azure_template import CASES, DOCUMENT, GROUP, PEOPLE, deployed

FOLDER = bundled("infra") / "azure"
AT_DEPLOYMENT = {
    *(
        "parameters",
        "variables",
        "resourceGroup",
        "subscription",
        "environment",
        "resourceId",
        "copyIndex",
        "if",
    ),
    *("subscriptionResourceId", "reference", "utcNow"),
}
"""Functions that Azure answers, besides those whose answer is the same everywhere."""


def of_kind(case: str, kind: str) -> list[dict[str, Any]]:
    bodies = [body for one, body in deployed(case) if one.kind == kind]
    assert bodies, kind
    return bodies


def texts(value: Any) -> Iterator[str]:
    """All texts in a value, names of properties too."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from (key, *texts(item))
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)
    elif isinstance(value, str):
        yield value


def used(function: str, part: Any) -> set[str]:
    """The names that a function of one argument is called with."""
    trees = (parse(text) for text in texts(part) if is_expression(text))
    return {call.arguments[0] for tree in trees for call in calls(tree) if call.name == function}


def test_it_is_a_deployment_template_in_which_every_parameter_says_what_it_means() -> None:
    assert DOCUMENT["$schema"].endswith("/2019-04-01/deploymentTemplate.json#")
    assert re.fullmatch(r"\d+\.\d+\.\d+\.\d+", DOCUMENT["contentVersion"])
    for name, parameter in DOCUMENT["parameters"].items():
        assert parameter["metadata"]["description"].endswith("."), name
        assert "defaultValue" in parameter, f"{name}: a deployment without any parameter must work"


@pytest.mark.parametrize("page", ["first-job-azure.md", "guides/set-up-azure.md"])
def test_command_of_the_page_names_parameters_of_the_template(page: str) -> None:
    """The page deploys under the name that `cloudtrain infra settings` reads by default."""
    text = (ROOT / "docs" / page).read_text()
    [command, *_] = re.findall(r"^az deployment group create (?:.*\\\n)*.*$", text, re.MULTILINE)
    assert f"--resource-group {DEFAULT_NAME} --name {DEFAULT_NAME}" in command
    [named] = re.findall(r"--parameters (\w+)=", command)
    assert named in DOCUMENT["parameters"]
    table = text.partition("## Parameters")[2].partition("## ")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) <= set(DOCUMENT["parameters"])


def test_every_expression_is_one_that_resource_manager_evaluates() -> None:
    names = {
        call.name
        for text in texts(DOCUMENT)
        if is_expression(text)
        for call in calls(parse(text))
        if call.name != "."
    }
    assert names <= {*FUNCTIONS, *AT_DEPLOYMENT}
    assert len(names) > 15


def test_every_parameter_and_variable_that_is_named_exists_and_none_is_unused() -> None:
    parts = ("resources", "outputs", "variables", "parameters")
    assert used("parameters", [DOCUMENT[part] for part in parts]) == set(DOCUMENT["parameters"])
    assert used("variables", [DOCUMENT[part] for part in parts]) == set(DOCUMENT["variables"])


@pytest.mark.parametrize("case", CASES)
def test_every_resource_has_a_known_type_valid_name_and_known_properties(
    case: str,
) -> None:
    for one, body in deployed(case):
        assert problem(one.kind, one.api_version, one.id.rpartition("/")[2], body) is None, one.id
    assert {one.kind for one, _ in deployed("everything")} == set(KINDS), (
        "the imitation knows no more than is used"
    )


@pytest.mark.parametrize("case", CASES)
def test_what_a_resource_refers_to_is_in_the_template_and_is_waited_for(case: str) -> None:
    """A resource depends on everything it refers to, directly or through another; it does not refer
    to parts that are not deployed.
    """
    before: dict[str, set[str]] = {}
    for one, body in deployed(case):
        scope = one.id.rpartition("/providers/Microsoft.Authorization")[0]
        waited = set(one.depends_on).union(*(before[dependency] for dependency in one.depends_on))
        named = {
            text for text in [*texts(body), scope] if text.startswith(f"{GROUP['id']}/providers/")
        }
        for text in named:
            assert text.partition("/subnets/")[0].lower() in waited, f"{one.id} refers to {text}"
        before[one.id.lower()] = waited


def test_outputs_are_settings_of_cloudtrain_or_told_to_people() -> None:
    supplied = {"vault", "github_client_id"}
    assert set(DOCUMENT["outputs"]) - supplied <= set(DECLARATION.settings)
    assert {
        "subscription",
        "resource_group",
        "workspace",
        "location",
        "compute",
        "repository",
    } <= set(DOCUMENT["outputs"])


def test_clusters_of_both_priorities_go_down_to_no_node() -> None:
    clusters = [
        body["properties"]["properties"]
        for body in of_kind("plain", "Microsoft.MachineLearningServices/workspaces/computes")
    ]
    assert {cluster["vmPriority"] for cluster in clusters} == {"Dedicated", "LowPriority"}
    assert {cluster["scaleSettings"]["minNodeCount"] for cluster in clusters} == {0}


def test_nobody_can_enter_by_a_key_or_a_password() -> None:
    [storage] = of_kind("plain", "Microsoft.Storage/storageAccounts")
    assert storage["properties"]["allowSharedKeyAccess"] is False
    assert storage["properties"]["allowBlobPublicAccess"] is False
    assert storage["properties"]["minimumTlsVersion"] == "TLS1_2"
    vaults = of_kind("plain", "Microsoft.KeyVault/vaults")
    assert [vault["properties"]["enableRbacAuthorization"] for vault in vaults] == [True, True]
    assert [vault["properties"]["enablePurgeProtection"] for vault in vaults] == [True, True]
    [registry] = of_kind("plain", "Microsoft.ContainerRegistry/registries")
    assert registry["properties"]["adminUserEnabled"] is False
    [workspace] = of_kind("plain", "Microsoft.MachineLearningServices/workspaces")
    assert workspace["properties"]["systemDatastoresAuthMode"] == "Identity"


# PSRule for Azure's rules for Azure Machine Learning: each is at
# https://azure.github.io/PSRule.Rules.Azure/en/rules/ under its name.


def test_azure_ml_compute_idle_shutdown() -> None:
    """Azure.ML.ComputeIdleShutdown: a compute instance has an idle time. We create none; clusters
    have theirs.
    """
    for body in of_kind("everything", "Microsoft.MachineLearningServices/workspaces/computes"):
        assert body["properties"]["computeType"] == "AmlCompute"
        assert (
            body["properties"]["properties"]["scaleSettings"]["nodeIdleTimeBeforeScaleDown"]
            == "PT2M"
        )


def test_azure_ml_compute_vnet() -> None:
    """Azure.ML.ComputeVnet: compute is in a virtual network. With network=new; without one that is
    a choice.
    """
    nodes = f"{GROUP['id']}/providers/Microsoft.Network/virtualNetworks/cloudtrain-network/subnets/nodes"
    for body in of_kind("everything", "Microsoft.MachineLearningServices/workspaces/computes"):
        assert body["properties"]["properties"]["subnet"] == {"id": nodes}
        assert body["properties"]["properties"]["enableNodePublicIp"] is False
    [workspace] = of_kind("everything", "Microsoft.MachineLearningServices/workspaces")
    serverless = workspace["properties"]["serverlessComputeSettings"]
    assert serverless == {
        "serverlessComputeCustomSubnet": nodes,
        "serverlessComputeNoPublicIP": True,
    }


def test_azure_ml_disable_local_auth() -> None:
    """Azure.ML.DisableLocalAuth: nobody logs in to compute other than by Entra ID."""
    for case in ("plain", "everything"):
        for body in of_kind(case, "Microsoft.MachineLearningServices/workspaces/computes"):
            assert body["properties"]["disableLocalAuth"] is True


def test_azure_ml_public_access() -> None:
    """Azure.ML.PublicAccess: the workspace is closed to the public network. With network=new, so is
    everything else.
    """
    open_, closed = (
        {
            body["properties"]["publicNetworkAccess"]
            for _, body in deployed(case)
            if "publicNetworkAccess" in body.get("properties", {})
        }
        for case in ("plain", "everything")
    )
    assert (open_, closed) == ({"Enabled"}, {"Disabled"})
    groups = [
        link["properties"]["groupIds"]
        for body in of_kind("everything", "Microsoft.Network/privateEndpoints")
        for link in body["properties"]["privateLinkServiceConnections"]
    ]
    assert groups == [["amlworkspace"], ["blob"], ["file"], ["vault"], ["vault"], ["registry"]]


def test_azure_ml_user_managed_identity() -> None:
    """Azure.ML.UserManagedIdentity: the workspace acts as our identity, and we assign the roles to
    it.
    """
    for case in CASES:
        [workspace] = of_kind(case, "Microsoft.MachineLearningServices/workspaces")
        assert workspace["identity"]["type"] == "UserAssigned"
        assert list(workspace["identity"]["userAssignedIdentities"]) == [
            workspace["properties"]["primaryUserAssignedIdentity"]
        ]


def own_roles(case: str) -> dict[str, dict[str, Any]]:
    """The roles that the template defines, by the last part of their ids."""
    matches = [
        (one.id, body)
        for one, body in deployed(case)
        if one.kind == "Microsoft.Authorization/roleDefinitions"
    ]
    return {id_.rpartition("/")[2]: body["properties"] for id_, body in matches}


def grants(case: str) -> set[tuple[str, str, str]]:
    """Return (principal, role, type of resource) of every assignment."""
    assigned = set()
    for one, body in deployed(case):
        if one.kind == "Microsoft.Authorization/roleAssignments":
            scope = one.id.rpartition("/providers/Microsoft.Authorization")[0]
            id_ = body["properties"]["roleDefinitionId"].rpartition("/")[2]
            role = (
                own_roles(case)[id_]["roleName"].partition(" of ")[0]
                if id_ in own_roles(case)
                else BUILT_IN[id_].name
            )
            assigned.add((body["properties"]["principalId"], role, scope.split("/")[-2]))
    return assigned


def test_jobs_may_use_their_data_images_and_secrets_and_nothing_else() -> None:
    assert {(role, on) for who, role, on in grants("plain") if who == "cloudtrain-jobs"} == {
        ("Storage Blob Data Contributor", "storageAccounts"),
        ("AcrPull", "registries"),
        ("Key Vault Secrets User", "vaults"),
    }


@pytest.mark.parametrize("who", [PEOPLE[0]["id"], "cloudtrain-github"])
def test_who_submits_creates_jobs_moves_files_and_pushes_images_and_no_more(who: str) -> None:
    data = {("Storage Blob Data Contributor", "storageAccounts"), ("AcrPush", "registries")}
    looked_at = ("workspaces", "storageAccounts", "registries", "vaults")
    expected = {("cloudtrain submitter", scope) for scope in looked_at}
    assert {(role, on) for whom, role, on in grants("everything") if whom == who} == data | expected
    built_in = {("AzureML Data Scientist", "workspaces")}
    assert {
        (role, on) for whom, role, on in grants("built-in role") if whom == who
    } == data | built_in


def test_role_of_submitters_has_exactly_the_listed_actions_in_this_group() -> None:
    [permissions_of_role] = own_roles("everything").values()
    [permissions] = permissions_of_role["permissions"]
    assert permissions == {"actions": sorted(SUBMITTER)}
    assert not [
        action for action in permissions["actions"] if "*" in action or action.endswith("/delete")
    ]
    assert set(permissions["actions"]) <= KNOWN, "else Azure refuses the role"
    assert permissions_of_role["assignableScopes"] == [GROUP["id"]]
    assert permissions_of_role["roleName"].startswith("cloudtrain submitter of cloudtrain ")
    assert own_roles("built-in role") == {}


def test_role_of_submitters_adds_only_reading_roles_to_data_scientist() -> None:
    [(_, submitter)] = (
        (key, role_of("", role["permissions"])) for key, role in own_roles("plain").items()
    )
    more = {
        action
        for action in submitter.actions
        if not BUILT_IN[SCIENTIST].grants(action, on_data=False)
    }
    assert more == {*DOCTOR, f"{WORKSPACES}/read"}


@pytest.mark.parametrize("case", CASES)
def test_no_role_is_owner_or_contributor_and_none_reaches_beyond_one_resource(case: str) -> None:
    assert all("Contributor" not in role or "Data" in role for _, role, _ in grants(case))
    for one, body in deployed(case):
        if one.kind == "Microsoft.Authorization/roleAssignments":
            scope = one.id.rpartition("/providers/Microsoft.Authorization")[0]
            assert scope.startswith(f"{GROUP['id']}/providers/"), f"{one.id} is for the whole group"
            if body["properties"]["principalId"] not in {person["id"] for person in PEOPLE}:
                assert body["properties"]["principalType"] == "ServicePrincipal", (
                    "a new identity is not known everywhere"
                )


def test_only_the_workflows_of_the_given_subject_act_as_github() -> None:
    [credential] = of_kind(
        "everything",
        "Microsoft.ManagedIdentity/userAssignedIdentities/federatedIdentityCredentials",
    )
    assert credential["properties"] == {
        "issuer": "https://token.actions.githubusercontent.com",
        "subject": "repo:me/mine:ref:refs/heads/main",
        "audiences": ["api://AzureADTokenExchange"],
    }
    assert not any("github" in one.id for one, _ in deployed("plain"))


def test_every_exception_from_a_rule_of_checkov_has_its_reason_beside_it() -> None:
    text = (FOLDER / "checkov.yaml").read_text()
    skipped = yaml.safe_load(text)["skip-check"]
    assert len(skipped) == len(set(skipped)) > 0
    for rule in skipped:
        assert re.search(rf"- {rule} # (storage|key vault|registry|workspace): .{{7,}}", text), rule
