"""The pages of the first job, followed command by command on loopback.

The clouds' own commands are not run: the resources of the template are made instead.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pages import ROOT, blocks
from tests.e2e.cloud_life import SDK
from tests.fakes.aws.cloud import Cloud
from tests.fakes.azure.cloud import AzureCloud
from tests.fakes.azure.rbac import Assignment
from tests.fakes.azure.roles import OWNER
from tests.fakes.azure.tokens import OBJECT_ID
from tests.fakes.containers import Container
from tests.support import aws_template, azure_template
from tests.support.command_line import CommandLine, CommandResult

pytestmark = pytest.mark.torchrun
ASK = {("infra", "settings"), ("submit", "--provider")}
"""Commands that ask on a terminal; the tests add --yes."""
READ_STACK = ["infra", "settings"]
"""The command before which the template is deployed."""


@pytest.fixture(autouse=True)
def forked() -> Iterator[None]:
    Container.forked = True
    yield
    Container.forked = False


def commands_of(page: Path) -> list[list[str]]:
    """Return the `cloudtrain` commands of a page, in order."""
    lines = [
        line for block in blocks(page) if block.language == "sh" for line in block.text.splitlines()
    ]
    commands = [
        shlex.split(line.partition(" > ")[0], comments=True)
        for line in lines
        if line.startswith("cloudtrain ")
    ]
    return [[*words[1:], "--yes"] if tuple(words[1:3]) in ASK else words[1:] for words in commands]


def job_of(page: Path) -> str:
    (text,) = (block.text for block in blocks(page) if block.notes.get("file") == "job.yaml")
    return text


def administrator(cloud: Cloud) -> dict[str, str]:
    """The variables of the key of a user who may do anything."""
    iam = cloud.client("iam", direct=True)
    anything = {"Effect": "Allow", "Action": "*", "Resource": "*"}
    iam.create_user(UserName="administrator")
    document = json.dumps({"Version": "2012-10-17", "Statement": [anything]})
    iam.put_user_policy(UserName="administrator", PolicyName="all", PolicyDocument=document)
    key = iam.create_access_key(UserName="administrator")["AccessKey"]
    return {
        "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
    }


def follow(
    page: Path, cli: CommandLine, before: Callable[[list[str]], None]
) -> list[tuple[list[str], CommandResult]]:
    """`before`: called with each command."""
    cli.write(job_yaml=job_of(page))
    results = []
    for words in commands_of(page):
        before(words)
        results.append((words, cli.run(*words)))
        assert results[-1][1].code == 0, f"{words}: {results[-1][1].out}{results[-1][1].err}"
    return results


@pytest.mark.thorough
def test_first_job_on_sagemaker_runs_with_the_template(tmp_path: Path) -> None:
    def deploy(words: list[str]) -> None:
        if words[:2] == READ_STACK:
            aws_template.deploy(cloud)

    with Cloud() as cloud:
        cloud.empty()
        environment = cloud.environment() | administrator(cloud)
        for name in ("CLOUDTRAIN_AWS_ROLE", "CLOUDTRAIN_AWS_BUCKET", "CLOUDTRAIN_AWS_REGION"):
            del environment[name]
        cli = CommandLine(tmp_path / "reader", env=environment, modules=(SDK["aws"],))
        try:
            results = follow(ROOT / "docs/first-job-aws.md", cli, deploy)
        finally:
            cli.close()
        output = {" ".join(words[:2]): result.out + result.err for words, result in results}
        assert "nothing wrong" in output["doctor aws"]
        assert "USD" in output["status"]
        assert "val_accuracy" in output["metrics"]
        assert any((cli.folder / "first-model" / "model").iterdir())
        assert "policy to attach to people who submit" in output["infra settings"]
        assert not cloud.account.unexpected_errors, "\n".join(cloud.account.unexpected_errors)


@pytest.mark.thorough
def test_first_job_on_azure_ml_runs_with_the_roles_of_the_template(tmp_path: Path) -> None:
    """The reader is Owner for `infra` alone: everything else, and the job, has only what the
    template grants.
    """

    def deploy(words: list[str]) -> None:
        access = cloud.account.access
        if words[:2] == READ_STACK:
            azure_template.deploy(cloud, submitters=[{"id": OBJECT_ID, "type": "User"}])
            access.assignments.append(owner)
        elif owner in access.assignments:
            access.assignments.remove(owner)

    with AzureCloud() as cloud:
        subscription = f"/subscriptions/{cloud.account.subscription}"
        owner = Assignment(principal=OBJECT_ID, role=OWNER, scope=subscription)
        environment = {
            name: value for name, value in cloud.environment().items() if not is_account_fact(name)
        }
        cli = CommandLine(tmp_path / "reader", env=environment, modules=(SDK["azure"],))
        try:
            page = ROOT / "docs/first-job-azure.md"
            results = follow(page, cli, deploy)
        finally:
            cli.close()
        output = {" ".join(words[:2]): result.out + result.err for words, result in results}
        assert "nothing wrong" in output["doctor azure"]
        assert "USD" in output["status"]
        assert "val_accuracy" in output["metrics"]
        assert any((cli.folder / "first-model" / "model").iterdir())
        used = {"jobs/write", "blobs/write", "blobs/delete", "jobs/read", "permissions/read"}
        assert used <= {
            "/".join(action.split("/")[-2:]) for action in cloud.account.access.attempted
        }
        assert not cloud.account.unexpected_errors, "\n".join(cloud.account.unexpected_errors)


def is_account_fact(name: str) -> bool:
    return name.startswith("CLOUDTRAIN_AZURE_") and not name.endswith(("_POLL", "_SUBSCRIPTION"))
