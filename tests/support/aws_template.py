"""CloudFormation templates, resolved for parameters: that of infra/aws, and its policies."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import yaml

from cloudtrain.bundle import bundled
from cloudtrain.providers.aws.rights import rights_of
from tests.fakes.aws.policies import Statement, statements
from tests.fakes.aws.request_rules import PUSH

if TYPE_CHECKING:
    from tests.fakes.aws.cloud import Cloud


# CloudFormation templates: read with their short forms, and resolved for given parameters.
# After "Intrinsic function reference" and "Template reference" of the CloudFormation user guide.
# An unknown part of a template is an error, so that nothing passes unseen.

NO_VALUE = object()


class _Loader(yaml.SafeLoader):
    """YAML with `!Ref` and the like."""


def _short_form(loader: _Loader, suffix: str, node: yaml.Node) -> Any:
    if isinstance(node, yaml.ScalarNode):
        value: Any = loader.construct_scalar(node)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        value = loader.construct_mapping(node, deep=True)  # type: ignore[arg-type]
    if suffix == "GetAtt" and isinstance(value, str):
        value = value.split(".", 1)
    return {suffix if suffix in ("Ref", "Condition") else f"Fn::{suffix}": value}


_Loader.add_multi_constructor("!", _short_form)


def read_template(text: str) -> dict[str, Any]:
    """Return a template as a document."""
    document: dict[str, Any] = yaml.load(text, _Loader)
    return document


def parameter_values(template: Mapping[str, Any], arguments: Mapping[str, str]) -> dict[str, str]:
    """Return all parameters with their values. ValueError for one that is not declared."""
    declared = template["Parameters"]
    unknown = [name for name in arguments if name not in declared]
    if unknown:
        raise ValueError(f"not in the template: {', '.join(unknown)}")
    return {
        name: str(arguments.get(name, parameter["Default"])) for name, parameter in declared.items()
    }


class Resolver:
    """A template with its parameters, in one account and region.

    `identities`: what Ref gives for the resources that exist; `attributes`: what Fn::GetAtt gives.
    For a resource that does not exist yet, both give a name made from its own: `<Bucket>`,
    `<ExecutionRole.Arn>`.
    """

    def __init__(
        self,
        template: Mapping[str, Any],
        values: Mapping[str, str],
        *,
        stack: str,
        region: str,
        account: str,
    ) -> None:
        self.template = template
        self.values = values
        self.identities: dict[str, str] = {}
        self.attributes: dict[tuple[str, str], str] = {}
        self._pseudo = {
            "AWS::Region": region,
            "AWS::AccountId": account,
            "AWS::Partition": "aws",
            "AWS::URLSuffix": "amazonaws.com",
            "AWS::StackName": stack,
            "AWS::StackId": f"arn:aws:cloudformation:{region}:{account}:stack/{stack}/id",
        }

    def is_true(self, condition: str) -> bool:
        """Return whether a condition of the template is true."""
        return bool(self.value(self.template["Conditions"][condition]))

    def resources(self) -> dict[str, dict[str, Any]]:
        """Return the resources whose conditions are true, as written in the template."""
        every = self.template["Resources"]
        return {
            name: resource
            for name, resource in every.items()
            if "Condition" not in resource or self.is_true(resource["Condition"])
        }

    def properties(self, name: str) -> dict[str, Any]:
        """A resource's properties, resolved."""
        resolved: dict[str, Any] = self.value(
            self.template["Resources"][name].get("Properties", {})
        )
        return resolved

    def outputs(self) -> dict[str, str]:
        """The outputs whose conditions hold."""
        every = self.template.get("Outputs", {}).items()
        held = {
            key: output
            for key, output in every
            if "Condition" not in output or self.is_true(output["Condition"])
        }
        return {key: str(self.value(output["Value"])) for key, output in held.items()}

    def value(self, of: Any) -> Any:
        """Any part of the template, resolved."""
        if isinstance(of, list):
            return [item for item in map(self.value, of) if item is not NO_VALUE]
        if not isinstance(of, dict):
            return of
        if len(of) == 1 and (function := _function(next(iter(of)))):
            return function(self, next(iter(of.values())))
        resolved = {key: self.value(item) for key, item in of.items()}
        return {key: item for key, item in resolved.items() if item is not NO_VALUE}

    def ref(self, name: str) -> Any:
        if name == "AWS::NoValue":
            return NO_VALUE
        if name in self._pseudo:
            return self._pseudo[name]
        if name in self.values:
            is_list = self.template["Parameters"][name]["Type"] == "CommaDelimitedList"
            return self.values[name].split(",") if is_list else self.values[name]
        if name not in self.template["Resources"]:
            raise ValueError(f"no parameter and no resource: {name}")
        return self.identities.get(name, f"<{name}>")

    def attribute(self, parts: list[str]) -> str:
        return self.attributes.get((parts[0], parts[1]), f"<{parts[0]}.{parts[1]}>")

    def sub(self, of: Any) -> str:
        text, names = (of, {}) if isinstance(of, str) else (of[0], self.value(of[1]))

        def replacement(match: re.Match[str]) -> str:
            name = match[1]
            if name in names:
                return str(names[name])
            return str(self.attribute(name.split(".", 1)) if "." in name else self.ref(name))

        # "${!x}" means the literal text "${x}".
        return re.sub(r"\$\{([^!}]+)\}", replacement, text).replace("${!", "${")


def _function(name: str) -> Callable[[Resolver, Any], Any] | None:
    if name.startswith("Fn::") and name not in _FUNCTIONS:
        raise ValueError(f"{name} is not part of this imitation")
    return _FUNCTIONS.get(name)


_FUNCTIONS: Mapping[str, Callable[[Resolver, Any], Any]] = {
    "Ref": Resolver.ref,
    "Condition": Resolver.is_true,
    "Fn::GetAtt": Resolver.attribute,
    "Fn::Sub": Resolver.sub,
    "Fn::If": lambda resolver, of: resolver.value(of[1] if resolver.is_true(of[0]) else of[2]),
    "Fn::Equals": lambda resolver, of: str(resolver.value(of[0])) == str(resolver.value(of[1])),
    "Fn::Not": lambda resolver, of: not resolver.value(of[0]),
    "Fn::And": lambda resolver, of: all(map(resolver.value, of)),
    "Fn::Or": lambda resolver, of: any(map(resolver.value, of)),
    "Fn::Select": lambda resolver, of: resolver.value(of[1])[of[0]],
    "Fn::Split": lambda resolver, of: resolver.value(of[1]).split(of[0]),
    "Fn::Join": lambda resolver, of: of[0].join(map(str, resolver.value(of[1]))),
}


# The CloudFormation template of infra/aws, resolved for parameters, and its policies.

ACCOUNT = "123456789012"
REGION = "us-east-1"
SUBJECT = "repo:me/mine:ref:refs/heads/main"
EVERYTHING = {
    "Queue": "new",
    "KmsKey": "new",
    "Network": "new",
    "SecretEndpoints": "yes",
    "RunDays": "90",
    "RemoveRuns": "yes",
    "CreateLogGroup": "yes",
    "LogDays": "30",
    "RemoteDebug": "yes",
    "DataArns": "arn:aws:s3:::data,arn:aws:s3:::data/*",
    "GitHubSubject": SUBJECT,
    "MonthlyBudget": "50",
    "AlarmEmail": "me@example.org",
}
"""Parameters that create every resource of the template."""


@cache
def template() -> dict[str, Any]:
    """Return the template, with unresolved functions."""
    return read_template((bundled("infra") / "aws" / "cloudtrain.yaml").read_text(encoding="utf-8"))


def resolved(**parameters: str) -> Resolver:
    """Return the template, resolved, with made-up names of resources."""
    made = Resolver(
        template(),
        parameter_values(template(), parameters),
        stack="cloudtrain",
        region=REGION,
        account=ACCOUNT,
    )
    made.identities["Bucket"] = "made-bucket"
    made.identities["Repository"] = "made-repository"
    made.attributes["Bucket", "Arn"] = "arn:aws:s3:::made-bucket"
    made.attributes["ExecutionRole", "Arn"] = f"arn:aws:iam::{ACCOUNT}:role/made-role"
    made.attributes["Key", "Arn"] = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/made-key"
    return made


@cache
def job_policy(**parameters: str) -> list[Statement]:
    """Return the rights of jobs."""
    return statements(
        policy["PolicyDocument"]
        for policy in resolved(**parameters).properties("ExecutionRole")["Policies"]
    )


@cache
def submitter_policy(**parameters: str) -> list[Statement]:
    """Return the rights of people and CI."""
    return statements([resolved(**parameters).properties("SubmitterPolicy")["PolicyDocument"]])


def deploy(cloud: Cloud, **parameters: str) -> dict[str, str]:
    """Make the resources of the template in an imitated account; return the outputs of the stack.

    Make only the key, bucket, repository, role and policy. The bucket's policy is
    left out: it requires TLS, which loopback does not have. Jobs may then do only what the role
    grants.
    """
    made = Resolver(
        template(),
        parameter_values(template(), parameters),
        stack="cloudtrain",
        region=cloud.region,
        account=ACCOUNT,
    )
    if "Key" in made.resources():
        key = cloud.client("kms", direct=True).create_key()["KeyMetadata"]
        made.identities["Key"] = key["KeyId"]
        made.attributes["Key", "Arn"] = key["Arn"]
    _make_storage(cloud, made)
    _make_rights(cloud, made)
    outputs = made.outputs()
    cloud.stacks.outputs["cloudtrain"] = outputs
    return outputs


def _make_storage(cloud: Cloud, made: Resolver) -> None:
    bucket = "cloudtrain-bucket-1a2b3c"
    made.identities["Bucket"] = bucket
    made.attributes["Bucket", "Arn"] = f"arn:aws:s3:::{bucket}"
    properties = made.properties("Bucket")
    s3 = cloud.client("s3", direct=True)
    s3.create_bucket(Bucket=bucket)
    for call, name in (
        (s3.put_bucket_versioning, "VersioningConfiguration"),
        (s3.put_public_access_block, "PublicAccessBlockConfiguration"),
    ):
        call(Bucket=bucket, **{name: properties[name]})

    made.identities["Repository"] = "cloudtrain-repository-1a2b3c"
    cloud.registry.create_repository("cloudtrain-repository-1a2b3c")


def _make_rights(cloud: Cloud, made: Resolver) -> None:
    iam = cloud.client("iam", direct=True)
    properties = made.properties("ExecutionRole")
    name = "cloudtrain-ExecutionRole-1A2B3C"
    trust = json.dumps(properties["AssumeRolePolicyDocument"])
    role = iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust)["Role"]
    for policy in properties["Policies"]:
        document = json.dumps(policy["PolicyDocument"])
        iam.put_role_policy(RoleName=name, PolicyName=policy["PolicyName"], PolicyDocument=document)
    cloud.account.job_policy = statements(
        policy["PolicyDocument"] for policy in properties["Policies"]
    )
    made.identities["ExecutionRole"] = name
    made.attributes["ExecutionRole", "Arn"] = role["Arn"]

    document = json.dumps(made.properties("SubmitterPolicy")["PolicyDocument"])
    policy = iam.create_policy(PolicyName="cloudtrain-Submitter-1A2B3C", PolicyDocument=document)
    made.identities["SubmitterPolicy"] = policy["Policy"]["Arn"]


def enforce(cloud: Cloud) -> None:
    """Allow callers and jobs of an imitated account only what the template grants them."""
    names = {"BucketName": cloud.bucket, "RepositoryName": "train"}
    made = resolved(**names)
    made.attributes["ExecutionRole", "Arn"] = cloud.role
    cloud.account.caller_policy = statements([made.properties("SubmitterPolicy")["PolicyDocument"]])
    cloud.account.job_policy = job_policy(**names)


# The client's list of rights, by action, each with the parameter of the template that it needs, or an
# empty text.

Permissions = Mapping[str, str]
_PARAMETERS = {
    "interface": "network",
    "key": "kms_key",
    "network": "network",
    "queue": "queue",
    "queues": "queue",
    "removed": "remove_runs",
    "service job": "queue",
    "shell": "remote_debug",
}
"""Kind of resource -> parameter of the template."""
IMPLIED = {"iam:PassRole", "kms:Decrypt", "kms:GenerateDataKey", "sagemaker:AddTags"} | {
    f"ecr:{name}" for name in PUSH
}
"""Actions that no call of the client names: Docker's protocol, and parts of other calls."""


def _by_action(who: str) -> dict[str, str]:
    permissions: dict[str, str] = {}
    for rights in rights_of(who).values():
        for kind, actions in rights.items():
            permissions |= dict.fromkeys(actions, _PARAMETERS.get(kind, ""))
    return permissions


SUBMITTER = _by_action("people")
JOB = _by_action("role")
DOCTOR = _by_action("looking")
"""People have these too, unless the parameter `doctor` is `no`."""
