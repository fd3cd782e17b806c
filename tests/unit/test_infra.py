"""The CloudFormation template, the Terraform module, and `cloudtrain infra`."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cloudtrain.bundle import bundled
from cloudtrain.providers.aws.infrastructure import settings_of
from cloudtrain.providers.infrastructure import DEFAULT_NAME, Deployment, Infrastructure
from pages import ROOT
from tests.support.aws_template import EVERYTHING, SUBJECT, resolved, template
from tests.support.azure_template import DOCUMENT
from tests.support.in_process import call
from tests.support.waiting import HANG_SECONDS

# The CloudFormation template: protection of data, conditions, and retention.

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
        ({"Queue": "new"}, ALWAYS | {"ServiceEnvironment", "JobQueue"}),
        ({"Queue": "arn:aws:batch:us-east-1:123456789012:job-queue/theirs"}, ALWAYS),
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
        "aws.queue": "cloudtrain",
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


@pytest.mark.parametrize(
    ("page", "command", "parameters"),
    [
        *(
            (page, "aws cloudformation deploy", template()["Parameters"])
            for page in ("first-job-aws.md", "guides/set-up-aws.md")
        ),
        *(
            (page, "az deployment group create", DOCUMENT["parameters"])
            for page in ("first-job-azure.md", "guides/set-up-azure.md")
        ),
    ],
)
def test_command_of_the_page_names_parameters_of_the_template(
    page: str, command: str, parameters: dict[str, Any]
) -> None:
    """The page deploys under the name that `cloudtrain infra settings` reads by default."""
    text = (ROOT / "docs" / page).read_text()
    match = re.search(rf"^{command} (?:.*\\\n)*.*$", text, re.MULTILINE)
    assert match
    assert re.search(rf"--(?:stack-)?name {DEFAULT_NAME}\b", match[0])
    assert set(re.findall(r"(?:--parameters |\b(?=[A-Z][a-z]))(\w+)=", text)) <= parameters.keys()
    table = text.partition("## Parameters")[2].partition("## ")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) <= parameters.keys()


@pytest.mark.parametrize("name", ["aws/cloudtrain.yaml", "slurm/pcs.yaml"])
def test_cfn_lint_finds_nothing(name: str) -> None:
    pytest.importorskip("cfnlint")
    path = str(bundled("infra") / name)
    argv = [str(Path(sys.executable).with_name("cfn-lint")), "--", path]
    process = subprocess.run(
        argv, capture_output=True, text=True, check=False, timeout=HANG_SECONDS
    )
    assert (process.returncode, process.stdout) == (0, "")


# The Terraform module of infra/aws: the template itself, its parameters and outputs, and
# terraform's own verdict.

MODULE = bundled("infra") / "aws" / "terraform"
MAIN, VARIABLES, OUTPUTS = (
    (MODULE / f"{name}.tf").read_text() for name in ("main", "variables", "outputs")
)
PLUGINS = Path("/opt/tf-plugins")
"""The folder of Terraform's providers on machines without a network."""


def variable_of() -> dict[str, str]:
    """Return the variable that gives each parameter of the template its value."""
    parameters = MAIN.partition("parameters = {")[2].partition("\n  }")[0]
    return dict(re.findall(r"^    (\w+) += .*?\bvar\.(\w+)", parameters, re.MULTILINE))


def test_the_module_deploys_the_template_itself_so_both_grant_the_same_actions() -> None:
    match = re.search(r'template_body = file\("\$\{path\.module\}/(.+?)"\)', MAIN)
    assert match
    assert (MODULE / match[1]).resolve() == (bundled("infra") / "aws" / "cloudtrain.yaml").resolve()
    assert re.findall(r"^resource .*$", MAIN + VARIABLES + OUTPUTS, re.MULTILINE) == [
        'resource "aws_cloudformation_stack" "cloudtrain" {'
    ], "nothing beside the stack, so nothing that grants more"
    assert 'capabilities  = ["CAPABILITY_IAM"]' in MAIN


def test_the_module_takes_every_parameter_and_gives_every_output() -> None:
    assert variable_of().keys() == template()["Parameters"].keys()
    variables = set(re.findall(r'^variable "(\w+)"', VARIABLES, re.MULTILINE))
    assert variables == {"name", *variable_of().values()}
    assert set(re.findall(r"var\.(\w+)", MAIN)) == variables, "none is taken and not used"
    assert set(re.findall(r'outputs(?:, |\[)"(\w+)"', OUTPUTS)) == template()["Outputs"].keys()


def test_defaults_of_the_module_are_those_of_the_template() -> None:
    for name, variable in variable_of().items():
        [default] = re.findall(
            rf'variable "{variable}" {{.*?default     = (.+?)\n', VARIABLES, re.DOTALL
        )
        text = {"[]": "", "false": "no", "true": "yes"}.get(default, default.strip('"'))
        assert text == str(template()["Parameters"][name]["Default"]), name


@pytest.mark.skipif(shutil.which("terraform") is None, reason="there is no terraform here")
@pytest.mark.skipif(not PLUGINS.is_dir(), reason="there is no provider for terraform here")
def test_terraform_finds_it_valid(tmp_path: Path) -> None:
    (tmp_path / "main.tf").write_text(
        call("infra", "template", "--provider", "aws", "--format", "terraform").out
    )
    (tmp_path / "cloudtrain.yaml").write_text(call("infra", "template", "--provider", "aws").out)
    env = {key: value for key, value in os.environ.items() if not key.startswith("TF_")} | {
        "CHECKPOINT_DISABLE": "1"
    }

    def terraform(*words: str) -> None:
        argv = ["terraform", f"-chdir={tmp_path}", *words]
        process = subprocess.run(
            argv, env=env, capture_output=True, text=True, check=False, timeout=HANG_SECONDS
        )
        assert process.returncode == 0, process.stderr + process.stdout

    terraform("init", f"-plugin-dir={PLUGINS}", "-input=false", "-backend=false")
    terraform("validate")


# `cloudtrain infra` over a provider in memory: the template, and the settings in cloudtrain.toml.


class InMemory(Infrastructure):
    """A deployment with fixed outputs."""

    formats = ("native", "terraform")

    def template(self, format_: str) -> str:
        return f"the {format_} template\n"

    def deployment(self) -> Deployment:
        return Deployment(
            settings={"aws.bucket": "made-1", "aws.subnets": ("subnet-1", "subnet-2")},
            outputs={"submitter policy": "arn:1"},
        )


@pytest.fixture
def provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider of the commands of a test, in an empty folder."""

    class Provider:
        def infrastructure(self, *_: object) -> Infrastructure:
            return InMemory()

    monkeypatch.setattr("cloudtrain.cli.infra.get_provider", lambda _: Provider())
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("provider")
def test_template_is_printed_in_each_format() -> None:
    assert call("infra", "template", "--provider", "aws").out == "the native template\n"
    result = call("infra", "template", "--provider", "aws", "--format", "terraform")
    assert result.out == "the terraform template\n"


@pytest.mark.usefixtures("provider")
def test_settings_are_not_written_without_a_terminal_or_yes() -> None:
    result = call("infra", "settings", "--provider", "aws")
    assert result.code == 3
    assert "--yes writes without asking" in result.err
    assert not Path("cloudtrain.toml").exists()


@pytest.mark.usefixtures("provider")
def test_json_prints_settings_and_writes_nothing() -> None:
    result = call("infra", "settings", "--provider", "aws", "--json")
    assert json.loads(result.out) == {
        "settings": {"aws.bucket": "made-1", "aws.subnets": ["subnet-1", "subnet-2"]},
        "outputs": {"submitter policy": "arn:1"},
    }
    assert not Path("cloudtrain.toml").exists()
