"""The CloudFormation template: protection of data, conditions, and retention."""

from __future__ import annotations

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
from tests.support.aws_template import EVERYTHING, SUBJECT, resolved, template
from tests.support.limits import HANG_SECONDS

ALWAYS = {"Bucket", "BucketPolicy", "Repository", "ExecutionRole", "SubmitterPolicy"}
NETWORK = {"Vpc", "SubnetA", "SubnetB", "RouteTable", "RouteA", "RouteB", "S3Endpoint"}
GROUPS = {"SecurityGroup", "AmongNodesIn", "AmongNodesOut"}
ENDPOINTS = {"EndpointSecurityGroup", "SecretsEndpoint", "ParametersEndpoint"}
HOLD_DATA = {"Bucket", "BucketPolicy", "Repository", "Key", "LogGroup"}
"""Resources that hold data, or are needed to read or protect it."""
KEY = "arn:aws:kms:us-east-1:123456789012:key/made-key"


def test_every_resource_is_created_by_some_parameters() -> None:
    assert set(resolved(**EVERYTHING).resources()) == set(template()["Resources"])


def test_storage_is_private_encrypted_and_versioned() -> None:
    made = resolved(**EVERYTHING)
    bucket = made.properties("Bucket")
    [rule] = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert rule["ServerSideEncryptionByDefault"] == {
        "SSEAlgorithm": "aws:kms",
        "KMSMasterKeyID": KEY,
    }
    assert len(bucket["PublicAccessBlockConfiguration"]) == 4
    assert set(bucket["PublicAccessBlockConfiguration"].values()) == {True}
    assert bucket["VersioningConfiguration"] == {"Status": "Enabled"}
    days = {rule["Id"]: rule.get("ExpirationInDays") for rule in rules_of(bucket)}
    assert days == {
        "sources": "180",
        "runs": "90",
        "old-versions": None,
        "unfinished-uploads": None,
    }
    [statement] = made.properties("BucketPolicy")["PolicyDocument"]["Statement"]
    assert (statement["Effect"], statement["Condition"]) == (
        "Deny",
        {"Bool": {"aws:SecureTransport": "false"}},
    )
    assert made.properties("Repository")["EncryptionConfiguration"]["KmsKey"] == KEY
    assert made.properties("Key")["EnableKeyRotation"]


def test_the_network_leads_to_storage_and_to_other_nodes_only() -> None:
    made = resolved(**EVERYTHING)
    for name in ("SubnetA", "SubnetB"):
        assert not template()["Resources"][name]["Properties"]["MapPublicIpOnLaunch"]
    for name in ("AmongNodesIn", "AmongNodesOut"):
        assert made.properties(name)["IpProtocol"] == "-1", "as EFA needs it"
    [egress] = made.properties("SecurityGroup")["SecurityGroupEgress"]
    assert (egress["FromPort"], egress["ToPort"]) == (443, 443)
    statements = made.properties("S3Endpoint")["PolicyDocument"]["Statement"]
    places = {place for statement in statements for place in listed(statement["Resource"])}
    assert places == {
        *("arn:aws:s3:::made-bucket", "arn:aws:s3:::made-bucket/*"),
        *("arn:aws:s3:::data", "arn:aws:s3:::data/*"),
        "arn:aws:s3:::prod-us-east-1-starport-layer-bucket/*",
    }


def rules_of(bucket: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the lifecycle rules of a bucket."""
    rules: list[dict[str, Any]] = bucket["LifecycleConfiguration"]["Rules"]
    return rules


def listed(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


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
    assert [rule["Id"] for rule in rules_of(plain.properties("Bucket"))] == [
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
    """After "Understand CloudFormation quotas" of the user guide."""
    assert (bundled("infra") / "aws" / "cloudtrain.yaml").stat().st_size <= 51_200


@pytest.mark.parametrize("page", ["first-job-aws.md", "guides/set-up-aws.md"])
def test_command_of_the_page_names_parameters_of_the_template(page: str) -> None:
    """The page deploys under the name that `cloudtrain infra settings` reads by default."""
    text = (ROOT / "docs" / page).read_text()
    [command, *_] = re.findall(r"^aws cloudformation deploy (?:.*\\\n)*.*$", text, re.MULTILINE)
    assert f"--stack-name {DEFAULT_NAME}" in command
    assert "--capabilities CAPABILITY_IAM" in command
    named = re.findall(r"\b([A-Z][a-z]\w+)=", text)
    assert set(named) <= template()["Parameters"].keys()


def test_cfn_lint_finds_nothing() -> None:
    pytest.importorskip("cfnlint")
    path = str(bundled("infra") / "aws" / "cloudtrain.yaml")
    argv = [str(Path(sys.executable).with_name("cfn-lint")), "--", path]
    process = subprocess.run(
        argv, capture_output=True, text=True, check=False, timeout=HANG_SECONDS
    )
    assert (process.returncode, process.stdout) == (0, "")
