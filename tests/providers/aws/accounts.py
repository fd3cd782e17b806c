"""A healthy AWS account for a job on two machines in its own network, and parts of that account."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import pytest

from tests.fakes.aws.cloud import ACCOUNT, REGION, Cloud

SAGEMAKER = "sagemaker.amazonaws.com"
TRUST: dict[str, Any] = {
    "Effect": "Allow",
    "Principal": {"Service": SAGEMAKER},
    "Action": "sts:AssumeRole",
    "Condition": {
        "StringEquals": {"aws:SourceAccount": ACCOUNT},
        "ArnLike": {"aws:SourceArn": f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:*"},
    },
}


def allow(*actions: str, on: str = "*", **condition: Any) -> dict[str, Any]:
    """A statement of a policy."""
    statement: dict[str, Any] = {"Effect": "Allow", "Action": list(actions), "Resource": on}
    return statement | ({"Condition": condition} if condition else {})


@dataclass
class HealthyAccount:
    """A healthy account.

    Each part has its own name, so that tests share a cloud; changing a part breaks it.
    """

    cloud: Cloud
    name: str = field(default_factory=lambda: f"t{uuid4().hex[:8]}")
    trust: list[dict[str, Any]] = field(default_factory=lambda: [TRUST])
    user: list[dict[str, Any]] = field(default_factory=list)
    """Statements of the submitting user's policy; empty: the right ones."""
    job: list[dict[str, Any]] = field(default_factory=list)
    """The same of the role."""
    values: dict[str, Any] = field(default_factory=dict)
    """Changes of a test to the job."""

    @property
    def role(self) -> str:
        """The ARN of the execution role."""
        return f"arn:aws:iam::{ACCOUNT}:role/{self.name}"

    def client(self, service: str) -> Any:
        """Return a client that bypasses the front: its calls do not count."""
        return self.cloud.client(service, direct=True)

    def make(self) -> dict[str, str]:
        """Make it; returns the variables of the user's key."""
        iam = self.client("iam")
        iam.create_role(RoleName=self.name, AssumeRolePolicyDocument=_policy(self.trust))
        iam.put_role_policy(
            RoleName=self.name, PolicyName="job", PolicyDocument=_policy(self.job or job_rights())
        )
        iam.create_user(UserName=self.name)
        rights = self.user or user_rights(self.role)
        iam.put_user_policy(UserName=self.name, PolicyName="submit", PolicyDocument=_policy(rights))
        key = iam.create_access_key(UserName=self.name)["AccessKey"]
        return {
            "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
        }

    def network(self) -> Network:
        """A VPC with one subnet, a group that is open to itself, and a way to S3."""
        ec2 = self.client("ec2")
        vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
        subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.1.0/24")["Subnet"]["SubnetId"]
        made = ec2.create_security_group(GroupName=self.name, Description="nodes", VpcId=vpc)
        return Network(ec2, vpc, subnet, made["GroupId"])

    def spec(self, network: Network | None = None) -> dict[str, Any]:
        """The job: two machines with EFA, an image in ECR."""
        aws: dict[str, Any] = {"role": self.role}
        if network:
            aws |= {"subnets": [network.subnet], "security_groups": [network.group]}
        job: dict[str, Any] = {
            "name": "digits",
            "image": self.cloud.image,
            "resources": {"nodes": 2, "instance": {"aws": "ml.p4d.24xlarge"}},
            "limits": {"max_runtime": "1 h"},
        }
        return {**job, **self.values, "aws": {**aws, **self.values.get("aws", {})}}


@dataclass(frozen=True)
class Network:
    """The network of a job's nodes."""

    ec2: Any
    vpc: str
    subnet: str
    group: str

    def open(self, *, inward: bool = True, outward: bool = True) -> Network:
        """Let members of the group reach each other by any protocol, as EFA needs it."""
        ingress = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": self.group}]}]
        if inward:
            self.ec2.authorize_security_group_ingress(GroupId=self.group, IpPermissions=ingress)
        if outward:
            self.ec2.authorize_security_group_egress(GroupId=self.group, IpPermissions=ingress)
        return self

    def with_endpoint(self) -> Network:
        """A way to S3."""
        tables = self.ec2.describe_route_tables(Filters=[{"Name": "vpc-id", "Values": [self.vpc]}])[
            "RouteTables"
        ]
        service = f"com.amazonaws.{REGION}.s3"
        self.ec2.create_vpc_endpoint(
            VpcId=self.vpc,
            ServiceName=service,
            VpcEndpointType="Gateway",
            RouteTableIds=[tables[0]["RouteTableId"]],
        )
        return self


def user_rights(role: str) -> list[dict[str, Any]]:
    """Return the rights of a submitting user, including those for doctor's checks."""
    return [
        allow("iam:PassRole", on=role, StringEquals={"iam:PassedToService": SAGEMAKER}),
        allow("sagemaker:*TrainingJob", "sagemaker:AddTags"),
        allow("s3:PutObject", "s3:GetObject", "s3:ListBucket", "logs:GetLogEvents"),
    ]


def job_rights() -> list[dict[str, Any]]:
    """Return the rights of a job."""
    logs = f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:/aws/sagemaker/TrainingJobs:*"
    return [
        allow("s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket"),
        allow("logs:CreateLogStream", "logs:PutLogEvents", on=logs),
        allow("ecr:GetAuthorizationToken", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"),
    ]


def without(statements: list[dict[str, Any]], action: str) -> list[dict[str, Any]]:
    """The same rights but one."""
    return [
        {**statement, "Action": [name for name in statement["Action"] if name != action]}
        for statement in statements
    ]


def _policy(statements: list[dict[str, Any]] | Mapping[str, Any]) -> str:
    remaining = (
        [statement for statement in statements if statement.get("Action")]
        if isinstance(statements, list)
        else statements
    )
    return json.dumps({"Version": "2012-10-17", "Statement": remaining})


def log_in(healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the account, and take its user's key."""
    for name, value in healthy.make().items():
        monkeypatch.setenv(name, value)
