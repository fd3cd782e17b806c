"""The whole life of jobs on SageMaker, imitated on loopback, by the real command line, boto3 and
torchrun.

Who submits, and jobs, have only the rights that infra/aws grants.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cloud_life import DIGITS, POLL, SDK, TOKEN, Life
from tests.fakes.aws.cloud import Cloud
from tests.fakes.containers import Container
from tests.support.aws_template import enforce
from tests.support.command_line import CommandLine, CommandResult

pytestmark = [pytest.mark.torchrun]


@pytest.fixture(scope="module")
def cloud() -> Iterator[Cloud]:
    Container.forked = True
    with Cloud() as made:
        enforce(made)
        yield made
    Container.forked = False
    assert not made.account.unexpected_errors, "\n".join(made.account.unexpected_errors)


@pytest.fixture(scope="module")
def cli(cloud: Cloud, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    folder = tmp_path_factory.mktemp("aws") / "a folder with spaces"
    made = CommandLine(folder, env=cloud.environment() | POLL, modules=(SDK["aws"],))
    yield made
    made.close()


@pytest.fixture(scope="module")
def digits(cli: CommandLine) -> CommandResult:
    cli.write(job_yaml=DIGITS)
    return cli.run(
        "submit", "--provider", "aws", "--run-id", "digits-1", "--set", "aws.tensorboard=true"
    )


class TestSageMaker(Life):
    provider = "aws"
    machines = "2 x ml.m5.xlarge, us-east-1"
    usd_per_hour = 0.23

    def keep_secret(self, cloud: Any) -> str:
        cloud.client("secretsmanager", direct=True).create_secret(
            Name="cloudtrain/token", SecretString=TOKEN
        )
        return "secretsmanager:cloudtrain/token"

    def saved(self, cloud: Any, run_id: str) -> list[str]:
        keys: list[str] = cloud.keys(f"cloudtrain/runs/{run_id}/checkpoints/")
        return keys

    def told(self, cloud: Any) -> str:
        described = cloud.client("sagemaker").describe_training_job(TrainingJobName="dog-1")
        assert "the dog ate shard 3" in described["FailureReason"]
        return json.dumps(described, default=str)

    def look_at_the_interrupted(self, cli: CommandLine, cloud: Any, run_id: str) -> None:
        """Spot is billed at less."""
        bill = cli.json("status", run_id)["billing"]
        assert bill["billable_seconds"] < bill["training_seconds"]


def test_the_model_is_where_sagemaker_puts_it(cli: CommandLine, digits: CommandResult) -> None:
    results = cli.json("status", "digits-1")["results"]
    assert results["model"].endswith("/cloudtrain/runs/digits-1/output/model.tar.gz")


def test_what_the_trainer_writes_for_tensorboard_is_uploaded(
    cloud: Cloud, digits: CommandResult
) -> None:
    assert digits.code == 0
    pytest.importorskip("tensorboard")
    assert any(
        "events.out.tfevents" in name
        for name in cloud.keys("cloudtrain/runs/digits-1/tensorboard/")
    )


def test_a_quota_a_role_and_an_image_that_fail_are_answered_with_what_to_do(
    cli: CommandLine, cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else these are denied, before anything is looked at.
    monkeypatch.setattr(cloud.account, "caller_policy", None)
    cli.write(job_yaml=DIGITS)
    cloud.account.quotas["ml.m5.xlarge"] = 1
    try:
        result = cli.run("submit", "--provider", "aws")
    finally:
        cloud.account.quotas.clear()
    assert result.code == 4
    assert "ResourceLimitExceeded" in result.err
    assert "Service Quotas > Amazon SageMaker > 'ml.m5.xlarge for training job usage'" in result.err
    role = "arn:aws:iam::123456789012:role/untrusted"
    result = cli.run("submit", "--provider", "aws", "--set", f"aws.role={role}")
    assert result.code == 4
    assert "must trust sagemaker.amazonaws.com" in result.err
    result = cli.run("submit", "--provider", "aws", "--set", "aws.bucket=nobodys-bucket")
    assert result.code == 4
    assert "check aws.bucket" in result.err
