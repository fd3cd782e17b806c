"""The rights that a request needs, and what IAM's simulator says of them.

They are listed once, in infra/aws/rights.yaml, beside the template that grants them. The simulator
reads the policies of a user or a role, with their boundaries, and of no bucket, key or other resource.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import yaml

from cloudtrain.bundle import bundled
from cloudtrain.checkup import Check, NotCheckedError, Question
from cloudtrain.errors import CloudError, RefusedError
from cloudtrain.providers.aws.lookups import SERVICE

if TYPE_CHECKING:
    from cloudtrain.providers.aws.things import Things

Rights = Mapping[str, Sequence[str]]
"""Kind of resource -> actions. `resources_of` has the same kinds."""

UNASKED = "unasked"
"""Purpose of rights that are granted and not asked for."""

_CREATION = {
    "sagemaker:InterContainerTrafficEncryption": "EnableInterContainerTrafficEncryption",
    "sagemaker:KeepAlivePeriod": "KeepAlivePeriodInSeconds",
    "sagemaker:MaxRuntimeInSeconds": "MaxRuntimeInSeconds",
    "sagemaker:NetworkIsolation": "EnableNetworkIsolation",
    "sagemaker:OutputKmsKey": "KmsKeyId",
    "sagemaker:VolumeKmsKey": "VolumeKmsKeyId",
    "sagemaker:VpcSecurityGroupIds": "SecurityGroupIds",
    "sagemaker:VpcSubnets": "Subnets",
}
"""Condition keys of CreateTrainingJob -> members ("Condition keys for Amazon SageMaker")."""

_STRUCTURES = ("OutputDataConfig", "ResourceConfig", "StoppingCondition", "VpcConfig")
"""Members with members of the table above."""

_TAGGING = ("AddTags", "SubmitServiceJob", "TagResource")
"""Actions that give tags to a new job, besides `Create…`."""

_TYPES = {bool: "boolean", int: "numeric", list: "stringList", str: "string"}


@cache
def rights_of(who: str) -> Mapping[str, Rights]:
    """Return the rights of `people`, of the `role`, or for `looking`, by purpose."""
    text = (bundled("infra") / "aws" / "rights.yaml").read_text(encoding="utf-8")
    purposes: Mapping[str, Rights] = yaml.safe_load(text)[who]
    return purposes


def rights_checks(things: Things, principal: str, who: str) -> Iterator[Check]:
    """Yield the check of a principal's rights for each purpose that a request has.

    `who`: `people` or `role`.
    """
    resources = resources_of(things)
    identity = _identity(things, principal)
    owner = identity.rpartition(":")[2]
    setting = ("aws", "role") if who == "role" else ()
    fix = f"allow it in a policy of {owner}"

    for purpose, rights in rights_of(who).items():
        needed = {kind: rights[kind] for kind in rights if kind in resources}
        if purpose != UNASKED and needed.keys() - {"anything"}:
            question = Question(purpose, f"do the policies of {owner} allow it", setting, fix)
            yield question.asked(_simulate, things, identity, needed, resources)


def _identity(things: Things, principal: str) -> str:
    """Return the ARN for the simulator: a session's role, or the identity itself."""
    session = re.search(":assumed-role/([^/]+)/", principal)
    if session is None:
        return principal

    try:  # the role may have a path, which the session's ARN leaves out
        return str(things.cloud.call("iam", "get_role", RoleName=session[1])["Role"]["Arn"])
    except CloudError:
        return principal


def _simulate(things: Things, identity: str, needed: Rights, resources: Rights) -> str:
    """Return that the simulator allows the rights, asked for one kind of resource at a time."""
    if identity.endswith(":root"):
        return "these are the account's own, which may do everything"
    if not re.search(":(user|role|group)/", identity):
        raise NotCheckedError(f"IAM simulates no policies of {identity}")

    denied: list[str] = []
    left_to_key: list[str] = []
    unknown: list[str] = []
    for kind, actions in needed.items():
        for result in _results(things, identity, actions, resources[kind]):
            right = f"{result['EvalActionName']} on {result['EvalResourceName']}"
            conditions = result.get("MissingContextValues")
            if conditions:
                unknown.append(f"{right} depends on {', '.join(conditions)}")
            elif kind == "key" and result["EvalDecision"] == "implicitDeny":
                left_to_key.append(result["EvalActionName"])
            else:
                denied.append(right)

    if denied:
        raise RefusedError(f"not allowed: {', '.join(denied)}")
    if left_to_key:
        unknown.append(f"only the key's own policy can allow {', '.join(left_to_key)}")
    if unknown:
        raise NotCheckedError("; ".join(unknown))

    return "yes, by IAM's simulator"


def _results(
    things: Things, identity: str, actions: Sequence[str], arns: Sequence[str]
) -> Iterator[Mapping[str, Any]]:
    """Yield what the simulator does not allow of these actions on these resources."""
    context: dict[str, Any] = {}
    for action in actions:
        context |= context_of(things, action)

    pages = things.cloud.pages(
        "iam",
        "simulate_principal_policy",
        PolicySourceArn=identity,
        ActionNames=actions,
        ResourceArns=arns,
        ContextEntries=[_entry(key, value) for key, value in context.items()],
    )
    for page in pages:
        for result in page["EvaluationResults"]:
            # one answer for an action that takes no resource
            for inner in result.get("ResourceSpecificResults") or [{}]:
                decision = inner.get("EvalResourceDecision", result["EvalDecision"])
                if decision != "allowed":
                    yield {
                        "EvalResourceName": ", ".join(arns),
                        **result,
                        **inner,
                        "EvalDecision": decision,
                    }


def _entry(key: str, value: Any) -> dict[str, Any]:
    values = value if isinstance(value, list) else [value]
    texts = [str(item).lower() if isinstance(item, bool) else str(item) for item in values]
    return {
        "ContextKeyName": key,
        "ContextKeyValues": texts,
        "ContextKeyType": _TYPES[type(value)],
    }


def context_of(things: Things, action: str) -> dict[str, Any]:
    """Return the condition keys of the call that needs an action."""
    tags = {tag["Key"]: tag["Value"] for tag in things.body["Tags"]}
    service, _, name = action.partition(":")
    if action == "iam:PassRole":
        return {"iam:PassedToService": SERVICE}
    if action == "kms:CreateGrant":
        return {"kms:GrantIsForAWSResource": True}
    if service not in ("sagemaker", "batch"):
        return {}
    if not name.startswith("Create") and name not in _TAGGING:
        return {f"aws:ResourceTag/{key}": value for key, value in tags.items()}

    members: dict[str, Any] = {member: False for member in _CREATION.values() if "Enable" in member}
    members |= things.body
    for structure in _STRUCTURES:
        members |= things.body.get(structure, {})

    context: dict[str, Any] = {f"aws:RequestTag/{key}": value for key, value in tags.items()}
    context["aws:TagKeys"] = list(tags)
    if service == "batch":
        return context

    context["sagemaker:TaggingAction"] = "CreateTrainingJob"
    context["sagemaker:InstanceTypes"] = things.types
    context |= {key: members[member] for key, member in _CREATION.items() if member in members}
    return context


def resources_of(things: Things) -> Mapping[str, list[str]]:
    """Return the ARNs in a request by their kind; the kinds that it lacks are missing."""
    resources: dict[str, list[str]] = {}
    for thing in things.all:
        arns = resources.setdefault(thing.kind, [])
        if thing.arn not in arns:
            arns.append(thing.arn)

    return resources
