"""The pages of the first job, followed command by command in an empty account on loopback."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from pages import ROOT, blocks
from tests.e2e.cloud_life import SDK
from tests.fakes.aws.cloud import Cloud
from tests.fakes.azure.cloud import AzureCloud
from tests.fakes.containers import Container
from tests.support.command_line import CommandLine, CommandResult

pytestmark = pytest.mark.torchrun
ASK = {("infra", "up"), ("infra", "down"), ("submit", "--provider")}
"""Commands that ask on a terminal: here they are told yes."""


@pytest.fixture(autouse=True)
def forked() -> Iterator[None]:
    Container.forked = True
    yield
    Container.forked = False


def commands_of(page: Path) -> list[list[str]]:
    """The page's own commands, in order, without those of others."""
    found = [line for block in blocks(page) if block.language == "sh" for line in block.text.splitlines()]
    told = [shlex.split(line, comments=True) for line in found if line.startswith("cloudtrain ")]
    return [[*words[1:], "--yes"] if tuple(words[1:3]) in ASK else words[1:] for words in told]


def job_of(page: Path) -> str:
    (text,) = (block.text for block in blocks(page) if block.notes.get("file") == "job.yaml")
    return text


def administrator(cloud: Cloud) -> dict[str, str]:
    """The variables of the key of a user who may do anything."""
    iam, anything = cloud.client("iam", direct=True), {"Effect": "Allow", "Action": "*", "Resource": "*"}
    iam.create_user(UserName="administrator")
    document = json.dumps({"Version": "2012-10-17", "Statement": [anything]})
    iam.put_user_policy(UserName="administrator", PolicyName="all", PolicyDocument=document)
    key = iam.create_access_key(UserName="administrator")["AccessKey"]
    return {"AWS_ACCESS_KEY_ID": key["AccessKeyId"], "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"]}


def follow(page: Path, cli: CommandLine) -> list[tuple[list[str], CommandResult]]:
    cli.write(job_yaml=job_of(page))
    done = []
    for words in commands_of(page):
        done.append((words, cli.run(*words)))
        assert done[-1][1].code == 0, f"{words}: {done[-1][1].out}{done[-1][1].err}"
    return done


def test_the_first_job_on_sagemaker_begins_in_an_empty_account_and_leaves_the_bucket(tmp_path: Path) -> None:
    with Cloud() as cloud:
        cloud.empty()
        environment = cloud.environment() | administrator(cloud)
        for name in ("CLOUDTRAIN_AWS_ROLE", "CLOUDTRAIN_AWS_BUCKET", "CLOUDTRAIN_AWS_REGION"):
            del environment[name]
        cli = CommandLine(tmp_path / "reader", env=environment, modules=(SDK["aws"],))
        try:
            done = follow(ROOT / "docs/first-job-aws.md", cli)
        finally:
            cli.close()
        said = {" ".join(words[:2]): result.out + result.err for words, result in done}
        assert "nothing wrong" in said["doctor aws"]
        assert "USD" in said["status"]
        assert "val_accuracy" in said["metrics"]
        assert any((cli.folder / "first-model" / "model").iterdir())
        assert "kept, and billed by what is stored" in said["infra down"]
        iam = cloud.client("iam", direct=True)
        assert (iam.list_roles()["Roles"], iam.list_policies(Scope="Local")["Policies"]) == ([], [])
        assert not cloud.account.unexpected_errors, "\n".join(cloud.account.unexpected_errors)


def test_the_first_job_on_azure_ml_begins_in_an_empty_subscription(tmp_path: Path) -> None:
    with AzureCloud(empty=True) as cloud:
        environment = {name: value for name, value in cloud.environment().items() if not is_account_fact(name)}
        cli = CommandLine(tmp_path / "reader", env=environment, modules=(SDK["azure"],))
        try:
            done = follow(ROOT / "docs/first-job-azure.md", cli)
        finally:
            cli.close()
        said = {" ".join(words[:2]): result.out + result.err for words, result in done}
        assert "nothing wrong" in said["doctor azure"]
        assert "USD" in said["status"]
        assert "val_accuracy" in said["metrics"]
        assert any((cli.folder / "first-model" / "model").iterdir())
        assert not cloud.account.unexpected_errors, "\n".join(cloud.account.unexpected_errors)


def is_account_fact(name: str) -> bool:
    return name.startswith("CLOUDTRAIN_AZURE_") and not name.endswith(("_POLL", "_SUBSCRIPTION"))
