"""IAM: the decision about a request, the right that a call needs, and the policy simulator."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from moto.iam.exceptions import NoSuchEntity, NotFoundException
from moto.iam.models import iam_backends

from tests.fakes.messages import Call, ServiceError

# IAM's decision about one request: explicit deny, then allow, else denied implicitly.
# After "Policy evaluation logic" and "IAM JSON policy elements" of the IAM user guide. An element
# or operator that is not known is an error, so that no statement is understood too generously.

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
    known = ("StringEquals", "StringLike", "ArnLike", "Bool", "Null", "IpAddress", *_OF_LIMITS)
    if operator not in known:
        raise ValueError(f"an operator that this does not know: {operator}")
    for key, values in expected.items():
        if operator in _OF_LIMITS:
            if not _OF_LIMITS[operator](context.get(key, ""), _listed(values)):
                return False
            continue
        if operator == "Null":
            if str(key not in context).lower() not in _listed(values):
                return False
            continue
        if key not in context:
            return False
        if operator == "IpAddress":
            raise ValueError("addresses are not part of this imitation")
        exact = operator in ("StringEquals", "Bool")
        if not any(
            context[key] == value if exact else _matches(value, context[key])
            for value in _listed(values)
        ):
            return False
    return True


_OF_LIMITS: Mapping[str, Callable[[str, list[Any]], bool]] = {
    "NumericGreaterThanIfExists": lambda text, most: not text or float(text) > float(most[0]),
    "ForAnyValue:StringNotLike": lambda text, patterns: any(
        not any(_matches(pattern, one) for pattern in patterns) for one in text.split()
    ),
    "ForAllValues:StringNotEquals": lambda text, names: not set(text.split()) & set(names),
}
"""Operators of the template's limits, for a key's values with spaces between; "" without the key."""


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


# The right that a call needs, and AWS's refusal without it.
# After the Service Authorization Reference (actions of Amazon S3, SageMaker, CloudWatch Logs and
# ECR): most calls need the action with their name, S3's do not.

USER = "arn:aws:iam::123456789012:user/tester"
_S3 = {
    "HeadObject": "s3:GetObject",
    "GetObject": "s3:GetObject",
    "HeadBucket": "s3:ListBucket",
    "ListObjectsV2": "s3:ListBucket",
    "PutObject": "s3:PutObject",
    **dict.fromkeys(
        ("CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"), "s3:PutObject"
    ),
    "AbortMultipartUpload": "s3:AbortMultipartUpload",
}
_DENIALS = {
    "ec2": ("UnauthorizedOperation", 403),
    "iam": ("AccessDenied", 403),
    "sts": ("AccessDenied", 403),
}
"""Codes of services that speak older protocols ("Error codes" of EC2's reference, "Common errors"
of IAM's).
"""
_FREE = (("sts", "GetCallerIdentity"),)
"""Actions open to everybody, whatever a policy denies (API reference of STS, GetCallerIdentity)."""


def needed(call: Call) -> str:
    """The IAM action of a call; empty for one that needs none."""
    if call in _FREE:
        return ""
    return (
        _S3.get(call.operation, f"s3:{call.operation}")
        if call.service == "s3"
        else f"{call.service}:{call.operation}"
    )


def denied(call: Call) -> ServiceError | None:
    """The refusal of one who lacks the right. S3 may keep to itself which one it is: two words are
    all it promises.
    """
    action = needed(call)
    if not action:
        return None
    if call.service == "s3":
        return ServiceError("AccessDenied", "Access Denied", 403)
    message = (
        f"User: {USER} is not authorized to perform: {action} because no identity-based policy"
        " allows it"
    )
    code, status = _DENIALS.get(call.service, ("AccessDeniedException", 400))
    return ServiceError(code, message, status)


def refusal(call: Call, denied_actions: Container[str]) -> ServiceError | None:
    """The refusal of a call by one who lacks these rights: actions, or all of a service as
    `logs:*`.
    """
    action = needed(call)
    return (
        denied(call)
        if action in denied_actions or f"{action.partition(':')[0]}:*" in denied_actions
        else None
    )


# IAM's policy simulator, over the users, roles and policies that moto keeps:
# SimulatePrincipalPolicy.
# After its API reference: it takes the ARN of a user or a role, and no session's; a decision names
# explicit denials. Results are per action, and inside per resource unless that is "*".

_PRINCIPAL = re.compile(r"arn:aws:iam::\d{12}:(?P<kind>user|role)/(?:.*/)?(?P<name>[^/]+)")


class Simulation:
    """The simulator of an account."""

    CALL = Call("iam", "SimulatePrincipalPolicy")

    def __init__(self, account: str) -> None:
        self._account = account

    def call(self, operation: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """One call; ServiceError is what it answers instead."""
        entries = body.get("ContextEntries", [])
        context = {entry["ContextKeyName"]: entry["ContextKeyValues"][0] for entry in entries}
        policy = list(self._statements(body["PolicySourceArn"]))
        resources = body.get("ResourceArns", ["*"])
        results = []
        for action in body["ActionNames"]:
            missing = sorted(_keys(policy, action) - context.keys())
            decisions = {
                resource: _decision(
                    Attempt(action=action, resource=resource, context=context), policy
                )
                for resource in resources
            }
            result: dict[str, Any] = {"EvalActionName": action}
            result["EvalDecision"] = max(decisions.values())  # allowed, explicitDeny, implicitDeny
            if resources == ["*"]:
                result |= {"EvalResourceName": "*", "MissingContextValues": missing}
            else:
                result["ResourceSpecificResults"] = [
                    {
                        "EvalResourceName": resource,
                        "EvalResourceDecision": decision,
                        "MissingContextValues": missing,
                    }
                    for resource, decision in decisions.items()
                ]
            results.append(result)
        return {"IsTruncated": False, "EvaluationResults": results}

    def _statements(self, principal: str) -> Iterator[Statement]:
        match = _PRINCIPAL.fullmatch(principal)
        if match is None:
            message = (
                f"Invalid Entity Arn: {principal} does not clearly define entity type and name."
            )
            raise ServiceError("InvalidInput", message, 400)
        kind = match["kind"]
        name = match["name"]
        # moto's own state: by its API a question takes a hundred times as long.
        iam = iam_backends[self._account]["aws"]
        try:
            owner = iam.get_user(name) if kind == "user" else iam.get_role(name)
        except (NoSuchEntity, NotFoundException):
            raise ServiceError(
                "NoSuchEntity", f"The {kind} with name {name} cannot be found.", 404
            ) from None
        for document in owner.policies.values():
            yield from _parsed(document)
        for attached in owner.managed_policies.values():
            for version in attached.versions:
                if version.is_default:
                    yield from _parsed(version.document)


def _decision(attempt: Attempt, policy: list[Statement]) -> str:
    effects = {statement["Effect"] for statement in policy if _applies(statement, attempt)}
    if "Deny" in effects:
        return "explicitDeny"
    return "allowed" if effects else "implicitDeny"


def _keys(policy: list[Statement], action: str) -> set[str]:
    """Return the condition keys of the statements about an action."""
    keys: set[str] = set()
    for statement in policy:
        if any(
            _matches(pattern, action, any_case=True) for pattern in _listed(statement["Action"])
        ):
            for condition in statement.get("Condition", {}).values():
                keys |= condition.keys()
    return keys


def _parsed(document: Any) -> list[Statement]:
    return statements([json.loads(document) if isinstance(document, str) else document])
