"""IAM's policy simulator, over the users, roles and policies that moto keeps:
SimulatePrincipalPolicy.

After its API reference: it takes the ARN of a user or a role, and no session's; a decision names
explicit denials.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import boto3
import botocore.session

from tests.fakes.aws.policies import Attempt, Statement, is_allowed, statements
from tests.fakes.messages import Call, ServiceError

_PRINCIPAL = re.compile(r"arn:aws:iam::\d{12}:(?P<kind>user|role)/(?:.*/)?(?P<name>[^/]+)")


class Simulation:
    """The simulator of the account that moto has at `endpoint`."""

    CALL = Call("iam", "SimulatePrincipalPolicy")

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self.model = botocore.session.get_session().get_service_model("iam")

    @cached_property
    def _iam(self) -> Any:
        """moto's IAM; a client takes as long as a hundred calls."""
        keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x"}
        return boto3.client("iam", endpoint_url=self._endpoint, region_name="us-east-1", **keys)

    def close(self) -> None:
        """Close its connections."""
        self._iam.close()

    def call(self, operation: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """One call; ServiceError is what it answers instead."""
        entries = body.get("ContextEntries", [])
        context = {entry["ContextKeyName"]: entry["ContextKeyValues"][0] for entry in entries}
        policy = list(self._statements(body["PolicySourceArn"]))
        results = [
            {
                "EvalActionName": action,
                "EvalResourceName": resource,
                "EvalDecision": "allowed"
                if is_allowed(Attempt(action=action, resource=resource, context=context), policy)
                else "implicitDeny",
            }
            for action in body["ActionNames"]
            for resource in body.get("ResourceArns", ["*"])
        ]
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
        iam = self._iam
        key = {f"{kind.capitalize()}Name": name}
        try:
            for policy in getattr(iam, f"list_{kind}_policies")(**key)["PolicyNames"]:
                yield from _parsed(
                    getattr(iam, f"get_{kind}_policy")(**key, PolicyName=policy)["PolicyDocument"]
                )
            for attached in getattr(iam, f"list_attached_{kind}_policies")(**key)[
                "AttachedPolicies"
            ]:
                version = iam.get_policy(PolicyArn=attached["PolicyArn"])["Policy"][
                    "DefaultVersionId"
                ]
                stored = iam.get_policy_version(PolicyArn=attached["PolicyArn"], VersionId=version)
                yield from _parsed(stored["PolicyVersion"]["Document"])
        except iam.exceptions.NoSuchEntityException:
            raise ServiceError(
                "NoSuchEntity", f"The {kind} with name {name} cannot be found.", 404
            ) from None


def _parsed(document: Any) -> list[Statement]:
    return statements([json.loads(document) if isinstance(document, str) else document])
