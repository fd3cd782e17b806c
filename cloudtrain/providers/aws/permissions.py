"""IAM actions of submitters, doctor and jobs, with their uses; infra/aws grants exactly these.

Tests compare this list with the template, and with the calls that the client makes on a loopback.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Permission:
    """An action of the Service Authorization Reference."""

    action: str
    used_for: str
    """Feature that needs it."""
    implied_by: str = ""
    """Reason for an action that no call of the client names."""
    only_with: str = ""
    """Parameter that requires it: `kms_key`, `network`, `remote_debug`."""


_PUSH = "docker push, by the registry's own protocol"

SUBMITTER = (
    Permission("ecr:BatchCheckLayerAvailability", "image push", _PUSH),
    Permission("ecr:BatchGetImage", "looking an image up before a job is started"),
    Permission("ecr:CompleteLayerUpload", "image push", _PUSH),
    Permission("ecr:GetAuthorizationToken", "logging in to the registry, for image push"),
    Permission("ecr:GetDownloadUrlForLayer", "looking up which processors an image is for"),
    Permission("ecr:InitiateLayerUpload", "image push", _PUSH),
    Permission("ecr:PutImage", "image push", _PUSH),
    Permission("ecr:UploadLayerPart", "image push", _PUSH),
    Permission("iam:PassRole", "submit: giving a job its role", "RoleArn of CreateTrainingJob"),
    Permission(
        "kms:Decrypt", "fetch, and sending large sources", "objects that a key encrypts", "kms_key"
    ),
    Permission(
        "kms:GenerateDataKey",
        "submit: storing the source",
        "objects that a key encrypts",
        "kms_key",
    ),
    Permission("logs:DescribeLogStreams", "logs: finding the nodes"),
    Permission("logs:GetLogEvents", "logs: reading the lines"),
    Permission("s3:AbortMultipartUpload", "submit: giving up an upload that failed"),
    Permission("s3:GetObject", "fetch; and looking a large source up"),
    Permission("s3:ListBucket", "fetch, and status: which results there are"),
    Permission("s3:PutObject", "submit: storing the source"),
    Permission("sagemaker:AddTags", "submit: the tags of a job", "Tags of CreateTrainingJob"),
    Permission(
        "sagemaker:CreateHyperParameterTuningJob", "sweep: starting a tuning job (engine: native)"
    ),
    Permission("sagemaker:CreateTrainingJob", "submit"),
    Permission("sagemaker:DescribeHyperParameterTuningJob", "sweep: following a tuning job"),
    Permission("sagemaker:DescribeTrainingJob", "status, and everything that follows a run"),
    Permission("sagemaker:ListTags", "telling after a lost answer whether a job is this submit's"),
    Permission(
        "sagemaker:ListTrainingJobsForHyperParameterTuningJob", "sweep: the trials of a tuning job"
    ),
    Permission("sagemaker:Search", "list: runs of other machines"),
    Permission("sagemaker:StopHyperParameterTuningJob", "sweep: stopping a tuning job"),
    Permission("sagemaker:StopTrainingJob", "stop"),
    Permission("sagemaker:UpdateTrainingJob", "stop --release: giving kept machines back"),
)
"""For people and CI. GetCallerIdentity is missing: everybody may call it."""

DOCTOR = (
    Permission("ec2:DescribeRouteTables", "endpoints: is there a way to S3", only_with="network"),
    Permission(
        "ec2:DescribeSecurityGroups",
        "security groups: do the nodes reach each other",
        only_with="network",
    ),
    Permission(
        "ec2:DescribeSubnets", "subnets: are they there, with free addresses", only_with="network"
    ),
    Permission("ec2:DescribeVpcEndpoints", "endpoints: is there a way to S3", only_with="network"),
    Permission("ecr:DescribeRepositories", "repository: is it there"),
    Permission("iam:GetRole", "execution role: is it there, and whom does it trust"),
    Permission("iam:SimulatePrincipalPolicy", "PassRole, submitting, role's rights"),
    Permission("kms:DescribeKey", "key: is it there and enabled", only_with="kms_key"),
    Permission(
        "servicequotas:ListAWSDefaultServiceQuotas",
        "quota: where the account's own was never raised",
    ),
    Permission("servicequotas:ListServiceQuotas", "quota"),
)
"""Further actions of `cloudtrain doctor` and `check --online`; `used_for` names their checks.

The same people have them, unless the parameter `doctor` is `no`.
"""

JOB = (
    Permission("cloudwatch:PutMetricData", "the machines' load in CloudWatch"),
    Permission("ec2:CreateNetworkInterface", "joining subnets", only_with="network"),
    Permission("ec2:CreateNetworkInterfacePermission", "joining subnets", only_with="network"),
    Permission("ec2:DeleteNetworkInterface", "leaving subnets", only_with="network"),
    Permission("ec2:DeleteNetworkInterfacePermission", "leaving subnets", only_with="network"),
    Permission("ec2:DescribeDhcpOptions", "joining subnets", only_with="network"),
    Permission("ec2:DescribeNetworkInterfaces", "joining subnets", only_with="network"),
    Permission("ec2:DescribeSecurityGroups", "joining subnets", only_with="network"),
    Permission("ec2:DescribeSubnets", "joining subnets", only_with="network"),
    Permission("ec2:DescribeVpcs", "joining subnets", only_with="network"),
    Permission("ecr:BatchCheckLayerAvailability", "pulling the image"),
    Permission("ecr:BatchGetImage", "pulling the image"),
    Permission("ecr:GetAuthorizationToken", "pulling the image"),
    Permission("ecr:GetDownloadUrlForLayer", "pulling the image"),
    Permission("kms:CreateGrant", "encrypting the machines' disks", only_with="kms_key"),
    Permission("kms:Decrypt", "reading what the key encrypts", only_with="kms_key"),
    Permission("kms:DescribeKey", "encrypting the machines' disks", only_with="kms_key"),
    Permission("kms:Encrypt", "storing results", only_with="kms_key"),
    Permission("kms:GenerateDataKey", "storing results and checkpoints", only_with="kms_key"),
    Permission(
        "kms:GenerateDataKeyWithoutPlaintext", "encrypting the machines' disks", only_with="kms_key"
    ),
    Permission("kms:ReEncryptFrom", "encrypting the machines' disks", only_with="kms_key"),
    Permission("kms:ReEncryptTo", "encrypting the machines' disks", only_with="kms_key"),
    Permission("logs:CreateLogGroup", "the first job's log in a region"),
    Permission("logs:CreateLogStream", "each node's log"),
    Permission("logs:DescribeLogStreams", "each node's log"),
    Permission("logs:PutLogEvents", "each node's log"),
    Permission("s3:AbortMultipartUpload", "giving up an upload of results"),
    Permission("s3:DeleteObject", "rotating checkpoints"),
    Permission("s3:GetObject", "downloading source, data and checkpoints"),
    Permission("s3:ListBucket", "downloading source, data and checkpoints"),
    Permission("s3:PutObject", "storing checkpoints and results"),
    Permission("secretsmanager:GetSecretValue", "secrets of Secrets Manager"),
    Permission("ssm:GetParameter", "secrets of Parameter Store"),
    Permission(
        "ssmmessages:CreateControlChannel", "a shell in the container", only_with="remote_debug"
    ),
    Permission(
        "ssmmessages:CreateDataChannel", "a shell in the container", only_with="remote_debug"
    ),
    Permission(
        "ssmmessages:OpenControlChannel", "a shell in the container", only_with="remote_debug"
    ),
    Permission("ssmmessages:OpenDataChannel", "a shell in the container", only_with="remote_debug"),
)
"""For jobs: actions of SageMaker and the launcher in the name of the job's role.

After "SageMaker roles" in the developer guide.
"""
