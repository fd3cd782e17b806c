"""A healthy AWS account for a job on two machines, and how a row of a table breaks it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from tests.fakes.aws.cloud import ACCOUNT, BUCKET, REGION, Cloud
from tests.support.aws_template import JOB, SUBMITTER

SAGEMAKER = "sagemaker.amazonaws.com"
TRAINING_PLAN = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:training-plan/mine"


def allow(*actions: str, on: str = "*", **condition: Any) -> dict[str, Any]:
    """A statement of a policy."""
    statement: dict[str, Any] = {"Effect": "Allow", "Action": list(actions), "Resource": on}
    return statement | ({"Condition": condition} if condition else {})


class HealthyAccount(dict[str, str]):
    """A healthy account, and the names that a row may use; each thing is made at its first use.

    No name comes twice, so that tests share a cloud.
    """

    def __init__(self, cloud: Cloud, name: str = "") -> None:
        self.cloud = cloud
        self.name = name or f"t{uuid4().hex[:8]}"
        self.role = f"arn:aws:iam::{ACCOUNT}:role/{self.name}"
        registry = cloud.image.partition("/")[0]
        super().__init__(
            name=self.name, account=ACCOUNT, bucket=BUCKET, region=REGION, registry=registry
        )

    def client(self, service: str) -> Any:
        """Return a client that bypasses the front: its calls do not count."""
        return self.cloud.client(service, direct=True)

    def make(self, row: Mapping[str, Any] = {}) -> dict[str, str]:
        """Make it as a row says; returns the variables of the user's key."""
        trust = {"Effect": "Allow", "Principal": {"Service": row.get("trust", SAGEMAKER)}}
        roles = f"arn:aws:iam::{ACCOUNT}:role/*"
        passed = allow("iam:PassRole", on=roles, StringEquals={"iam:PassedToService": SAGEMAKER})
        user = [passed, allow(*(SUBMITTER.keys() - {"iam:PassRole"}))]
        lacking = tuple(row.get("without", ()))
        role = [action for action in JOB if not action.startswith(lacking)]
        policy = {"RoleName": self.name, "PolicyName": "job"}
        trusted = _policy([{**trust, "Action": "sts:AssumeRole"}])
        iam = self.client("iam")
        iam.create_role(RoleName=self.name, AssumeRolePolicyDocument=trusted)
        statements = [allow(*role), *map(_statement, row.get("role", ()))]
        iam.put_role_policy(**policy, PolicyDocument=_policy(statements))
        iam.create_user(UserName=self.name)
        statements = [*user, *map(_statement, row.get("user", ()))]
        document = _policy(statements)
        iam.put_user_policy(UserName=self.name, PolicyName="submit", PolicyDocument=document)
        key = iam.create_access_key(UserName=self.name)["AccessKey"]
        return {
            "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
        }

    def spec(self, job: Mapping[str, Any] = {}) -> dict[str, Any]:
        """The job: two machines with EFA, an image in ECR; and changes to it."""
        spec = {
            "name": "digits",
            "image": self.cloud.image,
            "resources": {"nodes": 2, "instance": {"aws": "ml.p4d.24xlarge"}},
            "limits": {"max_runtime": "1 h"},
            **job,
        }
        return {**spec, "aws": {"role": self.role, **job.get("aws", {})}}

    def filled(self, value: Any) -> Any:
        """Return a value of a row with the names that it uses."""
        if isinstance(value, str):
            return value.format_map(self)
        if isinstance(value, list):
            return [self.filled(item) for item in value]
        if isinstance(value, dict):
            return {name: self.filled(item) for name, item in value.items()}
        return value

    def __missing__(self, name: str) -> str:
        if name in ("subnet", "group", "inward"):
            self._make_network()
        elif name == "other":
            self[name] = self._group(self._vpc())
        elif name == "key":
            self[name] = self.client("kms").create_key()["KeyMetadata"]["Arn"]
        elif name == "key id":
            self[name] = self["key"].rpartition("/")[2]
        elif name == "efs":
            system = self.client("efs").create_file_system(CreationToken=self.name)
            self[name] = system["FileSystemId"]
        return self[name]

    def _make_network(self) -> None:
        """A VPC with one subnet, a group whose members reach each other by any protocol, as EFA
        needs it, and one that lets them in only.
        """
        ec2 = self.client("ec2")
        vpc = self._vpc()
        subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.1.0/24")["Subnet"]["SubnetId"]
        self |= {"subnet": subnet, "group": self._group(vpc), "inward": self._group(vpc)}
        for name in ("group", "inward"):
            own = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": self[name]}]}]
            ec2.authorize_security_group_ingress(GroupId=self[name], IpPermissions=own)
            if name == "group":
                ec2.authorize_security_group_egress(GroupId=self[name], IpPermissions=own)

    def _vpc(self) -> str:
        made = self.client("ec2").create_vpc(CidrBlock="10.0.0.0/16")
        return str(made["Vpc"]["VpcId"])

    def _group(self, vpc: str) -> str:
        name = uuid4().hex
        made = self.client("ec2").create_security_group(
            GroupName=name, Description="nodes", VpcId=vpc
        )
        return str(made["GroupId"])


def _statement(right: Mapping[str, Any]) -> dict[str, Any]:
    effect = "Allow" if "allow" in right else "Deny"
    action = right.get("allow") or right["deny"]
    statement = allow(action, on=right.get("on", "*"), **right.get("if", {}))
    return {**statement, "Effect": effect}


def _policy(statements: list[dict[str, Any]]) -> str:
    return json.dumps({"Version": "2012-10-17", "Statement": statements})
