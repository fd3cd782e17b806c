"""Decisions of policies on resources, which IAM's simulator leaves out: trust, keys, endpoints.

After "IAM JSON policy elements". A condition is judged only where SageMaker's own request decides.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

SERVICE = "sagemaker.amazonaws.com"
EVERYBODY = "*"

_EQUAL = ("StringEquals", "StringLike", "ArnEquals", "ArnLike")
"""Operators that refuse a request without the key."""


def distrust(policy: Mapping[str, Any], account: str, job: str) -> str:
    """Return why a trust policy does not let SageMaker assume the role; empty if it does.

    `account`: number of the account. `job`: ARN of a job in it. SageMaker sends them as
    `aws:SourceAccount` and `aws:SourceArn`, and no `sts:ExternalId`.
    """
    sent = {"aws:sourceaccount": account, "aws:sourcearn": job, "sts:externalid": ""}
    trusted: set[str] = set()
    unmet: list[str] = []
    for statement in _as_list(policy.get("Statement")):
        if statement.get("Effect") != "Allow" or not _covers(statement, "Action", "sts:AssumeRole"):
            continue

        principals = _principals(statement)
        trusted |= principals
        if principals & {SERVICE, EVERYBODY}:
            conditions = list(_unmet(statement.get("Condition") or {}, sent))
            if not conditions:
                return ""
            unmet += conditions

    if unmet:
        return f"it trusts {SERVICE} only with {', '.join(unmet)}, which SageMaker does not send"

    return f"it does not trust {SERVICE}, but {', '.join(sorted(trusted)) or 'nobody'}"


def _unmet(conditions: Mapping[str, Any], sent: Mapping[str, str]) -> Iterator[str]:
    """Yield the conditions that a request of SageMaker does not fulfil."""
    for operator in _EQUAL:
        for key, values in conditions.get(operator, {}).items():
            text = sent.get(key.lower())
            patterns = list(map(str, _as_list(values)))
            if text is not None and not any(_is_like(text, pattern) for pattern in patterns):
                yield f"{key} {' or '.join(patterns)}"


def _is_like(text: str, pattern: str) -> bool:
    """Return whether a value may match; of an ARN, a pattern may name other jobs."""
    place = ":".join(text.split(":")[:5])
    return fnmatchcase(text, pattern) or (
        place != text and fnmatchcase(place, ":".join(pattern.split(":")[:5]))
    )


def effects(
    policy: Mapping[str, Any], action: str, resource: str, principals: Collection[str]
) -> set[str]:
    """Return `Allow`, `Deny` or both: the effects of the statements about this request.

    A denial with a condition is left out: whether it holds is not known before.
    """
    decisions: set[str] = set()
    for statement in _as_list(policy.get("Statement")):
        if not _covers(statement, "Action", action) or not _covers(statement, "Resource", resource):
            continue
        if EVERYBODY not in principals and not _principals(statement) & {*principals, EVERYBODY}:
            continue
        if statement.get("Effect") == "Deny" and statement.get("Condition"):
            continue
        decisions.add(str(statement.get("Effect")))

    return decisions


def _covers(statement: Mapping[str, Any], element: str, text: str) -> bool:
    if f"Not{element}" in statement:
        return not _covers({element: statement[f"Not{element}"]}, element, text)

    patterns = map(str, _as_list(statement.get(element)))
    if element == "Action":  # in any case, unlike resources
        return any(fnmatchcase(text.lower(), pattern.lower()) for pattern in patterns)

    return any(fnmatchcase(text, pattern) for pattern in patterns)


def _principals(statement: Mapping[str, Any]) -> set[str]:
    principal = statement.get("Principal") or {}
    if isinstance(principal, str):
        return {principal}

    names: set[str] = set()
    for value in principal.values():
        names.update(map(str, _as_list(value)))

    return names


def _as_list(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value

    if value is None:
        return []

    return [value]
