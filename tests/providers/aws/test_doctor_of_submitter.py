"""`cloudtrain doctor aws` by people who submit: the policy of the template allows every check."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cloudtrain
from cloudtrain.checkup import Check
from cloudtrain.providers import get_provider
from cloudtrain.settings import load_settings
from cloudtrain.submission.checkup import platform_checks
from tests.fakes.aws.cloud import Cloud
from tests.fakes.aws.permissions import USER
from tests.fakes.aws.policies import Statement, statements, without
from tests.providers.aws.accounts import HealthyAccount
from tests.support.aws_permissions import CHECKS
from tests.support.aws_template import deploy
from tests.support.in_process import call

pytestmark = pytest.mark.once


@pytest.fixture
def submitter(
    cloud: Cloud, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[Statement]]:
    """An account with the resources of the template, and the policy that this process has."""
    from cloudtrain.providers.aws.client import aws

    cloud.empty()
    cloud.account.quotas.clear()
    for name in ("ROLE", "BUCKET"):
        monkeypatch.delenv(f"CLOUDTRAIN_AWS_{name}")
    arn = deploy(cloud, Network="existing", KmsKey="new")["SubmitterPolicy"]
    result = call("infra", "settings", "--provider", "aws", "--yes")
    assert result.code == 0, result.err
    iam = cloud.client("iam", direct=True)
    user = USER.rpartition("/")[2]
    iam.create_user(UserName=user)
    iam.attach_user_policy(UserName=user, PolicyArn=arn)
    key = iam.create_access_key(UserName=user)["AccessKey"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
    aws.cache_clear()
    policy = statements(
        [iam.get_policy_version(PolicyArn=arn, VersionId="v1")["PolicyVersion"]["Document"]]
    )
    cloud.account.caller_policy = policy
    yield policy
    cloud.account.caller_policy = None
    cloud.account.job_policy = None
    cloud.empty()


def job(cloud: Cloud) -> dict[str, Any]:
    """Return a job that makes doctor run every check except the one for the build repository."""
    network = HealthyAccount(cloud).network().open().with_endpoint()
    image = f"{cloud.stacks.outputs['cloudtrain']['Repository']}:1"
    cloud.registry.images.put(image.partition("/")[2].partition(":")[0], "1", "amd64")
    return {
        "name": "digits",
        "image": image,
        "resources": {"nodes": 2, "instance": {"aws": "ml.m5.xlarge"}},
        "limits": {"max_runtime": "1 h"},
        "aws": {"subnets": [network.subnet], "security_groups": [network.group]},
    }


def checks_of(spec: dict[str, Any]) -> list[Check]:
    made = cloudtrain.load(spec)
    settings = load_settings(Path.cwd())
    return list(
        platform_checks("aws", settings, get_provider("aws").target(settings, made.spec), made.spec)
    )


def test_submitter_policy_allows_every_check_of_doctor(
    cloud: Cloud, submitter: list[Statement]
) -> None:
    spec = job(cloud)
    checks = [*checks_of(spec), *checks_of({**spec, "image": "auto"})]
    assert {check.name: check.answer for check in checks if check.verdict != "ok"} == {}
    assert len({check.name for check in checks}) == 15


def test_check_without_its_action_is_skipped_and_names_it(
    cloud: Cloud, submitter: list[Statement]
) -> None:
    named = job(cloud)
    built = {**named, "image": "auto"}  # doctor looks for a repository only to build an image
    for action, names in CHECKS.items():
        cloud.account.caller_policy = without(action, submitter)
        checks = checks_of(built if action == "ecr:DescribeRepositories" else named)
        unseen = {check.name: check for check in checks if check.verdict == "not allowed to look"}
        assert set(unseen) == set(names), action
        assert all(action in f"{check.answer} {check.fix}" for check in unseen.values())
