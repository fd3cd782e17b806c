"""Azure's prediction of what a deployment changes (what-if) as changes of ours, with what they cost
while idle.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cloudtrain.infrastructure.changes import Action, Change
from cloudtrain.infrastructure.idle_costs import idle_cost
from cloudtrain.providers.azure.infra.kinds import (
    HOLD_DATA,
    OWN_ROLE,
    ROLE_ASSIGNMENT,
    ROLE_DEFINITION,
    ROLES,
    name_of,
    rank,
    type_of,
    words_of,
)

_ACTIONS: Mapping[str, Action] = {
    "Create": "create",
    "Modify": "update",
    "Deploy": "update",
    "Delete": "delete",
}
"""After "Change types" of Microsoft's page on what-if. Those left out (Ignore, NoChange, NoEffect)
change nothing.
"""

MAX_PATHS = 3
"""How many changed properties are named."""


def predicted_changes(found: Sequence[Mapping[str, Any]]) -> tuple[Change, ...]:
    """What would be done to each resource; one that stays as it is is told only if it costs
    something.
    """
    changes = [
        _change(each) for each in sorted(found, key=lambda each: rank(type_of(each["resourceId"])))
    ]
    return tuple(each for each in changes if each is not None)


def unpredictable(found: Iterable[Mapping[str, Any]]) -> list[str]:
    """Notes about resources of which Azure cannot tell what would change."""
    return [
        f"Azure cannot tell what would change of {words_of(type_of(each['resourceId']))}"
        f" {name_of(each['resourceId'])}"
        for each in found
        if each.get("changeType") == "Unsupported"
    ]


def _change(each: Mapping[str, Any]) -> Change | None:
    resource = each["resourceId"]
    type_ = type_of(each["resourceId"])
    there = each.get("after") or each.get("before") or {}
    cost = idle_cost("azure", type_, str((there.get("sku") or {}).get("name", "")))
    kind = each.get("changeType", "")
    if kind not in _ACTIONS and not (kind == "NoChange" and cost is not None):
        return None
    action = _ACTIONS.get(kind, "keep")
    return Change(
        action=action,
        resource=_shown_name(resource, type_, there),
        kind=words_of(type_),
        identity="" if action == "create" else name_of(resource),
        detail=_changed_paths(each.get("delta") or ()) if action == "update" else "",
        holds_data=type_ in HOLD_DATA,
        idle_cost=cost,
    )


def _shown_name(resource: str, type_: str, there: Mapping[str, Any]) -> str:
    """The name; of roles and role assignments, whose names are numbers, the role and what it is
    for.
    """
    properties = there.get("properties") or {}
    if type_ == ROLE_DEFINITION:
        return str(properties.get("roleName") or name_of(resource))
    if type_ != ROLE_ASSIGNMENT:
        return name_of(resource)
    role = name_of(str(properties.get("roleDefinitionId", "")))
    scope = resource.rpartition("/providers/")[0]
    # Of an identity that does not exist yet Azure tells the expression that will be its id.
    principal = str(properties.get("principalId", ""))
    identity = re.search(r"userAssignedIdentities/([\w-]+)", principal)
    who = identity[1] if identity else principal
    return f"{ROLES.get(role, OWN_ROLE)} on {name_of(scope)} for {who}"


def _changed_paths(delta: Sequence[Mapping[str, Any]]) -> str:
    paths = [str(each.get("path", "")).removeprefix("properties.") for each in delta]
    more = f" and {len(paths) - MAX_PATHS} more" if len(paths) > MAX_PATHS else ""
    return ", ".join(paths[:MAX_PATHS]) + more
