"""IAM's policy simulator, over the users, roles and policies that moto keeps: SimulatePrincipalPolicy.

After the API reference of SimulatePrincipalPolicy and "Policy evaluation logic" (IAM user guide): all is denied unless
a statement allows it, and a statement that denies wins. Conditions are evaluated as far as they are of the operators
here; one of another kind is an error of the test that uses it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any
from urllib.parse import parse_qs
from xml.sax.saxutils import escape

import boto3

from tests.fakes.aws.wire import error_response
from tests.fakes.messages import Call, Request, Response, ServiceError

_PRINCIPAL = re.compile(r"arn:aws:iam::\d{12}:(?P<kind>user|role)/(?:.*/)?(?P<name>[^/]+)")
Statement = Mapping[str, Any]


class Simulation:
    """The simulator of the account that moto has at `endpoint`."""

    CALL = Call("iam", "SimulatePrincipalPolicy")

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint

    @cached_property
    def _iam(self) -> Any:
        """moto's IAM; a client takes as long as a hundred calls."""
        keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
        return boto3.client("iam", endpoint_url=self._endpoint, region_name="us-east-1", **keys)

    def close(self) -> None:
        """Close its connections."""
        self._iam.close()

    def respond(self, request: Request) -> Response:
        """One call."""
        form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        try:
            return _response(list(self._results(form)))
        except ServiceError as refused:
            return error_response(request, "iam", refused)

    def _results(self, form: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
        actions, resources = _members(form, "ActionNames"), _members(form, "ResourceArns") or ["*"]
        wrong = [action for action in actions if ":" not in action]
        if wrong or not actions:
            raise ServiceError("ValidationError", f"Invalid Entity Action: {', '.join(wrong)}", 400)
        names = [
            f"ContextEntries.member.{n}" for n in range(1, 9) if f"ContextEntries.member.{n}.ContextKeyName" in form
        ]
        context = {form[f"{name}.ContextKeyName"].lower(): form[f"{name}.ContextKeyValues.member.1"] for name in names}
        statements = list(self._statements(form["PolicySourceArn"]))
        for action in actions:
            for resource in resources:
                yield action, resource, decision(statements, action, resource, context)

    def _statements(self, principal: str) -> Iterator[Statement]:
        found = _PRINCIPAL.fullmatch(principal)
        if found is None:  # "the ARN of a user, group, or role", and no session's
            raise ServiceError(
                "InvalidInput", f"Invalid Entity Arn: {principal} does not clearly define entity type", 400
            )
        kind, name = found["kind"], found["name"]
        iam = boto3.client(
            "iam",
            endpoint_url=self._endpoint,
            aws_access_key_id="x",
            aws_secret_access_key="x",
            region_name="us-east-1",
        )
        key = {f"{kind.capitalize()}Name": name}
        try:
            for policy in getattr(iam, f"list_{kind}_policies")(**key)["PolicyNames"]:
                document = getattr(iam, f"get_{kind}_policy")(**key, PolicyName=policy)["PolicyDocument"]
                yield from _statements_of(document)
            for attached in getattr(iam, f"list_attached_{kind}_policies")(**key)["AttachedPolicies"]:
                version = iam.get_policy(PolicyArn=attached["PolicyArn"])["Policy"]["DefaultVersionId"]
                stored = iam.get_policy_version(PolicyArn=attached["PolicyArn"], VersionId=version)
                yield from _statements_of(stored["PolicyVersion"]["Document"])
        except iam.exceptions.NoSuchEntityException:
            raise ServiceError("NoSuchEntity", f"The {kind} with name {name} cannot be found.", 404) from None


def decision(statements: list[Statement], action: str, resource: str, context: Mapping[str, str]) -> str:
    """`allowed`, `explicitDeny` or `implicitDeny`."""
    effects = {each["Effect"] for each in statements if _applies(each, action, resource, context)}
    return "explicitDeny" if "Deny" in effects else "allowed" if "Allow" in effects else "implicitDeny"


def _applies(statement: Statement, action: str, resource: str, context: Mapping[str, str]) -> bool:
    actions, resources = _as_list(statement["Action"]), _as_list(statement["Resource"])
    if not any(fnmatchcase(action.lower(), each.lower()) for each in actions):
        return False
    if not any(fnmatchcase(resource, each) for each in resources):
        return False
    return all(
        _is_met(operator, context.get(name.lower()), _as_list(values))
        for operator, keys in statement.get("Condition", {}).items()
        for name, values in keys.items()
    )


def _is_met(operator: str, value: str | None, wanted: list[str]) -> bool:
    if operator not in ("StringEquals", "StringLike", "ArnLike", "ArnEquals"):
        raise ServiceError("InvalidInput", f"this imitation has no condition {operator}", 400)
    return value is not None and any(fnmatchcase(value, each) for each in wanted)


def _statements_of(document: Any) -> list[Statement]:
    parsed = json.loads(document) if isinstance(document, str) else document
    return _as_list(parsed["Statement"])


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _members(form: Mapping[str, str], name: str) -> list[str]:
    found: list[str] = []
    while (key := f"{name}.member.{len(found) + 1}") in form:
        found.append(form[key])
    return found


def _response(results: list[tuple[str, str, str]]) -> Response:
    members = "".join(
        f"<member><EvalActionName>{escape(action)}</EvalActionName><EvalResourceName>{escape(resource)}</EvalResourceName>"
        f"<EvalDecision>{told}</EvalDecision></member>"
        for action, resource, told in results
    )
    text = (
        '<SimulatePrincipalPolicyResponse xmlns="https://iam.amazonaws.com/doc/2010-05-08/">'
        "<SimulatePrincipalPolicyResult><IsTruncated>false</IsTruncated>"
        f"<EvaluationResults>{members}</EvaluationResults></SimulatePrincipalPolicyResult>"
        "<ResponseMetadata><RequestId>loopback</RequestId></ResponseMetadata></SimulatePrincipalPolicyResponse>"
    )
    return Response(200, [("Content-Type", "text/xml")], text.encode())
