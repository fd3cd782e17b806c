"""The CloudFormation template of infra/aws, resolved for given parameters, and the statements of
its policies.
"""

from __future__ import annotations

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
"""Parameters with which every resource is created."""


@cache
def template() -> dict[str, Any]:
    """As it stands in the file."""
    return read_template((bundled("infra") / "aws" / "cloudtrain.yaml").read_text(encoding="utf-8"))


def resolved(**given: str) -> Resolver:
    """The template in an account, with names of its own for what it creates."""
    made = Resolver(
        template(),
        parameter_values(template(), given),
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
def job_policy(**given: str) -> list[Statement]:
    """What jobs may do."""
    return statements(
        each["PolicyDocument"] for each in resolved(**given).properties("ExecutionRole")["Policies"]
    )


@cache
def submitter_policy(**given: str) -> list[Statement]:
    """What people and CI may do."""
    return statements([resolved(**given).properties("SubmitterPolicy")["PolicyDocument"]])


def enforce(cloud: Cloud) -> None:
    """Allow callers and jobs of an imitated account only what the template grants them."""
    names = {"BucketName": cloud.bucket, "RepositoryName": "train"}
    made = resolved(**names)
    made.attributes["ExecutionRole", "Arn"] = cloud.role
    cloud.account.caller_policy = statements([made.properties("SubmitterPolicy")["PolicyDocument"]])
    cloud.account.job_policy = job_policy(**names)
