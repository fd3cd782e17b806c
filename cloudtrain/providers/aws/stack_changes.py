"""CloudFormation's changes and resources as ours: what is created, changed, deleted and kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from cloudtrain.infrastructure.changes import Change, ResourceEvent
from cloudtrain.providers.aws.infra_parameters import DATA_TYPES, KEPT_TYPES, idle_cost, kind_of


def change_of(found: Mapping[str, Any]) -> Change:
    """One change of a change set."""
    action = found["Action"]
    kind = found["ResourceType"]
    keeps = kind in KEPT_TYPES and action == "Remove"
    replaced = found.get("Replacement") in ("True", "Conditional")
    names = sorted(
        {each["Target"]["Name"] for each in found.get("Details", []) if "Name" in each["Target"]}
    )
    return Change(
        action="keep" if keeps else "create" if action == "Add" else "delete" if action == "Remove"
        else "replace" if replaced else "update",
        resource=found["LogicalResourceId"],
        kind=kind_of(kind),
        identity=found.get("PhysicalResourceId", ""),
        detail="leaves the stack; what it holds is kept" if keeps else ", ".join(names),
        holds_data=kind in DATA_TYPES,
        idle_cost=idle_cost(found["LogicalResourceId"], kind),
    )  # fmt: skip


def unchanged_costs(found: Iterable[Mapping[str, Any]], changes: Iterable[Change]) -> list[Change]:
    """What a change set leaves as it is and costs something all the same. `found`: the resources of
    the stack.
    """
    changed = {each.resource for each in changes}
    rest = [
        each
        for each in found
        if each["LogicalResourceId"] not in changed and each.get("PhysicalResourceId")
    ]
    kept = [
        removal_of(each, delete_data=False)
        for each in rest
        if each["ResourceStatus"] != "DELETE_COMPLETE"
    ]
    return [replace(each, action="keep", detail="") for each in kept if each.idle_cost]


def stack_removal(name: str) -> Change:
    """That of a stack without resources, which an attempt that failed has left."""
    return Change(
        action="delete", resource=name, kind="stack", detail="it has no resources any more"
    )


def removal_of(found: Mapping[str, Any], *, delete_data: bool) -> Change:
    """What `infra down` does to one resource."""
    kind = found["ResourceType"]
    holds = found["ResourceType"] in DATA_TYPES
    is_log = kind == "AWS::Logs::LogGroup"
    keeps = is_log or (kind in KEPT_TYPES and not delete_data)
    detail = ""
    if is_log:
        detail = "holds the lines of all training jobs of the account"
    elif keeps and not holds:
        detail = "protects the bucket"
    elif kind == "AWS::KMS::Key":
        detail = (
            "what it has encrypted is lost 30 days later"
            if delete_data
            else "needed to read what it has encrypted"
        )
    return Change(
        action="keep" if keeps else "delete",
        resource=found["LogicalResourceId"],
        kind=kind_of(kind),
        identity=found.get("PhysicalResourceId", ""),
        detail=detail,
        holds_data=holds,
        idle_cost=idle_cost(found["LogicalResourceId"], kind),
    )


def deletion_of(change: Change) -> ResourceEvent:
    """That it is done."""
    return ResourceEvent(
        resource=change.resource, kind=change.kind, state="deleted", identity=change.identity
    )
