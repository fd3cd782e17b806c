"""The ARM template of infra/azure: every expression resolves, every part is used, security rules
hold by name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from cloudtrain.bundle import bundled
from cloudtrain.providers.azure.declaration import DECLARATION
from cloudtrain.providers.azure.rights import DOCTOR, SUBMITTER, WORKSPACES
from cloudtrain.providers.infrastructure import DEFAULT_NAME
from pages import ROOT
from tests.fakes.azure.permissions import KNOWN
from tests.fakes.azure.rbac import BUILT_IN, SCIENTIST, role_of
from tests.support.azure_template import CASES, DOCUMENT, GROUP, PEOPLE, deployed

FOLDER = bundled("infra") / "azure"


def of_kind(case: str, kind: str) -> list[Mapping[str, Any]]:
    bodies = [one.body for one in deployed(case) if one.kind == kind]
    assert bodies, kind
    return bodies


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


def test_private_network_closes_every_resource_to_the_public() -> None:
    access = {
        case: {
            one.body["properties"]["publicNetworkAccess"]
            for one in deployed(case)
            if "publicNetworkAccess" in one.body.get("properties", {})
        }
        for case in ("plain", "everything")
    }
    assert access == {"plain": {"Enabled"}, "everything": {"Disabled"}}


@pytest.mark.parametrize("case", ["plain", "everything"])
def test_clusters_scale_to_zero_and_take_logins_by_entra_id_alone(case: str) -> None:
    for body in of_kind(case, "Microsoft.MachineLearningServices/workspaces/computes"):
        assert body["properties"]["disableLocalAuth"] is True
        assert body["properties"]["properties"]["scaleSettings"]["minNodeCount"] == 0


def own_roles(case: str) -> dict[str, dict[str, Any]]:
    """The roles that the template defines, by the last part of their ids."""
    return {
        one.id.rpartition("/")[2]: one.body["properties"]
        for one in deployed(case)
        if one.kind == "Microsoft.Authorization/roleDefinitions"
    }


def grants(case: str) -> set[tuple[str, str, str]]:
    """Return (principal, role, type of resource) of every assignment."""
    assigned = set()
    for one in deployed(case):
        if one.kind == "Microsoft.Authorization/roleAssignments":
            scope = one.id.rpartition("/providers/Microsoft.Authorization")[0]
            id_ = one.body["properties"]["roleDefinitionId"].rpartition("/")[2]
            role = (
                own_roles(case)[id_]["roleName"].partition(" of ")[0]
                if id_ in own_roles(case)
                else BUILT_IN[id_].name
            )
            assigned.add((one.body["properties"]["principalId"], role, scope.split("/")[-2]))
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
    for one in deployed(case):
        if one.kind == "Microsoft.Authorization/roleAssignments":
            scope = one.id.rpartition("/providers/Microsoft.Authorization")[0]
            assert scope.startswith(f"{GROUP['id']}/providers/"), f"{one.id} is for the whole group"
            if one.body["properties"]["principalId"] not in {person["id"] for person in PEOPLE}:
                assert one.body["properties"]["principalType"] == "ServicePrincipal", (
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
    assert not any("github" in one.id for one in deployed("plain"))
