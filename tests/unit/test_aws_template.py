"""The CloudFormation template: every property of every resource, conditions, and retention."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.bundle import bundled
from cloudtrain.providers.aws.infra import settings_of
from cloudtrain.providers.infrastructure import DEFAULT_NAME
from pages import ROOT
from tests.fakes.aws.template import MAX_BYTES
from tests.support.aws_template import EVERYTHING, SUBJECT, resolved, template
from tests.support.limits import HANG_SECONDS

ALWAYS = {"Bucket", "BucketPolicy", "Repository", "ExecutionRole", "SubmitterPolicy"}
NETWORK = {"Vpc", "SubnetA", "SubnetB", "RouteTable", "RouteA", "RouteB", "S3Endpoint"}
GROUPS = {"SecurityGroup", "AmongNodesIn", "AmongNodesOut"}
ENDPOINTS = {"EndpointSecurityGroup", "SecretsEndpoint", "ParametersEndpoint"}
HOLD_DATA = {"Bucket", "BucketPolicy", "Repository", "Key", "LogGroup"}
"""Resources that hold data, or are needed to read or protect it."""
RIGHTS = {"ExecutionRole", "SubmitterPolicy", "GitHubRole"}
"""Subject of tests/unit/test_aws_rights.py."""
KEY = "arn:aws:kms:us-east-1:123456789012:key/made-key"
MADE = "arn:aws:s3:::made-bucket"

LAYERS = {
    "Sid": "ImageLayers",
    "Effect": "Allow",
    "Principal": "*",
    "Action": "s3:GetObject",
    "Resource": "arn:aws:s3:::prod-us-east-1-starport-layer-bucket/*",
}
HTTPS = {"IpProtocol": "tcp", "FromPort": 443, "ToPort": 443}


def notification(kind: str, threshold: int) -> dict[str, Any]:
    texts = {
        "NotificationType": kind,
        "ComparisonOperator": "GREATER_THAN",
        "ThresholdType": "PERCENTAGE",
    }
    return {
        "Notification": {**texts, "Threshold": threshold},
        "Subscribers": [{"SubscriptionType": "EMAIL", "Address": "me@example.org"}],
    }


def subnet(zone: str, block: str) -> dict[str, Any]:
    place = {
        "VpcId": "<Vpc>",
        "AvailabilityZone": f"us-east-1{zone}",
        "CidrBlock": block,
        "MapPublicIpOnLaunch": False,
    }
    return {**place, "Tags": [{"Key": "Name", "Value": f"cloudtrain-{zone}"}]}


def interface(service: str) -> dict[str, Any]:
    return {
        "VpcId": "<Vpc>",
        "VpcEndpointType": "Interface",
        "PrivateDnsEnabled": True,
        "ServiceName": f"com.amazonaws.us-east-1.{service}",
        "SubnetIds": ["<SubnetA>", "<SubnetB>"],
        "SecurityGroupIds": ["<EndpointSecurityGroup.GroupId>"],
    }


PROPERTIES: dict[str, dict[str, Any]] = {
    "Key": {
        "Description": "cloudtrain: storage and disks of training jobs",
        "EnableKeyRotation": True,
        "KeyPolicy": {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Sid": "AccountDecides",
                    "Effect": "Allow",
                    "Principal": {"AWS": "arn:aws:iam::123456789012:root"},
                    "Action": "kms:*",
                    "Resource": "*",
                }
            ],
        },
    },
    "Bucket": {
        "BucketEncryption": {
            "ServerSideEncryptionConfiguration": [
                {
                    "BucketKeyEnabled": True,
                    "ServerSideEncryptionByDefault": {
                        "SSEAlgorithm": "aws:kms",
                        "KMSMasterKeyID": KEY,
                    },
                }
            ]
        },
        "PublicAccessBlockConfiguration": dict.fromkeys(
            ("BlockPublicAcls", "BlockPublicPolicy", "IgnorePublicAcls", "RestrictPublicBuckets"),
            True,
        ),
        "OwnershipControls": {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]},
        "VersioningConfiguration": {"Status": "Enabled"},
        "LifecycleConfiguration": {
            "Rules": [
                {
                    "Id": "sources",
                    "Status": "Enabled",
                    "Prefix": "cloudtrain/sources/",
                    "ExpirationInDays": "180",
                },
                {
                    "Id": "runs",
                    "Status": "Enabled",
                    "Prefix": "cloudtrain/runs/",
                    "ExpirationInDays": "90",
                },
                {
                    "Id": "old-versions",
                    "Status": "Enabled",
                    "NoncurrentVersionExpiration": {"NoncurrentDays": 7},
                },
                {
                    "Id": "unfinished-uploads",
                    "Status": "Enabled",
                    "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 3},
                },
            ]
        },
    },
    "BucketPolicy": {
        "Bucket": "made-bucket",
        "PolicyDocument": {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Sid": "TlsOnly",
                    "Effect": "Deny",
                    "Principal": "*",
                    "Action": "s3:*",
                    "Resource": [MADE, f"{MADE}/*"],
                    "Condition": {"Bool": {"aws:SecureTransport": "false"}},
                }
            ],
        },
    },
    "Repository": {
        "ImageTagMutability": "IMMUTABLE",
        "ImageScanningConfiguration": {"ScanOnPush": True},
        "EncryptionConfiguration": {"EncryptionType": "KMS", "KmsKey": KEY},
        "LifecyclePolicy": {
            "rules": [
                {
                    "rulePriority": 1,
                    "description": "images that lost their tag",
                    "selection": {
                        "tagStatus": "untagged",
                        "countType": "sinceImagePushed",
                        "countUnit": "days",
                        "countNumber": 7,
                    },
                    "action": {"type": "expire"},
                },
                {
                    "rulePriority": 2,
                    "description": "the newest 50",
                    "selection": {
                        "tagStatus": "any",
                        "countType": "imageCountMoreThan",
                        "countNumber": 50,
                    },
                    "action": {"type": "expire"},
                },
            ]
        },
    },
    "LogGroup": {"LogGroupName": "/aws/sagemaker/TrainingJobs", "RetentionInDays": "30"},
    "GitHubProvider": {
        "Url": "https://token.actions.githubusercontent.com",
        "ClientIdList": ["sts.amazonaws.com"],
    },
    "Budget": {
        "Budget": {
            "BudgetType": "COST",
            "TimeUnit": "MONTHLY",
            "BudgetLimit": {"Amount": "50", "Unit": "USD"},
            "CostFilters": {"Service": ["Amazon SageMaker"]},
        },
        "NotificationsWithSubscribers": [
            notification("ACTUAL", 80),
            notification("FORECASTED", 100),
        ],
    },
    "Vpc": {
        "CidrBlock": "10.87.0.0/16",
        "EnableDnsHostnames": True,
        "EnableDnsSupport": True,
        "Tags": [{"Key": "Name", "Value": "cloudtrain"}],
    },
    "SubnetA": subnet("a", "10.87.0.0/21"),
    "SubnetB": subnet("b", "10.87.8.0/21"),
    "RouteTable": {"VpcId": "<Vpc>"},
    "RouteA": {"RouteTableId": "<RouteTable>", "SubnetId": "<SubnetA>"},
    "RouteB": {"RouteTableId": "<RouteTable>", "SubnetId": "<SubnetB>"},
    "SecurityGroup": {
        "GroupDescription": (
            "Training jobs - all traffic among their nodes, as EFA needs, and HTTPS to S3"
        ),
        "VpcId": "<Vpc>",
        "SecurityGroupEgress": [
            {**HTTPS, "CidrIp": "0.0.0.0/0", "Description": "S3, whose addresses change"}
        ],
    },
    "AmongNodesIn": {
        "GroupId": "<SecurityGroup.GroupId>",
        "SourceSecurityGroupId": "<SecurityGroup.GroupId>",
        "IpProtocol": "-1",
        "Description": "among the nodes of jobs",
    },
    "AmongNodesOut": {
        "GroupId": "<SecurityGroup.GroupId>",
        "DestinationSecurityGroupId": "<SecurityGroup.GroupId>",
        "IpProtocol": "-1",
        "Description": "among the nodes of jobs",
    },
    "S3Endpoint": {
        "VpcId": "<Vpc>",
        "VpcEndpointType": "Gateway",
        "ServiceName": "com.amazonaws.us-east-1.s3",
        "RouteTableIds": ["<RouteTable>"],
        "PolicyDocument": {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Sid": "Storage",
                    "Effect": "Allow",
                    "Principal": "*",
                    "Action": [
                        *(
                            "s3:AbortMultipartUpload",
                            "s3:DeleteObject",
                            "s3:GetObject",
                            "s3:ListBucket",
                            "s3:PutObject",
                        )
                    ],
                    "Resource": [MADE, f"{MADE}/*"],
                },
                LAYERS,
                {
                    "Sid": "Data",
                    "Effect": "Allow",
                    "Principal": "*",
                    "Action": ["s3:GetObject", "s3:ListBucket"],
                    "Resource": ["arn:aws:s3:::data", "arn:aws:s3:::data/*"],
                },
            ],
        },
    },
    "EndpointSecurityGroup": {
        "GroupDescription": (
            "Endpoints of Secrets Manager and Parameter Store - HTTPS from training jobs"
        ),
        "VpcId": "<Vpc>",
        "SecurityGroupIngress": [
            {
                **HTTPS,
                "SourceSecurityGroupId": "<SecurityGroup.GroupId>",
                "Description": "training jobs",
            }
        ],
        "SecurityGroupEgress": [
            {**HTTPS, "CidrIp": "127.0.0.1/32", "Description": "nowhere: endpoints only answer"},
        ],
    },
    "SecretsEndpoint": interface("secretsmanager"),
    "ParametersEndpoint": interface("ssm"),
}


def test_every_resource_is_held_against_what_is_expected_of_it() -> None:
    assert set(template()["Resources"]) == set(PROPERTIES) | RIGHTS
    assert set(resolved(**EVERYTHING).resources()) == set(template()["Resources"])


@pytest.mark.parametrize("name", PROPERTIES)
def test_a_resource_has_these_properties_and_no_others(name: str) -> None:
    properties = resolved(**EVERYTHING).properties(name)
    if name == "Repository":
        properties["LifecyclePolicy"] = json.loads(
            properties["LifecyclePolicy"]["LifecyclePolicyText"]
        )
    assert properties == PROPERTIES[name]


@pytest.mark.parametrize(
    ("parameters", "resources"),
    [
        ({}, ALWAYS),
        ({"BucketName": "mine", "RepositoryName": "mine"}, {"ExecutionRole", "SubmitterPolicy"}),
        ({"KmsKey": "new"}, ALWAYS | {"Key"}),
        ({"KmsKey": KEY}, ALWAYS),
        ({"Network": "new"}, ALWAYS | NETWORK | GROUPS),
        ({"Network": "existing", "SecretEndpoints": "yes"}, ALWAYS),
        ({"Network": "new", "SecretEndpoints": "yes"}, ALWAYS | NETWORK | GROUPS | ENDPOINTS),
        ({"CreateLogGroup": "yes"}, ALWAYS | {"LogGroup"}),
        ({"GitHubSubject": SUBJECT}, ALWAYS | {"GitHubRole", "GitHubProvider"}),
        (
            {
                "GitHubSubject": SUBJECT,
                "GitHubProviderArn": (
                    "arn:aws:iam::123456789012:oidc-provider/token.actions.githubusercontent.com"
                ),
            },
            ALWAYS | {"GitHubRole"},
        ),
        ({"MonthlyBudget": "5"}, ALWAYS),
        ({"MonthlyBudget": "5", "AlarmEmail": "a@b"}, ALWAYS | {"Budget"}),
    ],
)
def test_what_is_created_when(parameters: dict[str, str], resources: set[str]) -> None:
    assert set(resolved(**parameters).resources()) == resources


def test_without_a_key_aws_encrypts_by_its_own() -> None:
    plain = resolved()
    [rule] = plain.properties("Bucket")["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert rule["ServerSideEncryptionByDefault"] == {"SSEAlgorithm": "AES256"}
    assert plain.properties("Repository")["EncryptionConfiguration"] == {"EncryptionType": "AES256"}
    rules = plain.properties("Bucket")["LifecycleConfiguration"]["Rules"]
    assert [rule["Id"] for rule in rules] == [
        "sources",
        "old-versions",
        "unfinished-uploads",
    ], "runs are kept"


def test_what_holds_data_is_kept_but_not_by_an_attempt_that_fails() -> None:
    for name, resource in template()["Resources"].items():
        policies = (resource.get("DeletionPolicy"), resource.get("UpdateReplacePolicy"))
        assert policies == (
            ("RetainExceptOnCreate", "Retain") if name in HOLD_DATA else (None, None)
        ), name


def test_names_are_left_to_aws_except_the_one_that_sagemaker_fixes() -> None:
    named = (
        "BucketName",
        "RepositoryName",
        "RoleName",
        "ManagedPolicyName",
        "GroupName",
        "LogGroupName",
        "AliasName",
    )
    policies = {
        (name, key)
        for name, resource in template()["Resources"].items()
        for key in named
        if key in resource["Properties"]
    }
    assert policies == {("LogGroup", "LogGroupName")}


def test_the_stack_gives_the_settings_that_the_client_reads() -> None:
    assert settings_of(resolved(**EVERYTHING).outputs()) == {
        "aws.region": "us-east-1",
        "aws.role": "arn:aws:iam::123456789012:role/made-role",
        "aws.bucket": "made-bucket",
        "aws.repository": "123456789012.dkr.ecr.us-east-1.amazonaws.com/made-repository",
        "aws.subnets": ("<SubnetA>", "<SubnetB>"),
        "aws.security_groups": ("<SecurityGroup.GroupId>",),
        "aws.kms_key": KEY,
    }
    assert settings_of(resolved().outputs()).keys() == {
        "aws.region",
        "aws.role",
        "aws.bucket",
        "aws.repository",
    }


def test_template_fits_into_a_request() -> None:
    assert (bundled("infra") / "aws" / "cloudtrain.yaml").stat().st_size <= MAX_BYTES


@pytest.mark.parametrize("page", ["first-job-aws.md", "guides/set-up-aws.md"])
def test_command_of_the_page_names_parameters_of_the_template(page: str) -> None:
    """The page deploys under the name that `cloudtrain infra settings` reads by default."""
    text = (ROOT / "docs" / page).read_text()
    [command, *_] = re.findall(r"^aws cloudformation deploy (?:.*\\\n)*.*$", text, re.MULTILINE)
    assert f"--stack-name {DEFAULT_NAME}" in command
    assert "--capabilities CAPABILITY_IAM" in command
    named = re.findall(r"\b([A-Z][a-z]\w+)=", text)
    assert set(named) <= template()["Parameters"].keys()


def test_every_exception_from_a_checkers_rule_is_justified_beside_its_resource() -> None:
    """Found by checkov 3.3.30, which is too large to be installed for this alone."""
    skipped = {
        (name, skip["id"])
        for name, resource in template()["Resources"].items()
        for skip in resource.get("Metadata", {}).get("checkov", {}).get("skip", [])
        if len(skip["comment"].split()) > 5
    }
    log_rules = {("LogGroup", "CKV_AWS_66"), ("LogGroup", "CKV_AWS_158")}
    assert skipped == {("Bucket", "CKV_AWS_18"), ("Repository", "CKV_AWS_136")} | log_rules


def test_cfn_lint_finds_nothing() -> None:
    pytest.importorskip("cfnlint")
    path = str(bundled("infra") / "aws" / "cloudtrain.yaml")
    argv = [str(Path(sys.executable).with_name("cfn-lint")), "--", path]
    process = subprocess.run(
        argv, capture_output=True, text=True, check=False, timeout=HANG_SECONDS
    )
    assert (process.returncode, process.stdout) == (0, "")
