"""Doctor simulates exactly the actions that infra grants."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import cloudtrain
from cloudtrain.providers import get_provider
from cloudtrain.providers.aws.account_rights import (
    Account,
    Need,
    distrust,
    needs_of_job,
    needs_of_submit,
)
from cloudtrain.providers.aws.config import AwsConfig
from cloudtrain.settings import load_settings
from tests.fakes.aws.policies import Attempt, Statement, is_allowed
from tests.support.aws_permissions import JOB, SUBMITTER
from tests.support.aws_template import ACCOUNT, REGION, job_policy, resolved, submitter_policy


def account(tmp_path: Path, **more: Any) -> Account:
    """That of the template, for a job of the shared trainer."""
    aws = {
        "region": REGION,
        "role": f"arn:aws:iam::{ACCOUNT}:role/made-role",
        "bucket": "made-bucket",
    }
    job = cloudtrain.load({"name": "digits", "aws": aws, **more})
    target = get_provider("aws").target(
        load_settings(tmp_path, environ={"HOME": str(tmp_path)}), job.spec
    )
    assert not target.problems
    return Account(
        cloud=cast(Any, None), config=target.config_as(AwsConfig), target=target, spec=job.spec
    )


def denied(needs: list[Need], policy: list[Statement]) -> list[str]:
    attempts = [
        Attempt(action=action, resource=need.resource, context=need.context)
        for need in needs
        for action in need.actions
    ]
    assert attempts
    return [
        f"{attempt.action} on {attempt.resource}"
        for attempt in attempts
        if not is_allowed(attempt, policy)
    ]


def test_doctor_finds_no_right_missing_in_an_account_that_infra_made(tmp_path: Path) -> None:
    token = {
        "TOKEN": {"aws": "secretsmanager:cloudtrain/token"},
        "KEY": {"aws": "ssm:/cloudtrain/key"},
    }
    made = account(tmp_path, secrets=token)
    assert denied(needs_of_submit(made), submitter_policy()) == []
    assert denied(needs_of_job(made), job_policy()) == []
    trust = resolved().properties("ExecutionRole")["AssumeRolePolicyDocument"]
    assert distrust(trust) == ""


def test_doctor_asks_for_nothing_that_is_not_listed(tmp_path: Path) -> None:
    made = account(tmp_path)
    actions = {action for need in needs_of_submit(made) for action in need.actions}
    assert actions <= set(SUBMITTER)
    actions = {action for need in needs_of_job(made) for action in need.actions}
    assert actions <= set(JOB)
