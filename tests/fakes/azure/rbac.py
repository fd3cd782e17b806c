"""Azure RBAC: the decision about an action, and built-in roles as their pages define them."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

# Azure RBAC's decision about one action: the grants of a principal's roles at a scope, inherited
# ones included.
# After "Understand Azure role definitions", "Understand scope for Azure RBAC" and "How Azure RBAC
# determines if a user has access to a resource" in Microsoft's documentation. Deny assignments and
# conditions are not imitated.


@dataclass(frozen=True, kw_only=True)
class Role:
    """A role definition."""

    name: str
    actions: tuple[str, ...] = ()
    not_actions: tuple[str, ...] = ()
    data_actions: tuple[str, ...] = ()
    not_data_actions: tuple[str, ...] = ()

    def grants(self, action: str, *, on_data: bool) -> bool:
        """Return whether it allows an action: of management, or on data."""
        allowed = self.data_actions if on_data else self.actions
        excluded = self.not_data_actions if on_data else self.not_actions
        return _matches_any(allowed, action) and not _matches_any(excluded, action)

    def without(self, action: str) -> Role:
        """The same role, but for one action that it names."""
        remaining, kept_on_data = (
            tuple(name for name in names if name != action)
            for names in (self.actions, self.data_actions)
        )
        return replace(self, actions=remaining, data_actions=kept_on_data)

    def permissions(self) -> dict[str, list[str]]:
        """As Resource Manager shows it."""
        return {
            "actions": [*self.actions],
            "notActions": [*self.not_actions],
            "dataActions": [*self.data_actions],
            "notDataActions": [*self.not_data_actions],
        }


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """A role that a principal has at a scope, and at everything below it."""

    principal: str
    """An object id."""
    role: str
    """The last part of the definition's id."""
    scope: str


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One action on one resource."""

    action: str
    scope: str
    """The resource's id."""
    on_data: bool = False


@dataclass(kw_only=True)
class Access:
    """Who has which role where in a subscription."""

    roles: dict[str, Role]
    """By the last part of their ids: built-in and of this subscription."""
    assignments: list[Assignment] = field(default_factory=list)
    is_enforced: bool = False
    """True if calls and jobs need granted rights; else everybody may do everything."""
    attempted: set[str] = field(default_factory=set)
    """The actions that were decided about."""

    def assigned(self, principal: str, scope: str) -> Iterator[Assignment]:
        """Return a principal's roles at a scope: assigned there, or above."""
        for assignment in self.assignments:
            if assignment.principal == principal and f"{scope}/".lower().startswith(
                f"{assignment.scope.rstrip('/')}/".lower()
            ):
                yield assignment

    def allows(self, principal: str, attempt: Attempt) -> bool:
        """Return whether any role of a principal grants an action."""
        self.attempted.add(attempt.action)
        if not self.is_enforced:
            return True
        granted = (
            self.roles[assignment.role] for assignment in self.assigned(principal, attempt.scope)
        )
        return any(role.grants(attempt.action, on_data=attempt.on_data) for role in granted)


def role_of(name: str, permissions: Iterable[dict[str, Any]]) -> Role:
    """Return a role as its definition says: its permissions together."""
    parts: dict[str, list[str]] = defaultdict(list)
    for permission in permissions:
        for key, patterns in permission.items():
            parts[key] += patterns
    return Role(
        name=name,
        actions=tuple(parts["actions"]),
        not_actions=tuple(parts["notActions"]),
        data_actions=tuple(parts["dataActions"]),
        not_data_actions=tuple(parts["notDataActions"]),
    )


def _matches_any(patterns: Iterable[str], action: str) -> bool:
    return any(_compiled(pattern).fullmatch(action) for pattern in patterns)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern: an asterisk matches anything, slashes too; case does not matter."""
    return re.compile(re.escape(pattern).replace(r"\*", ".*"), re.IGNORECASE)


# The built-in roles that infra/azure and the tests assign, as their pages define them.

OWNER = "8e3af657-a8ff-443c-a75c-2fe8c4bcb635"
READER = "acdd72a7-3385-48ef-bd42-f606fba81ae7"
SCIENTIST = "f6c7c914-8db3-469d-8ca1-694a8f32e121"
AI_ADMINISTRATOR = "b78c5d69-af96-48a3-bf8d-a8b4d589de94"
BLOBS = "ba92f5b4-2d11-453d-a403-e96b0029c9fe"
PULL = "7f951dda-4ed3-4680-a7ca-43fe172d538d"
PUSH = "8311e382-0749-4cb8-b61a-304f252e45ec"
SECRETS = "4633458b-17de-408a-b874-0445c86b69e6"
VAULT_ADMINISTRATOR = "00482a5a-887f-4fb3-b363-3b7fe8e74483"


def _built_in() -> Mapping[str, Role]:
    path = Path(__file__).parents[2] / "data" / "azure-roles.json"
    definitions = json.loads(path.read_text())
    del definitions["source"]
    return {
        id_: role_of(role["roleName"], role["permissions"]) for id_, role in definitions.items()
    }


BUILT_IN = _built_in()
