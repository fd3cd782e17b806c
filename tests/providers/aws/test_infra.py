"""`cloudtrain infra settings --provider aws` against an imitated CloudFormation."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.aws.cloud import Cloud
from tests.support.aws_template import EVERYTHING, resolved
from tests.support.in_process import call


@pytest.fixture(autouse=True)
def no_stack_is_left(cloud: Cloud) -> Iterator[None]:
    yield
    cloud.stacks.clear()


def test_outputs_of_the_stack_become_settings(cloud: Cloud) -> None:
    cloud.stacks.outputs["lab"] = resolved(**EVERYTHING).outputs()
    result = call("infra", "settings", "--provider", "aws", "--name", "lab", "--yes")
    assert result.code == 0, result.err
    assert "policy to attach to people who submit: <SubmitterPolicy>" in result.out
    assert "role for the GitHub workflow: <GitHubRole.Arn>" in result.out
    text = Path("cloudtrain.toml").read_text()
    for line in ('bucket = "made-bucket"', 'subnets = ["<SubnetA>", "<SubnetB>"]'):
        assert line in text


def test_missing_stack_says_how_to_deploy_one() -> None:
    result = call("infra", "settings", "--provider", "aws", "--yes")
    assert result.code == 4
    assert "the stack cloudtrain in us-east-1 does not exist" in result.err
    assert "aws cloudformation deploy" in result.err


def test_failed_stack_gives_the_reason(cloud: Cloud) -> None:
    cloud.stacks.failed["cloudtrain"] = "The following resource(s) failed to create: [Bucket]."
    result = call("infra", "settings", "--provider", "aws", "--yes")
    assert result.code == 4
    assert "is not ready (ROLLBACK_COMPLETE): The following resource(s) failed" in result.err
    assert "describe-stack-events --stack-name cloudtrain" in result.err


def test_denied_call_names_the_action(cloud: Cloud) -> None:
    cloud.account.denied_actions.add("cloudformation:DescribeStacks")
    result = call("infra", "settings", "--provider", "aws", "--yes")
    assert result.code == 4
    assert "cloudformation:DescribeStacks" in result.err


def test_stack_of_aws_needs_a_region(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CLOUDTRAIN_AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    result = call("infra", "settings", "--provider", "aws", "--yes")
    assert result.code == 2
    assert "aws.region is not set" in result.err
    assert call("infra", "template", "--provider", "aws").code == 0
