"""Tells of the steps of a deployment, each state of each resource once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from cloudtrain.infrastructure import Report
from cloudtrain.infrastructure.changes import ChangePlan, ResourceEvent
from cloudtrain.providers.azure.infra.failures import failures_of
from cloudtrain.providers.azure.infra.kinds import name_of, type_of, words_of

_State = Literal["creating", "created", "changing", "changed", "failed"]


_STATES: Mapping[tuple[str, str], _State] = {
    ("Running", "create"): "creating",
    ("Succeeded", "create"): "created",
    ("Running", "update"): "changing",
    ("Succeeded", "update"): "changed",
}
"""Azure's word for the state of a step, and what the plan says of its resource. Others need not be
told.
"""


class Steps:
    """What has been told so far of one deployment."""

    def __init__(self, plan: ChangePlan, report: Report) -> None:
        self._actions = {(change.kind, change.resource): change.action for change in plan.changes}
        self._report = report
        self._told: set[tuple[str, str]] = set()

    def tell(self, operations: Sequence[Mapping[str, Any]]) -> None:
        """Report what is new in the steps, of what is to be created or changed; roles only if they
        failed.
        """
        for step in operations:
            target = step.get("targetResource") or {}
            state = str(step.get("provisioningState", ""))
            resource = str(target.get("id") or "")
            if not resource or (resource, state) in self._told:
                continue
            self._told.add((resource, state))
            kind = words_of(type_of(resource))
            name = name_of(resource)
            action = self._actions.get((kind, name), "keep")
            said = "failed" if state == "Failed" else _STATES.get((state, action))
            if said:
                reason = "; ".join(each.message for each in failures_of([step]))
                self._report(ResourceEvent(resource=name, kind=kind, state=said, reason=reason))
