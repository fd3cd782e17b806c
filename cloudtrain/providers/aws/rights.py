"""The rights that a request needs, and what IAM's simulator says of them.

They are listed once, in infra/aws/rights.yaml, beside the template that grants them. The simulator
reads the policies of a user or a role, with their boundaries, and of no bucket, key or other resource.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import yaml

from cloudtrain.bundle import bundled
from cloudtrain.checkup import Check, Question
from cloudtrain.errors import CloudError
from cloudtrain.providers.aws.lookups import SERVICE
from cloudtrain.providers.aws.request import JOB, SOURCE

if TYPE_CHECKING:
    from cloudtrain.providers.aws.client import AwsClient
    from cloudtrain.providers.aws.things import Things

Rights = Mapping[str, Sequence[str]]
"""Kind of resource -> actions. The kinds are those of `resources_of`."""

UNASKED = "unasked"
"""Purpose of rights that are granted and not asked for."""

_CREATION = {
    "sagemaker:InterContainerTrafficEncryption": "EnableInterContainerTrafficEncryption",
    "sagemaker:KeepAlivePeriod": "ResourceConfig.KeepAlivePeriodInSeconds",
    "sagemaker:MaxRuntimeInSeconds": "StoppingCondition.MaxRuntimeInSeconds",
    "sagemaker:NetworkIsolation": "EnableNetworkIsolation",
    "sagemaker:OutputKmsKey": "OutputDataConfig.KmsKeyId",
    "sagemaker:VolumeKmsKey": "ResourceConfig.VolumeKmsKeyId",
    "sagemaker:VpcSecurityGroupIds": "VpcConfig.SecurityGroupIds",
    "sagemaker:VpcSubnets": "VpcConfig.Subnets",
}
"""Condition keys of CreateTrainingJob -> members ("Condition keys for Amazon SageMaker")."""


@cache
def rights_of(who: str) -> Mapping[str, Rights]:
    """Return the rights of `people`, of the `role`, or for `looking`, by purpose."""
    text = (bundled("infra") / "aws" / "rights.yaml").read_text(encoding="utf-8")
    purposes: Mapping[str, Rights] = yaml.safe_load(text)[who]
    return purposes


def rights_checks(cloud: AwsClient, things: Things, principal: str, who: str) -> Iterator[Check]:
    """Yield the check of a principal's rights for each purpose that a request has.

    `who`: `people` or `role`.
    """
    resources = resources_of(things)
    identity = _identity(cloud, principal)
    setting = ("aws", "role") if who == "role" else ()

    for purpose, rights in rights_of(who).items():
        needed = {kind: rights[kind] for kind in rights if kind in resources}
        if purpose != UNASKED and needed.keys() - {"anything"}:
            owner = identity.rpartition(":")[2]
            question = Question(purpose, f"do the policies of {owner} allow it", setting)
            ask = partial(_check, cloud, things, question, identity, needed, resources)
            yield question.answered_by(ask)


def _identity(cloud: AwsClient, principal: str) -> str:
    """Return the ARN for the simulator: a session's role, or the identity itself."""
    session = re.search(":assumed-role/([^/]+)/", principal)
    if session is None:
        return principal

    try:  # the role may have a path, which the session's ARN leaves out
        return str(cloud.call("iam", "get_role", RoleName=session[1])["Role"]["Arn"])
    except CloudError:
        return principal


def _check(
    cloud: AwsClient,
    things: Things,
    question: Question,
    identity: str,
    needed: Rights,
    resources: Mapping[str, list[str]],
) -> Check:
    if identity.endswith(":root"):
        return question.found("these are the account's own, which may do everything")
    if not re.search(":(user|role|group)/", identity):
        return question.not_checked(f"IAM simulates no policies of {identity}")

    denied: list[str] = []
    left_to_key: list[str] = []
    unknown: list[str] = []
    for kind, actions in needed.items():
        for result in _simulated(cloud, things, identity, actions, resources[kind]):
            right = f"{result['EvalActionName']} on {result['EvalResourceName']}"
            conditions = result.get("MissingContextValues")
            if result["EvalDecision"] == "allowed":
                continue
            if conditions:
                unknown.append(f"{right} depends on {', '.join(conditions)}")
            elif kind == "key" and result["EvalDecision"] == "implicitDeny":
                left_to_key.append(result["EvalActionName"])
            else:
                denied.append(right)

    if denied:
        owner = identity.rpartition(":")[2]
        return question.wrong(
            f"not allowed: {', '.join(denied)}", f"allow it in a policy of {owner}"
        )
    if left_to_key:
        unknown.append(f"only the key's own policy can allow {', '.join(left_to_key)}")
    if unknown:
        return question.not_checked("; ".join(unknown))

    return question.found("yes, by IAM's simulator")


def _simulated(
    cloud: AwsClient, things: Things, identity: str, actions: Sequence[str], arns: list[str]
) -> Iterator[Mapping[str, Any]]:
    """Yield the results for actions on resources, in one call for each set of condition keys."""
    contexts: dict[str, list[str]] = {}
    for action in actions:
        contexts.setdefault(json.dumps(context_of(things, action)), []).append(action)

    for context, names in contexts.items():
        pages = cloud.pages(
            "iam",
            "simulate_principal_policy",
            PolicySourceArn=identity,
            ActionNames=names,
            ResourceArns=arns,
            ContextEntries=[_entry(key, value) for key, value in json.loads(context).items()],
        )
        for page in pages:
            for result in page["EvaluationResults"]:
                yield from _of_resources(result, arns)


def _of_resources(result: Mapping[str, Any], arns: list[str]) -> Iterator[Mapping[str, Any]]:
    """Yield the result of an action on each resource, which it holds inside unless that is `*`."""
    for inner in result.get("ResourceSpecificResults") or ():
        yield {**result, **inner, "EvalDecision": inner["EvalResourceDecision"]}

    if not result.get("ResourceSpecificResults"):
        yield {"EvalResourceName": ", ".join(arns), **result}


def _entry(key: str, value: Any) -> dict[str, Any]:
    kinds = {bool: "boolean", int: "numeric", list: "stringList", str: "string"}
    if isinstance(value, list):
        values = value
    else:
        values = [str(value).lower() if value is True or value is False else str(value)]

    return {
        "ContextKeyName": key,
        "ContextKeyValues": values,
        "ContextKeyType": kinds[type(value)],
    }


def context_of(things: Things, action: str) -> dict[str, Any]:
    """Return the condition keys of the call that needs an action."""
    tags = {tag["Key"]: tag["Value"] for tag in things.body["Tags"]}
    service, _, name = action.partition(":")
    if action == "iam:PassRole":
        return {"iam:PassedToService": SERVICE}
    if action == "kms:CreateGrant":
        return {"kms:GrantIsForAWSResource": True}
    if service != "sagemaker":
        return {}
    if not name.startswith("Create") and name != "AddTags":
        return {f"aws:ResourceTag/{key}": value for key, value in tags.items()}

    context: dict[str, Any] = {f"aws:RequestTag/{key}": value for key, value in tags.items()}
    context["aws:TagKeys"] = list(tags)
    context["sagemaker:TaggingAction"] = "CreateTrainingJob"
    context["sagemaker:InstanceTypes"] = things.types
    for key, path in _CREATION.items():
        member, _, inner = path.partition(".")
        value = things.body.get(member, {} if inner else False)
        value = value.get(inner) if inner else value
        if value is not None:
            context[key] = value

    return context


def resources_of(things: Things) -> Mapping[str, list[str]]:
    """Return the ARNs in a request by their kind; the kinds that it lacks are missing."""
    resources: dict[str, dict[str, None]] = {}
    for kind, arn in (*_named(things), *_stored(things)):
        resources.setdefault(kind, {})[arn] = None

    return {kind: list(arns) for kind, arns in resources.items()}


def _named(things: Things) -> Iterator[tuple[str, str]]:
    """Yield kind and ARN of everything but objects in S3."""
    name = things.body["TrainingJobName"]
    job = things.arn("sagemaker", f"training-job/{name}")
    group = things.arn("logs", "log-group:/aws/sagemaker/TrainingJobs")
    yield from {"anything": "*", "role": things.role, "job": job}.items()
    yield from {"log group": f"{group}:*", "log": f"{group}:log-stream:{name}/algo-1-1"}.items()

    sweep = things.plan.spec.sweep
    if sweep and sweep.engine == "native":
        yield "tuning job", things.arn("sagemaker", f"hyper-parameter-tuning-job/{name}")
    if "TrainingPlanArn" in things.resources:
        yield "training plan", things.resources["TrainingPlanArn"]
    if "KeepAlivePeriodInSeconds" in things.resources:
        yield "warm pool", job
    if "RemoteDebugConfig" in things.body:
        yield "shell", "*"

    if things.repository:
        account, region, repository = things.repository
        partition = things.role.split(":")[1]
        arn = f"arn:{partition}:ecr:{region}:{account}:repository/{repository}"
        yield "image", arn
        if things.is_built:
            yield "repository", arn

    if things.subnets:
        yield "network", "*"
        yield "interface", things.arn("ec2", "network-interface/*")
        for subnet in things.subnets:
            yield "interface", things.arn("ec2", f"subnet/{subnet}")
        for group_id in things.groups:
            yield "interface", things.arn("ec2", f"security-group/{group_id}")

    for key in things.keys:
        if key.startswith("arn:"):
            yield "key", key
        else:
            kind = "" if key.startswith("alias/") else "key/"
            yield "key", things.arn("kms", f"{kind}{key}")

    for _, store, secret in things.secrets:
        yield store, _secret(things, store, secret)


def _secret(things: Things, store: str, name: str) -> str:
    if name.startswith("arn:"):
        return name
    if store == "secretsmanager":  # as IAM's own pages write it
        return things.arn(store, f"secret:{name}-??????")

    return things.arn(store, f"parameter/{name.removeprefix('/')}")


def _stored(things: Things) -> Iterator[tuple[str, str]]:
    """Yield kind and ARN of the buckets, and of the objects in them."""
    members = {"CheckpointConfig": "checkpoints", SOURCE: "source", JOB: "document"}
    for place in things.places:
        key = f"{place.key}*"
        if place.member == "OutputDataConfig":
            job = things.body["TrainingJobName"]
            key = f"{place.key.rstrip('/')}/{job}/output/model.tar.gz".lstrip("/")

        objects = things.arn("s3", f"{place.bucket}/{key}")
        bucket = things.arn("s3", place.bucket)
        yield "bucket", bucket
        if place.is_written:
            yield from {"written": objects, "written bucket": bucket}.items()
        else:
            yield "read", objects
        if place.member in members:
            yield members[place.member], objects
        if place.member in things.plan.context.uploads:
            yield from {"upload": objects, "upload bucket": bucket}.items()
