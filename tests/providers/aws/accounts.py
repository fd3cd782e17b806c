"""A healthy AWS account for a job on two machines, and faults of it, one each."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from cloudtrain.providers.aws import rights as identity
from tests.fakes.aws.cloud import ACCOUNT, BUCKET, REGION, Cloud

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

    def with_own_routes(self) -> Network:
        """A route table of the subnet alone, which no endpoint is in."""
        table = self.ec2.create_route_table(VpcId=self.vpc)["RouteTable"]["RouteTableId"]
        self.ec2.associate_route_table(RouteTableId=table, SubnetId=self.subnet)
        return self

    def with_endpoint(self, to: str = "*", denied: str = "") -> Network:
        """A way to S3, to these buckets, without denied actions."""
        own = {"AWS": f"arn:aws:iam::{ACCOUNT}:root"}
        policy = [{**allow("s3:*", on=f"arn:aws:s3:::{to}/*"), "Principal": own}]
        if denied:
            policy.append({**allow(denied), "Effect": "Deny", "Principal": "*"})
        tables = self.ec2.describe_route_tables(Filters=[{"Name": "vpc-id", "Values": [self.vpc]}])[
            "RouteTables"
        ]
        service = f"com.amazonaws.{REGION}.s3"
        self.ec2.create_vpc_endpoint(
            VpcId=self.vpc,
            ServiceName=service,
            VpcEndpointType="Gateway",
            PolicyDocument=_policy(policy),
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


def unreadable_input(healthy: HealthyAccount, _: pytest.MonkeyPatch) -> None:
    healthy.client("s3").put_object(Bucket=BUCKET, Key="train/a", Body=b"a")
    healthy.values["inputs"] = {"train": {"aws": f"s3://{BUCKET}/train/"}}
    elsewhere = allow("s3:GetObject", on=f"arn:aws:s3:::{BUCKET}/cloudtrain/*")
    healthy.job = [*without(job_rights(), "s3:GetObject"), elsewhere]


def no_right_to_plan(healthy: HealthyAccount, _: pytest.MonkeyPatch) -> None:
    place = f"arn:aws:sagemaker:{REGION}:{ACCOUNT}"
    healthy.values["aws"] = {"training_plan": f"{place}:training-plan/mine"}
    jobs = allow("sagemaker:*TrainingJob", on=f"{place}:training-job/*")
    healthy.user = [*without(user_rights(healthy.role), "sagemaker:*TrainingJob"), jobs]


def slow_clock(healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "time", SimpleNamespace(time=lambda: time.time() - 600))


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


def key_of(healthy: HealthyAccount, *principals: str) -> None:
    """A key that these may use; the right to use it is in no policy of the role."""
    statement = {**allow("kms:*"), "Principal": {"AWS": list(principals)}}
    key = healthy.client("kms").create_key(Policy=_policy([statement]))["KeyMetadata"]["Arn"]
    healthy.values["aws"] = {"kms_key": key}


P4D = {"ml.p4d.24xlarge": 1}


def small_quota(healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch) -> None:
    healthy.cloud.account.quotas.update(P4D)


def no_warm_pools(healthy: HealthyAccount, monkeypatch: pytest.MonkeyPatch) -> None:
    healthy.values["aws"] = {"keep_alive": "1 h"}
    healthy.cloud.account.has_warm_pools = False


OTHER = "999999999999"
NO_CONDITION = {key: value for key, value in TRUST.items() if key != "Condition"}
BROKEN: dict[str, tuple[str, str, Break]] = {
    "no credentials": ("credentials", "no AWS credentials", no_credentials),
    "expired login": (
        *("credentials", "expired"),
        lambda healthy, _: healthy.cloud.endpoint.fault("expired", "sts", times=9),
    ),
    "clock ten minutes slow": ("clock", " slow", slow_clock),
    "another account": (
        "account",
        f"are of {ACCOUNT}",
        set_values(aws={"role": f"arn:aws:iam::{OTHER}:role/train"}),
    ),
    "no such role": (
        "execution role",
        "no such role",
        set_values(aws={"role": f"arn:aws:iam::{ACCOUNT}:role/gone"}),
    ),
    "role of EC2": (
        *("execution role", "does not trust"),
        statements(
            "trust", lambda _: [{**NO_CONDITION, "Principal": {"Service": "ec2.amazonaws.com"}}]
        ),
    ),
    "role for an external id": (
        *("execution role", "sts:ExternalId secret"),
        statements(
            "trust",
            lambda _: [{**TRUST, "Condition": {"StringEquals": {"sts:ExternalId": "secret"}}}],
        ),
    ),
    "role for another account": (
        *("execution role", f"aws:SourceAccount {OTHER}"),
        statements(
            "trust",
            lambda _: [{**TRUST, "Condition": {"StringEquals": {"aws:SourceAccount": OTHER}}}],
        ),
    ),
    "no PassRole": (
        "PassRole",
        "iam:PassRole",
        statements("user", lambda h: user_rights(h.role)[1:]),
    ),
    "no right to store": (
        *("submitting", "s3:PutObject"),
        statements("user", lambda h: without(user_rights(h.role), "s3:PutObject")),
    ),
    "no right to use a training plan": (
        *("submitting", "training-plan/mine is not allowed"),
        no_right_to_plan,
    ),
    "job may not rotate checkpoints": (
        *("role's rights", "s3:DeleteObject"),
        statements("job", lambda _: without(job_rights(), "s3:DeleteObject")),
    ),
    "no such bucket": ("bucket", "no such bucket", set_values(aws={"bucket": "nobodys-bucket"})),
    "bucket in another region": ("bucket", "eu-west-1", bucket_elsewhere),
    "no such input": (
        *("input", "there is nothing"),
        set_values(inputs={"train": {"aws": f"s3://{BUCKET}/gone/"}}),
    ),
    "input in no bucket": (
        *("input", "no bucket nobodys-bucket"),
        set_values(inputs={"train": {"aws": "s3://nobodys-bucket/train/"}}),
    ),
    "job may not read an input": (
        "role's rights",
        f"s3:GetObject on arn:aws:s3:::{BUCKET}/train/*",
        unreadable_input,
    ),
    "key is disabled": ("key", "Disabled", disabled_key),
    "key of another role": (
        *("key policy", "allow it kms:Decrypt"),
        lambda h, _: key_of(h, f"arn:aws:iam::{ACCOUNT}:role/other"),
    ),
    "key without a right in IAM": (
        *("key policy", "kms:Decrypt, kms:Encrypt, kms:GenerateDataKey on arn"),
        lambda h, _: key_of(h, f"arn:aws:iam::{ACCOUNT}:root"),
    ),
    "no such repository": (
        "repository",
        "no such",
        set_values(image="auto", aws={"repository": "gone"}),
    ),
    "no such image": (
        *("image", "no such image"),
        lambda h, _: h.values.update(image=h.cloud.image.replace("train:1", "train:2")),
    ),
    "image for other processors": ("image", "arm64", image_for_arm),
    "quota too small": ("quota", "is 1, the job has 2", small_quota),
    "run beyond the quota": (
        *("longest run", "is 5 d"),
        set_values(limits={"max_runtime": "6 d"}),
    ),
    "no warm pools": (
        *("warm pool", "is 0"),
        no_warm_pools,
    ),
}
