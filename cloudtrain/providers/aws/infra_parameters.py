"""What can be chosen about an AWS deployment, and how the template's names and resource types are told to people."""

from __future__ import annotations

from collections.abc import Mapping

from cloudtrain.catalog.dlc import dlc_image, dlc_versions
from cloudtrain.infrastructure.changes import IdleCost, SettingValue
from cloudtrain.infrastructure.parameters import Parameter

_DAYS = r"[1-9][0-9]{0,3}"
_BUCKET = r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"
_KEY = r"arn:aws[a-z-]*:kms:[a-z0-9-]+:[0-9]{12}:key/[a-zA-Z0-9-]+"
_SUBJECT = r"repo:[A-Za-z0-9_.@-]+/[A-Za-z0-9_.@-]+:[A-Za-z0-9_./@:=-]+"
_PROVIDER = r"arn:aws[a-z-]*:iam::[0-9]{12}:oidc-provider/token[.]actions[.]githubusercontent[.]com"

PARAMETERS = (
    Parameter(name="bucket", meaning="a bucket that exists, instead of a new one", pattern=rf"({_BUCKET})?"),
    Parameter(
        name="repository",
        meaning="an ECR repository that exists, instead of a new one",
        pattern="[a-z0-9]+([._/-][a-z0-9]+)*|",
    ),
    Parameter(
        name="data_buckets",
        meaning="other buckets that jobs may read, separated by commas",
        pattern=rf"(({_BUCKET}(,{_BUCKET})*))?",
    ),
    Parameter(
        name="kms_key",
        meaning="what encrypts storage and disks: none (AWS's own keys), new, or a key's ARN",
        default="none",
        pattern=rf"none|new|{_KEY}",
    ),
    Parameter(
        name="network",
        meaning="new: private subnets for jobs; existing: jobs may use subnets of the account",
        default="none",
        choices=("none", "new", "existing"),
    ),
    Parameter(
        name="network_range",
        meaning="addresses of a new network, /16 to /20",
        default="10.87.0.0/16",
        pattern=r"([0-9]{1,3}[.]){3}[0-9]{1,3}/(1[6-9]|20)",
    ),
    Parameter(
        name="secret_endpoints",
        meaning="in a new network, ways to Secrets Manager and Parameter Store",
        default="no",
        choices=("yes", "no"),
    ),
    Parameter(
        name="source_days",
        meaning="days after which archives of source are deleted, at least 30",
        default="180",
        pattern=r"[3-9][0-9]|[1-9][0-9]{2,3}",
        example="180",
    ),
    Parameter(
        name="run_days",
        meaning="days after which checkpoints, models and output are deleted; 0: never",
        default="0",
        pattern=rf"0|{_DAYS}",
        example="90",
    ),
    Parameter(
        name="log_days",
        meaning="days for which the log of jobs is kept, where nothing else is set",
        default="30",
        choices=("7", "14", "30", "60", "90", "180", "365"),
    ),
    Parameter(
        name="github_subject",
        meaning="the whole subject of the GitHub workflow that may submit",
        pattern=rf"({_SUBJECT})?",
        example="repo:me/mine:ref:refs/heads/main",
    ),
    Parameter(
        name="github_provider",
        meaning="the account's OIDC provider for GitHub, its ARN; found by itself, else a new one",
        pattern=rf"({_PROVIDER})?",
    ),
    Parameter(
        name="doctor",
        meaning="whether people who submit may also look at all that cloudtrain doctor asks about",
        default="yes",
        choices=("yes", "no"),
    ),
    Parameter(
        name="budget",
        meaning="US dollars a month for SageMaker, with an alarm by mail; 0: none",
        default="0",
        pattern="[0-9]{1,7}",
        example="50",
    ),
    Parameter(
        name="alarm_email",
        meaning="who gets the alarm of the budget",
        pattern="([^@ ]+@[^@ ]+)?",
        example="me@example.org",
    ),
)
"""What `--set` takes for aws."""

TEMPLATE_NAMES = {
    "bucket": "BucketName",
    "repository": "RepositoryName",
    "data_buckets": "DataArns",
    "kms_key": "KmsKey",
    "network": "Network",
    "network_range": "NetworkRange",
    "secret_endpoints": "SecretEndpoints",
    "source_days": "SourceDays",
    "run_days": "RunDays",
    "log_days": "LogDays",
    "github_subject": "GitHubSubject",
    "github_provider": "GitHubProviderArn",
    "doctor": "Doctor",
    "budget": "MonthlyBudget",
    "alarm_email": "AlarmEmail",
}
"""Parameter -> its name in the template. The template has two more: CreateLogGroup and ContainersAccount."""

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

_PAID_ENDPOINTS = ("SecretsEndpoint", "ParametersEndpoint")


def kind_of(resource_type: str) -> str:
    """`S3 bucket` for `AWS::S3::Bucket`."""
    return KINDS.get(resource_type, resource_type)


def idle_cost(resource: str, resource_type: str) -> IdleCost | None:
    """What a resource costs while no job runs, by the list prices of us-east-1; None for nothing."""
    if resource in _PAID_ENDPOINTS:
        return IdleCost(usd_per_month=14.60, note="2 zones at 0.01 an hour")
    return {
        "AWS::KMS::Key": IdleCost(usd_per_month=1.0, note="1 a key"),
        "AWS::S3::Bucket": IdleCost(usd_per_month=None, note="by GB stored, about 0.023"),
        "AWS::ECR::Repository": IdleCost(usd_per_month=None, note="by GB stored, about 0.10"),
        "AWS::Logs::LogGroup": IdleCost(usd_per_month=None, note="by GB stored, about 0.03"),
    }.get(resource_type)


def template_values(values: Mapping[str, str], region: str, partition: str) -> dict[str, str]:
    """Our parameters as those of the template, and the account of AWS's own containers in a region."""
    given = {TEMPLATE_NAMES[name]: value for name, value in values.items()}
    if "DataArns" in given:
        arns = [f"arn:{partition}:s3:::{name}" for name in given["DataArns"].split(",") if name]
        given["DataArns"] = ",".join(part for arn in arns for part in (arn, f"{arn}/*"))
    containers = dlc_image(dlc_versions()[0], region, gpu=True)
    if containers:
        given["ContainersAccount"] = containers.partition(".")[0]
    return given


def values_of(template: Mapping[str, str]) -> dict[str, str]:
    """The template's parameters as ours; others are left out."""
    values = {ours: template[theirs] for ours, theirs in TEMPLATE_NAMES.items() if theirs in template}
    if "data_buckets" in values:
        names = [arn.rpartition(":::")[2] for arn in values["data_buckets"].split(",") if not arn.endswith("/*")]
        values["data_buckets"] = ",".join(names)
    return values


def settings_of(outputs: Mapping[str, str]) -> dict[str, SettingValue]:
    """The stack's outputs as settings of cloudtrain.toml."""
    texts = {"region": "Region", "role": "Role", "bucket": "Bucket", "repository": "Repository", "kms_key": "KmsKey"}
    lists = {"subnets": "Subnets", "security_groups": "SecurityGroups"}
    found: dict[str, SettingValue] = {f"aws.{key}": outputs[name] for key, name in texts.items() if name in outputs}
    found |= {f"aws.{key}": tuple(outputs[name].split(",")) for key, name in lists.items() if name in outputs}
    return found


def outputs_of(outputs: Mapping[str, str]) -> dict[str, str]:
    """The outputs that are no settings, with what they are for."""
    names = {"SubmitterPolicy": "policy for people who submit", "GitHubRole": "role for the GitHub workflow"}
    return {told: outputs[name] for name, told in names.items() if name in outputs}
