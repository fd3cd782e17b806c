"""IAM actions of submitters, doctor and jobs; infra/aws grants exactly these.

Tests compare these tables with the template, and with the calls that the client makes on a
loopback. Action -> parameter of the template that it needs, or an empty text.
"""

from __future__ import annotations

from collections.abc import Mapping

Permissions = Mapping[str, str]

PUSH = (
    *("ecr:BatchCheckLayerAvailability", "ecr:CompleteLayerUpload", "ecr:InitiateLayerUpload"),
    *("ecr:PutImage", "ecr:UploadLayerPart"),
)
IMPLIED = {*PUSH, "iam:PassRole", "kms:Decrypt", "kms:GenerateDataKey", "sagemaker:AddTags"}
"""Actions that no call of the client names: Docker's protocol, and parts of other calls."""

SUBMITTER: Permissions = {
    **dict.fromkeys(PUSH, ""),
    **dict.fromkeys(
        ("ecr:BatchGetImage", "ecr:GetAuthorizationToken", "ecr:GetDownloadUrlForLayer"), ""
    ),
    **dict.fromkeys(("iam:PassRole", "logs:DescribeLogStreams", "logs:GetLogEvents"), ""),
    **dict.fromkeys(("kms:Decrypt", "kms:GenerateDataKey"), "kms_key"),
    **dict.fromkeys(
        ("s3:AbortMultipartUpload", "s3:GetObject", "s3:ListBucket", "s3:PutObject"), ""
    ),
    **{
        f"sagemaker:{name}": ""
        for name in (
            *("AddTags", "CreateHyperParameterTuningJob", "CreateTrainingJob", "Search"),
            *("DescribeHyperParameterTuningJob", "DescribeTrainingJob", "ListTags"),
            *("ListTrainingJobsForHyperParameterTuningJob", "StopHyperParameterTuningJob"),
            *("StopTrainingJob", "UpdateTrainingJob"),
        )
    },
}
"""For people and CI. GetCallerIdentity is missing: everybody may call it."""

CHECKS = {
    "ec2:DescribeRouteTables": ["endpoints"],
    "ec2:DescribeSecurityGroups": ["security groups"],
    "ec2:DescribeSubnets": ["subnets"],
    "ec2:DescribeVpcEndpoints": ["endpoints"],
    "ecr:DescribeRepositories": ["repository"],
    "iam:GetRole": ["execution role"],
    "iam:SimulatePrincipalPolicy": ["PassRole", "submitting", "role's rights"],
    "kms:DescribeKey": ["key"],
    "servicequotas:ListAWSDefaultServiceQuotas": ["quota"],
    "servicequotas:ListServiceQuotas": ["quota"],
}
"""Further action of `cloudtrain doctor` and `check --online` -> checks that need it."""

DOCTOR: Permissions = {
    action: {"ec2": "network", "kms": "kms_key"}.get(action.partition(":")[0], "")
    for action in CHECKS
}
"""The same people have these, unless the parameter `doctor` is `no`."""

JOB: Permissions = {
    "cloudwatch:PutMetricData": "",
    **{
        f"ec2:{name}": "network"
        for name in (
            *("CreateNetworkInterface", "CreateNetworkInterfacePermission"),
            *("DeleteNetworkInterface", "DeleteNetworkInterfacePermission"),
            *("DescribeDhcpOptions", "DescribeNetworkInterfaces", "DescribeSecurityGroups"),
            *("DescribeSubnets", "DescribeVpcs"),
        )
    },
    **{
        f"ecr:{name}": ""
        for name in (
            *("BatchCheckLayerAvailability", "BatchGetImage", "GetAuthorizationToken"),
            "GetDownloadUrlForLayer",
        )
    },
    **{
        f"kms:{name}": "kms_key"
        for name in (
            *("CreateGrant", "Decrypt", "DescribeKey", "Encrypt", "GenerateDataKey"),
            *("GenerateDataKeyWithoutPlaintext", "ReEncryptFrom", "ReEncryptTo"),
        )
    },
    **{
        f"logs:{name}": ""
        for name in ("CreateLogGroup", "CreateLogStream", "DescribeLogStreams", "PutLogEvents")
    },
    **{
        f"s3:{name}": ""
        for name in ("AbortMultipartUpload", "DeleteObject", "GetObject", "ListBucket", "PutObject")
    },
    **dict.fromkeys(("secretsmanager:GetSecretValue", "ssm:GetParameter"), ""),
    **{
        f"ssmmessages:{verb}{kind}Channel": "remote_debug"
        for verb in ("Create", "Open")
        for kind in ("Control", "Data")
    },
}
"""For jobs: actions of SageMaker and the launcher in the name of the job's role.

After "SageMaker roles" in the developer guide.
"""
