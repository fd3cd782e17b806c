"""The ARM template of infra/azure, evaluated for a few deployments, and the rights that it grants."""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from cloudtrain.bundle import bundled
from tests.fakes.azure.account import WORKSPACES, Cluster
from tests.fakes.azure.rbac import BUILT_IN, Access, Assignment, role_of
from tests.support.arm_template import Resource, Template

if TYPE_CHECKING:
    from tests.fakes.azure.cloud import AzureCloud

DOCUMENT: dict[str, Any] = json.loads((bundled("infra") / "azure" / "template.json").read_text())
GROUP = {
    "id": "/subscriptions/11111111-2222-3333-4444-555555555555/resourceGroups/lab",
    "name": "lab",
    "location": "eastus",
    "subscription": "11111111-2222-3333-4444-555555555555",
    "tenant": "99999999-8888-7777-6666-555555555555",
}
PEOPLE = [{"id": "aaaaaaaa-0000-0000-0000-00000000000a", "type": "User"}]
CASES: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "everything": {
        "privateNetwork": True,
        "githubSubject": "repo:me/mine:ref:refs/heads/main",
        "submitters": PEOPLE,
    },
    "built-in role": {
        "githubSubject": "repo:me/mine:x",
        "submitters": PEOPLE,
        "submitterRole": "builtIn",
    },
    "least": {"clusters": [], "budget": 0},
}


def evaluated(
    parameters: Mapping[str, Any], group: Mapping[str, str], object_id: Callable[[str], str]
) -> Template:
    """Return the template with these values. `object_id`: from the name of an identity."""

    def reference(id_: str, *_: Any) -> dict[str, str]:
        name = id_.rpartition("/")[2]
        return {
            "principalId": object_id(name),
            "clientId": object_id(name),
            "loginServer": f"{name}.azurecr.io",
        }

    return Template(DOCUMENT, parameters, group, reference)


@cache
def deployed(case: str) -> list[Resource]:
    """Return the resources of a case. The object id of an identity is its name."""
    return list(evaluated(CASES[case], GROUP, lambda name: name).resources())


@cache
def access(case: str) -> Access:
    """Return the roles that a case assigns; a principal is the name of an identity, or an object
    id.
    """
    return _granted(deployed(case))


def _granted(resources: Iterable[Resource]) -> Access:
    """Return the roles that these resources define and assign."""
    roles = dict(BUILT_IN)
    assignments = []
    for resource in resources:
        properties = resource.body.get("properties", {})
        if resource.kind == "Microsoft.Authorization/roleDefinitions":
            name = resource.id.rpartition("/")[2]
            roles[name] = role_of(properties["roleName"], properties["permissions"])
        if resource.kind == "Microsoft.Authorization/roleAssignments":
            assignment = Assignment(
                principal=properties["principalId"],
                role=properties["roleDefinitionId"].rpartition("/")[2],
                scope=resource.id.rpartition("/providers/Microsoft.Authorization/")[0],
            )
            assignments.append(assignment)
    return Access(roles=roles, assignments=assignments, is_enforced=True)


@cache
def scopes(case: str) -> dict[str, str]:
    """Return the ids of the resources that roles are assigned on, by plain names."""
    [workspace] = [one for one in deployed(case) if one.kind == WORKSPACES]
    parts = workspace.body["properties"]
    vaults = {one.id for one in deployed(case) if one.kind == "Microsoft.KeyVault/vaults"}
    [jobs_vault] = vaults - {parts["keyVault"]}
    return {
        "workspace": workspace.id,
        "storage": parts["storageAccount"],
        "registry": parts["containerRegistry"],
        "workspace vault": parts["keyVault"],
        "jobs vault": jobs_vault,
    }


def deploy(cloud: AzureCloud, **parameters: Any) -> Mapping[str, str]:
    """Give an imitated subscription what the template makes, and only the rights that it grants.

    Return the object ids of the identities by their names.
    """
    account = cloud.account
    account.resource_group = "cloudtrain"
    group = {
        "id": f"/subscriptions/{account.subscription}/resourceGroups/{account.resource_group}",
        "name": account.resource_group,
        "location": account.location,
        "subscription": account.subscription,
        "tenant": account.tenant,
    }
    object_ids: dict[str, str] = defaultdict(lambda: str(uuid.uuid4()))
    template = evaluated(parameters, group, object_ids.__getitem__)
    resources = list(template.resources())

    def of_kind(kind: str) -> list[tuple[str, Mapping[str, Any]]]:
        return [(one.id, one.body) for one in resources if one.kind == kind]

    def identity_of(body: Mapping[str, Any]) -> str:
        """Return the object id of the first identity of a resource."""
        first = next(iter(body["identity"]["userAssignedIdentities"]))
        return object_ids[first.rpartition("/")[2]]

    [(workspace, body)] = of_kind(WORKSPACES)
    parts = body["properties"]
    [jobs_vault] = [
        id_ for id_, _ in of_kind("Microsoft.KeyVault/vaults") if id_ != parts["keyVault"]
    ]
    account.workspace = workspace.rpartition("/")[2]
    account.parts = {
        **{name: parts[name] for name in ("storageAccount", "keyVault", "containerRegistry")},
        "jobsVault": jobs_vault,
        "identity": identity_of(body),
    }
    is_by_role = parts["systemDatastoresAuthMode"] == "Identity"
    account.datastore_credentials = "None" if is_by_role else "AccountKey"
    [(_, storage)] = of_kind("Microsoft.Storage/storageAccounts")
    account.takes_keys = storage["properties"]["allowSharedKeyAccess"]
    account.computes = {
        id_.rpartition("/")[2]: _cluster(body["properties"]["properties"], identity_of(body))
        for id_, body in of_kind(f"{WORKSPACES}/computes")
    }

    granted = _granted(resources)
    account.access.roles = granted.roles
    account.access.assignments[:] = granted.assignments
    account.access.is_enforced = True
    account.rights.resources = [one.id for one in resources]
    account.rights.vaults = {jobs_vault.rpartition("/")[2]}
    account.rights.deployments["cloudtrain"] = {
        "provisioningState": "Succeeded",
        "outputs": template.outputs(),
    }
    return object_ids


def _cluster(properties: Mapping[str, Any], identity: str) -> Cluster:
    return Cluster(
        vm_size=properties["vmSize"],
        max_nodes=properties["scaleSettings"]["maxNodeCount"],
        low_priority=properties["vmPriority"] == "LowPriority",
        identity=identity,
    )
