"""IAM's decision about one request: explicit deny, then allow, else denied implicitly.

After "Policy evaluation logic" and "IAM JSON policy elements" of the IAM user guide. An element or
operator that is not known is an error, so that no statement is understood too generously.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from tests.fakes.messages import ServiceError

Statement = Mapping[str, Any]
_VARIABLE = re.compile(r"\$\{([a-z]+:[A-Za-z]+)\}")
_ELEMENTS = {"Sid", "Effect", "Action", "Resource", "Condition"}


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One action on one resource, and what its request says about itself."""

    action: str
    resource: str = "*"
    """Its ARN; `*` for an action that knows no resources."""
    context: Mapping[str, str] = field(default_factory=dict)
    """Condition keys of the request: `iam:PassedToService`, `aws:RequestTag/team`."""


def statements(policies: Iterable[Mapping[str, Any]]) -> list[Statement]:
    """All statements of policy documents."""
    return [statement for policy in policies for statement in _listed(policy["Statement"])]


def is_allowed(attempt: Attempt, policy: Iterable[Statement]) -> bool:
    """Return whether identity-based statements allow it: one allows it, and none denies it."""
    effects = {statement["Effect"] for statement in policy if _applies(statement, attempt)}
    return effects == {"Allow"}


def require(attempt: Attempt, policy: Iterable[Statement], who: str) -> None:
    """AccessDeniedException in the words of "Troubleshoot access denied error messages" unless it
    is allowed.
    """
    if not is_allowed(attempt, policy):
        on = "" if attempt.resource == "*" else f" on resource: {attempt.resource}"
        why = f"because no identity-based policy allows the {attempt.action} action"
        message = f"User: {who} is not authorized to perform: {attempt.action}{on} {why}"
        raise ServiceError("AccessDeniedException", message, 400)


def without(action: str, policy: Iterable[Statement]) -> list[Statement]:
    """Return the statements without one action; a statement that has only this action is removed."""
    statements = [
        {**statement, "Action": [name for name in _listed(statement["Action"]) if name != action]}
        for statement in policy
    ]
    return [statement for statement in statements if statement["Action"]]


def actions(policy: Iterable[Statement]) -> Iterator[str]:
    """Every action that is named."""
    for statement in policy:
        yield from _listed(statement["Action"])


def resources(statement: Statement) -> list[str]:
    """The resources of a statement."""
    return _listed(statement["Resource"])


def _applies(statement: Statement, attempt: Attempt) -> bool:
    unknown = statement.keys() - _ELEMENTS
    if unknown:
        raise ValueError(f"elements that this does not know: {sorted(unknown)}")
    return (
        any(
            _matches(pattern, attempt.action, any_case=True)
            for pattern in _listed(statement["Action"])
        )
        and any(
            _matches(pattern, attempt.resource)
            for pattern in _resolved(statement["Resource"], attempt.context)
        )
        and all(
            _holds(name, keys, attempt.context)
            for name, keys in statement.get("Condition", {}).items()
        )
    )


def _resolved(resource: Any, context: Mapping[str, str]) -> list[str]:
    """Return the resources with policy variables such as `${aws:username}` filled in; drop those
    whose variable the request lacks.

    After "IAM policy elements: Variables and tags": a variable without a value makes its statement
    void.
    """
    patterns = [(pattern, set(_VARIABLE.findall(pattern))) for pattern in _listed(resource)]
    resolvable = [(pattern, names) for pattern, names in patterns if names <= context.keys()]
    return [_VARIABLE.sub(lambda match: context[match[1]], pattern) for pattern, _ in resolvable]


def _holds(operator: str, expected: Mapping[str, Any], context: Mapping[str, str]) -> bool:
    """All keys must match, each by any of its values; a key that the request lacks does not match.

    `Null` asks whether the request lacks a key: "true" or "false".
    """
    if operator not in ("StringEquals", "StringLike", "ArnLike", "Bool", "Null"):
        raise ValueError(f"an operator that this does not know: {operator}")
    for key, values in expected.items():
        if operator == "Null":
            if str(key not in context).lower() not in _listed(values):
                return False
            continue
        if key not in context:
            return False
        exact = operator in ("StringEquals", "Bool")
        if not any(
            context[key] == value if exact else _matches(value, context[key])
            for value in _listed(values)
        ):
            return False
    return True


def _matches(pattern: str, text: str, *, any_case: bool = False) -> bool:
    if pattern == "*":
        return True
    return bool(_compiled(pattern, any_case).fullmatch(text))


@cache
def _compiled(pattern: str, any_case: bool) -> re.Pattern[str]:
    parts = (
        ".*" if part == "*" else "." if part == "?" else re.escape(part)
        for part in re.split(r"([*?])", pattern)
    )
    return re.compile("".join(parts), re.IGNORECASE | re.DOTALL if any_case else re.DOTALL)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]
