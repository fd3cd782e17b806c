"""The CloudFormation template of infra/aws, resolved for parameters, and its policies."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from cloudtrain.bundle import bundled
from tests.fakes.aws.policies import Statement, statements
from tests.fakes.aws.template import Resolver, parameter_values, read_template

if TYPE_CHECKING:
    from tests.fakes.aws.cloud import Cloud

ACCOUNT = "123456789012"
REGION = "us-east-1"
SUBJECT = "repo:me/mine:ref:refs/heads/main"
EVERYTHING = {
    "KmsKey": "new",
    "Network": "new",
    "SecretEndpoints": "yes",
    "RunDays": "90",
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
