"""What can be chosen about an AWS deployment, and how the template's names and resource types are
told to people.
"""

from __future__ import annotations

from collections.abc import Mapping

from cloudtrain.catalog.dlc import dlc_image, dlc_versions
from cloudtrain.infrastructure import idle_costs
from cloudtrain.infrastructure.changes import IdleCost, SettingValue
from cloudtrain.infrastructure.idle_costs import Priced
from cloudtrain.infrastructure.parameters import (
    EMAIL,
    NONE,
    Parameter,
    from_template,
    github_subject,
    network_range,
    to_template,
)

NEW = "new"
FOUND = "found"
"""The values of parameters for a resource that the stack makes, and for one that is looked up."""

_ENDPOINT = Priced("AWS::EC2::VPCEndpoint", "Interface")
_DAYS = r"[1-9][0-9]{0,3}"
_BUCKET = r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"
_KEY = r"arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[a-zA-Z0-9-]+"
_PROVIDER = r"arn:aws[a-z-]*:iam::[0-9]{12}:oidc-provider/token[.]actions[.]githubusercontent[.]com"


def _bucket_names(arns: str) -> str:
    """The names in the template's DataArns, which has the ARN of each bucket, and that of all that
    is in it.
    """
    return ",".join(arn.rpartition(":::")[2] for arn in arns.split(",") if not arn.endswith("/*"))


PARAMETERS = (
    Parameter(
        name="bucket",
        meaning="new, or the name of a bucket that exists, for source, checkpoints and models",
        default=NEW,
        pattern=_BUCKET,
        example="my-bucket",
        template="BucketName",
        empty=NEW,
    ),
    Parameter(
        name="repository",
        meaning="new, or the name of an ECR repository that exists, for images",
        default=NEW,
        pattern="[a-z0-9]+([._/-][a-z0-9]+)*",
        example="team/train",
        template="RepositoryName",
        empty=NEW,
    ),
    Parameter(
        name="data_buckets",
        meaning="other buckets that jobs may read, separated by commas; none: no other",
        default=NONE,
        pattern=rf"{_BUCKET}(,{_BUCKET})*",
        example="my-data,their-data",
        template="DataArns",
        empty=NONE,
        read=_bucket_names,
    ),
    Parameter(
        name="kms_key",
        meaning="what encrypts storage and disks: none (AWS's own keys), new, or a key's ARN",
        default=NONE,
        pattern=rf"none|new|{_KEY}",
        example="arn:aws:kms:us-east-1:123456789012:key/1234abcd-12ab-34cd-56ef-1234567890ab",
        idle_usd_per_month={NEW: idle_costs.usd_per_month("aws", Priced("AWS::KMS::Key"))},
        template="KmsKey",
    ),
    Parameter(
        name="network",
        meaning=(
            "new: private subnets for jobs; existing: jobs may use subnets of the account; none:"
            " SageMaker's own"
        ),
        default=NONE,
        choices=(NONE, NEW, "existing"),
        template="Network",
    ),
    network_range("NetworkRange", "10.87.0.0/16", "1[6-9]|20"),
    Parameter(
        name="secret_endpoints",
        meaning="whether a new network has ways to Secrets Manager and Parameter Store",
        default="no",
        choices=("yes", "no"),
        idle_usd_per_month={"yes": idle_costs.usd_per_month("aws", _ENDPOINT._replace(how_many=2))},
        template="SecretEndpoints",
    ),
    Parameter(
        name="source_days",
        meaning="days after which archives of source are deleted, at least 30",
        default="180",
        pattern=r"[3-9][0-9]|[1-9][0-9]{2,3}",
        example="180",
        template="SourceDays",
    ),
    Parameter(
        name="run_days",
        meaning="days after which checkpoints, models and output are deleted; 0: never",
        default="0",
        pattern=rf"0|{_DAYS}",
        example="90",
        template="RunDays",
    ),
    Parameter(
        name="log_days",
        meaning="days for which a log group that the stack creates keeps lines; 0: for ever",
        default="0",
        choices=("0", "7", "14", "30", "60", "90", "180", "365"),
        template="LogDays",
    ),
    Parameter(
        name="remote_debug",
        meaning="whether jobs may open a channel to Systems Manager, as aws.remote_debug needs it",
        default="no",
        choices=("yes", "no"),
        template="RemoteDebug",
    ),
    github_subject("GitHubSubject"),
    Parameter(
        name="github_provider",
        meaning="found: the account's OIDC provider for GitHub, else a new one; or its ARN",
        default=FOUND,
        pattern=rf"found|{_PROVIDER}",
        example="arn:aws:iam::123456789012:oidc-provider/token.actions.githubusercontent.com",
        template="GitHubProviderArn",
        empty=FOUND,
    ),
    Parameter(
        name="doctor",
        meaning="whether people who submit may also look at all that cloudtrain doctor asks about",
        default="yes",
        choices=("yes", "no"),
        template="Doctor",
    ),
    Parameter(
        name="budget",
        meaning="US dollars a month for SageMaker, with an alarm by mail; 0: none",
        default="0",
        pattern="[0-9]{1,7}",
        example="50",
        template="MonthlyBudget",
    ),
    Parameter(
        name="alarm_email",
        meaning="who gets the alarm of the budget; none: nobody",
        default=NONE,
        pattern=rf"none|{EMAIL}",
        example="me@example.org",
        template="AlarmEmail",
        empty=NONE,
    ),
)
"""What `--set` takes for aws. The template has two more: CreateLogGroup and ContainersAccount."""

KINDS = {
    "AWS::KMS::Key": "KMS key",
    "AWS::S3::Bucket": "S3 bucket",
    "AWS::S3::BucketPolicy": "bucket policy",
    "AWS::ECR::Repository": "ECR repository",
    "AWS::Logs::LogGroup": "log group",
    "AWS::IAM::Role": "IAM role",
    "AWS::IAM::ManagedPolicy": "IAM policy",
    "AWS::IAM::OIDCProvider": "OIDC provider",
    "AWS::Budgets::Budget": "budget",
    "AWS::EC2::VPC": "VPC",
    "AWS::EC2::Subnet": "subnet",
    "AWS::EC2::RouteTable": "route table",
    "AWS::EC2::SubnetRouteTableAssociation": "route table's subnet",
    "AWS::EC2::SecurityGroup": "security group",
    "AWS::EC2::SecurityGroupIngress": "security group rule",
    "AWS::EC2::SecurityGroupEgress": "security group rule",
    "AWS::EC2::VPCEndpoint": "VPC endpoint",
}

DATA_TYPES = ("AWS::S3::Bucket", "AWS::ECR::Repository", "AWS::KMS::Key", "AWS::Logs::LogGroup")
"""What holds data, or is needed to read it: kept by CloudFormation."""

KEPT_TYPES = (*DATA_TYPES, "AWS::S3::BucketPolicy")
"""What CloudFormation keeps: these, and the policy that protects a bucket, which goes with it."""

LOG_GROUP = "/aws/sagemaker/TrainingJobs"
"""One for all training jobs of an account in a region: SageMaker fixes the name, and makes it for
the first job.
"""

_PAID_ENDPOINTS = ("SecretsEndpoint", "ParametersEndpoint")


def kind_of(resource_type: str) -> str:
    """`S3 bucket` for `AWS::S3::Bucket`."""
    return KINDS.get(resource_type, resource_type)


def idle_cost(resource: str, resource_type: str) -> IdleCost | None:
    """What a resource of the template costs while no job runs, by the list prices of us-east-1;
    None for nothing.
    """
    return idle_costs.idle_cost(
        "aws", resource_type, _ENDPOINT.tier if resource in _PAID_ENDPOINTS else ""
    )


def template_values(values: Mapping[str, str], region: str, partition: str) -> dict[str, str]:
    """Our parameters as those of the template, and the account of AWS's own containers in a region."""
    given = to_template(PARAMETERS, values)
    if "DataArns" in given:
        arns = [f"arn:{partition}:s3:::{name}" for name in given["DataArns"].split(",") if name]
        given["DataArns"] = ",".join(part for arn in arns for part in (arn, f"{arn}/*"))
    containers = dlc_image(dlc_versions()[0], region, gpu=True)
    if containers:
        given["ContainersAccount"] = containers.partition(".")[0]
    return given


def values_of(template: Mapping[str, str]) -> dict[str, str]:
    """The template's parameters as ours; others are left out."""
    return from_template(PARAMETERS, template)


def settings_of(outputs: Mapping[str, str]) -> dict[str, SettingValue]:
    """The stack's outputs as settings of cloudtrain.toml."""
    texts = {
        "region": "Region",
        "role": "Role",
        "bucket": "Bucket",
        "repository": "Repository",
        "kms_key": "KmsKey",
    }
    lists = {"subnets": "Subnets", "security_groups": "SecurityGroups"}
    found: dict[str, SettingValue] = {
        f"aws.{key}": outputs[name] for key, name in texts.items() if name in outputs
    }
    found |= {
        f"aws.{key}": tuple(outputs[name].split(","))
        for key, name in lists.items()
        if name in outputs
    }
    return found


def outputs_of(outputs: Mapping[str, str]) -> dict[str, str]:
    """The outputs that are no settings, with what they are for."""
    names = {
        "SubmitterPolicy": "policy to attach to people who submit",
        "GitHubRole": "role for the GitHub workflow",
    }
    return {told: outputs[name] for name, told in names.items() if name in outputs}
