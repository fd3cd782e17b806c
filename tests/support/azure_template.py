"""The ARM template of infra/azure, evaluated for a few deployments, and the rights that it grants."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

from cloudtrain.bundle import bundled
from tests.fakes.azure.rbac import Access, Assignment, role_of
from tests.fakes.azure.resource_manager.template import Planned, Template
from tests.fakes.azure.roles import BUILT_IN

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


@cache
def deployed(case: str) -> list[tuple[Planned, dict[str, Any]]]:
    """The resources of a case, each as it is sent; whom an identity is, is told by its name."""
    template = Template(
        DOCUMENT, {name: {"value": value} for name, value in CASES[case].items()}, GROUP
    )
    template.reference = lambda id_, _: dict.fromkeys(
        ("principalId", "clientId", "loginServer"), id_.rpartition("/")[2]
    )
    return [(one, template.body(one)) for one in template.planned()]


@cache
def access(case: str) -> Access:
    """Return the roles that a case assigns; a principal is the name of an identity, or an object
    id.
    """
    roles = dict(BUILT_IN)
    assignments = []
    for planned, body in deployed(case):
        name = planned.id.rpartition("/")[2]
        if planned.kind == "Microsoft.Authorization/roleDefinitions":
            properties = body["properties"]
            roles[name] = role_of(properties["roleName"], properties["permissions"])
        if planned.kind == "Microsoft.Authorization/roleAssignments":
            assignment = Assignment(
                principal=body["properties"]["principalId"],
                role=body["properties"]["roleDefinitionId"].rpartition("/")[2],
                scope=planned.id.rpartition("/providers/Microsoft.Authorization/")[0],
            )
            assignments.append(assignment)
    return Access(roles=roles, assignments=assignments, is_enforced=True)


@cache
def scopes(case: str) -> dict[str, str]:
    """Return the ids of the resources that roles are assigned on, by plain names."""
    bodies = {planned.id: body for planned, body in deployed(case)}
    [workspace] = [id_ for id_ in bodies if id_.endswith("workspaces/cloudtrain")]
    parts = bodies[workspace]["properties"]
    vaults = {
        planned.id for planned, _ in deployed(case) if planned.kind == "Microsoft.KeyVault/vaults"
    }
    [jobs_vault] = vaults - {parts["keyVault"]}
    return {
        "workspace": workspace,
        "storage": parts["storageAccount"],
        "registry": parts["containerRegistry"],
        "workspace vault": parts["keyVault"],
        "jobs vault": jobs_vault,
    }
