"""Tells of the steps of a deployment, each state of each resource once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from cloudtrain.infrastructure import Report
from cloudtrain.infrastructure.changes import ChangePlan, ResourceEvent
from cloudtrain.providers.azure.infra.failures import failures_of
from cloudtrain.providers.azure.infra.kinds import ROLE_ASSIGNMENT, WORDS, name_of, type_of, words_of

_State = Literal["creating", "created", "changing", "changed", "failed"]


class Steps:
    """What has been told so far of one deployment."""

    def __init__(self, plan: ChangePlan, report: Report) -> None:
        self._changed = {change.identity for change in plan.changes if change.action == "update"}
        self._kept = {change.identity for change in plan.changes if change.action == "keep"}
        self._report = report
        self._told: set[tuple[str, str]] = set()

    def tell(self, operations: Sequence[Mapping[str, Any]]) -> None:
        """Report what is new in the steps of the deployment; roles and parts of others only if they failed."""
        for step in operations:
            target = step.get("targetResource") or {}
            state = str(step.get("provisioningState", ""))
            resource = str(target.get("id") or "")
            if not resource or (resource, state) in self._told:
                continue
            self._told.add((resource, state))
            type_, name = type_of(resource), name_of(resource)
            said = self._state(state, name)
            is_minor = type_ == ROLE_ASSIGNMENT or type_ not in WORDS or name in self._kept
            if said and (said == "failed" or not is_minor):
                reason = "; ".join(each.message for each in failures_of([step]))
                self._report(ResourceEvent(resource=name, kind=words_of(type_), state=said, reason=reason))

    def _state(self, state: str, name: str) -> _State | None:
        if state == "Failed":
            return "failed"
        if state == "Succeeded":
            return "changed" if name in self._changed else "created"
        if state in ("Running", "Creating"):
            return "changing" if name in self._changed else "creating"
        return None
