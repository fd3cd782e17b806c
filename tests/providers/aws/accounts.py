"""A healthy AWS account for a job on two machines, and faults of it, one each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from cloudtrain.providers.aws import checkup
from tests.fakes.aws.account import ACROSS
from tests.fakes.aws.cloud import ACCOUNT, BUCKET, REGION, Cloud
from tests.support.aws_template import JOB, SUBMITTER

# A healthy AWS account for a job on two machines in its own network, and parts of that account.

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
        rights = self.user or user_rights()
        iam.put_user_policy(UserName=self.name, PolicyName="submit", PolicyDocument=_policy(rights))
        key = iam.create_access_key(UserName=self.name)["AccessKey"]
        return {
            "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
            "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
        }

    def network(self, name: str = "") -> Network:
        """A VPC with one subnet and a group."""
        ec2 = self.client("ec2")
        vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
        subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.1.0/24")["Subnet"]["SubnetId"]
        made = ec2.create_security_group(GroupName=self.name + name, Description="nodes", VpcId=vpc)
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

    def open(self, *, outward: bool = True) -> Network:
        """Let members of the group reach each other by any protocol, as EFA needs it."""
        own = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": self.group}]}]
        self.ec2.authorize_security_group_ingress(GroupId=self.group, IpPermissions=own)
        if outward:
            self.ec2.authorize_security_group_egress(GroupId=self.group, IpPermissions=own)
        return self


def user_rights() -> list[dict[str, Any]]:
    """Return the rights of a submitting user."""
    roles = f"arn:aws:iam::{ACCOUNT}:role/*"
    return [
        allow("iam:PassRole", on=roles, StringEquals={"iam:PassedToService": SAGEMAKER}),
        allow(*(SUBMITTER.keys() - {"iam:PassRole"})),
    ]


def job_rights() -> list[dict[str, Any]]:
    """Return the rights of a job."""
    return [allow(*JOB)]


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


# Faults of an AWS account, one each: the check that reports it, its message, and how to cause it.

Break = Callable[[HealthyAccount, pytest.MonkeyPatch], None]


def set_values(**values: Any) -> Break:
    return lambda healthy, _: healthy.values.update(values)


def statements(part: str, broken: Callable[[HealthyAccount], list[dict[str, Any]]]) -> Break:
    return lambda healthy, _: setattr(healthy, part, broken(healthy))


def no_credentials(healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(healthy, "make", dict)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)


def denied_to(part: str, action: str, on: str = "*") -> Break:
    """The right ones of a user or a job, less one action on some resource."""

    def break_(healthy: HealthyAccount, _: pytest.MonkeyPatch) -> None:
        rights = user_rights() if part == "user" else job_rights()
        setattr(healthy, part, [*rights, {**allow(action, on=on), "Effect": "Deny"}])

    return break_


def slow_clock(healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "time", SimpleNamespace(time=lambda: time.time() - 600))


def bucket_elsewhere(healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch) -> None:
    where = {"LocationConstraint": "eu-west-1"}
    healthy.client("s3").create_bucket(Bucket=healthy.name, CreateBucketConfiguration=where)
    healthy.values["aws"] = {"bucket": healthy.name}


def image_for_arm(healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch) -> None:
    healthy.cloud.registry.images.put("arm", "1", "arm64")
    healthy.values["image"] = healthy.cloud.image.replace("train:1", "arm:1")


def disabled_key(healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch) -> None:
    key = healthy.client("kms").create_key()["KeyMetadata"]["Arn"]
    healthy.client("kms").disable_key(KeyId=key.rpartition("/")[2])
    healthy.values["aws"] = {"kms_key": key}


def deleted_secret(healthy: HealthyAccount, _: pytest.MonkeyPatch) -> None:
    secrets = healthy.client("secretsmanager")
    secrets.create_secret(Name=healthy.name, SecretString="x")
    secrets.delete_secret(SecretId=healthy.name)
    healthy.values["secrets"] = {"TOKEN": {"aws": f"secretsmanager:{healthy.name}"}}


def plan_for(**described: Any) -> Break:
    """A training plan with such a description."""

    def break_(healthy: HealthyAccount, _: pytest.MonkeyPatch) -> None:
        healthy.cloud.service.training_plans["mine"] = described
        healthy.values["aws"] = {"training_plan": TRAINING_PLAN}

    return break_


def quota(name: str, value: int) -> Break:
    return lambda healthy, _: healthy.cloud.account.quotas.update({name: value})


def no_warm_pools(healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch) -> None:
    healthy.values["aws"] = {"keep_alive": "1 h"}
    healthy.cloud.account.has_warm_pools = False


P4D = {"ml.p4d.24xlarge": 1}
OTHER = "999999999999"
TRAINING_PLAN = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:training-plan/mine"
KEY = f"arn:aws:kms:{REGION}:{ACCOUNT}:key/01234567-89ab-cdef-0123-456789abcdef"
NO_CONDITION = {key: value for key, value in TRUST.items() if key != "Condition"}
FOR_EC2 = {**NO_CONDITION, "Principal": {"Service": "ec2.amazonaws.com"}}
NOWHERE = "s3://nobodys-bucket/x/"
SECRET = "secretsmanager:not/there"
BROKEN: dict[str, tuple[str, str, Break]] = {
    "no credentials": ("credentials", "no AWS credentials", no_credentials),
    "expired login": (
        *("credentials", "expired"),
        lambda healthy, _: healthy.cloud.endpoint.fault("expired", "sts", times=9),
    ),
    "clock ten minutes slow": ("clock", " slow", slow_clock),
    "another account": (
        *("account", f"are of {ACCOUNT}"),
        set_values(aws={"role": f"arn:aws:iam::{OTHER}:role/train"}),
    ),
    "no such role": (
        *("execution role", "there is none"),
        set_values(aws={"role": f"arn:aws:iam::{ACCOUNT}:role/gone"}),
    ),
    "role of EC2": ("execution role", "does not name", statements("trust", lambda _: [FOR_EC2])),
    "no bucket": (
        *("bucket nobodys-bucket", "there is none"),
        set_values(aws={"bucket": "nobodys-bucket"}),
    ),
    "bucket in another region": ("bucket t", "it is in eu-west-1", bucket_elsewhere),
    "no bucket of checkpoints": (
        *("bucket nobodys-bucket", "there is none"),
        set_values(checkpoints={"uri": NOWHERE}),
    ),
    "no bucket of results": (
        *("bucket nobodys-bucket", "there is none"),
        set_values(aws={"output": NOWHERE}),
    ),
    "no bucket of an input": (
        *("bucket nobodys-bucket", "there is none"),
        set_values(inputs={"train": {"aws": NOWHERE}}),
    ),
    "nothing at an input": (
        *("input train", "there is nothing"),
        set_values(inputs={"train": {"aws": f"s3://{BUCKET}/gone/"}}),
    ),
    "key is disabled": ("key", "Disabled", disabled_key),
    "no such key": ("key", "there is none", set_values(aws={"kms_key": KEY})),
    "no such secret": (
        *("secret TOKEN", "there is none"),
        set_values(secrets={"TOKEN": {"aws": SECRET}}),
    ),
    "deleted secret": ("secret TOKEN", "scheduled for deletion", deleted_secret),
    "no such parameter": (
        *("secret TOKEN", "there is none"),
        set_values(secrets={"TOKEN": {"aws": "ssm:/not/there"}}),
    ),
    "no such repository": (
        *("repository", "there is none"),
        set_values(image="auto", aws={"repository": "gone"}),
    ),
    "no such image": (
        *("image", "no such image"),
        lambda h, _: h.values.update(image=h.cloud.image.replace("train:1", "train:2")),
    ),
    "image for other processors": ("image", "arm64", image_for_arm),
    "no such training plan": (
        *("training plan", "there is none"),
        set_values(aws={"training_plan": TRAINING_PLAN.replace("mine", "gone")}),
    ),
    "training plan that is over": ("training plan", "is Expired", plan_for(Status="Expired")),
    "training plan for fewer": ("training plan", "1 machines", plan_for(TotalInstanceCount=1)),
    "quota too small": ("quota", "is 1, the job has 2", quota("ml.p4d.24xlarge", 1)),
    "quota of all types too small": ("all instances", "is 1, the job has 2", quota(ACROSS, 1)),
    "run beyond the quota": ("longest run", "is 5 d", set_values(limits={"max_runtime": "6 d"})),
    "no warm pools": ("warm pool", "is 0", no_warm_pools),
    "no PassRole": ("submitting", "iam:PassRole", denied_to("user", "iam:PassRole")),
    "no right to store": ("submitting", "s3:PutObject", denied_to("user", "s3:PutObject")),
    "no right to tag": ("submitting", "sagemaker:AddTags", denied_to("user", "sagemaker:AddTags")),
    "no right to read logs": (
        *("following", "logs:GetLogEvents"),
        denied_to("user", "logs:GetLogEvents"),
    ),
    "no right to stop": (
        *("stopping", "StopTrainingJob"),
        denied_to("user", "sagemaker:StopTrainingJob"),
    ),
    "no right to list results": (
        *("fetching", "s3:ListBucket"),
        denied_to("user", "s3:ListBucket"),
    ),
    "job may not rotate checkpoints": (
        *("role's rights", "s3:DeleteObject"),
        denied_to("job", "s3:DeleteObject"),
    ),
    "job may not write results": (
        *("role's rights", "s3:PutObject on arn:aws:s3:::"),
        denied_to("job", "s3:PutObject", on="arn:aws:s3:::*/output/*"),
    ),
    "job may not write logs": (
        *("role's rights", "logs:PutLogEvents"),
        denied_to("job", "logs:PutLogEvents"),
    ),
    "job may not pull its image": (
        *("role's rights", "ecr:BatchGetImage"),
        denied_to("job", "ecr:BatchGetImage"),
    ),
}


def with_efs(healthy: HealthyAccount, network: Network) -> dict[str, Any]:
    """A job with an input in a file system that no subnet mounts."""
    efs = healthy.client("efs")
    system = efs.create_file_system(CreationToken=healthy.name)["FileSystemId"]
    healthy.values["inputs"] = {"train": {"aws": f"efs://{system}/words"}}
    return healthy.spec(network)


def with_lustre(healthy: HealthyAccount, network: Network) -> dict[str, Any]:
    """A job with an input in a file system of another VPC."""
    healthy.values["inputs"] = {"train": {"aws": "fsx://fs-0123456789abcdef0/words"}}
    return healthy.spec(network)


def without_interfaces(healthy: HealthyAccount, network: Network) -> dict[str, Any]:
    """A job whose role may not join a network."""
    role = healthy.role.rpartition("/")[2]
    deny = {**allow("ec2:CreateNetworkInterface"), "Effect": "Deny"}
    healthy.client("iam").put_role_policy(
        RoleName=role, PolicyName="deny", PolicyDocument=_policy([deny])
    )
    return healthy.spec(network)


BROKEN_NETWORKS: dict[str, tuple[str, str, Callable[[HealthyAccount], dict[str, Any]]]] = {
    "no such subnet": (
        *("subnets", "there is none"),
        lambda h: h.spec(replace(h.network().open(), subnet="subnet-0123456789abcdef0")),
    ),
    "no such group": (
        *("security groups", "there is none"),
        lambda h: h.spec(replace(h.network(), group="sg-0123456789abcdef0")),
    ),
    "a group of another network": (
        *("security groups", "not of the subnets' VPC"),
        lambda h: h.spec(replace(h.network().open(), group=h.network("other").group)),
    ),
    "a group that lets nobody out by EFA": (
        *("security groups", "EFA needs"),
        lambda h: h.spec(h.network().open(outward=False)),
    ),
    "a role that may not join": (
        *("role and network", "ec2:CreateNetworkInterface"),
        lambda h: without_interfaces(h, h.network().open()),
    ),
    "a file system without a mount": (
        *("input train", "it is in no VPC"),
        lambda h: with_efs(h, h.network().open()),
    ),
    "no such file system": (
        *("input train", "there is none"),
        lambda h: with_lustre(h, h.network().open()),
    ),
}
