"""Checks of an AWS account for `cloudtrain doctor aws`, in the order of repairs. Read-only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cloudtrain.checkup import Check, Question
from cloudtrain.planning.target import Target
from cloudtrain.providers.aws.account_checks.identity import (
    Account,
    Caller,
    account_check,
    caller_checks,
    role_check,
)
from cloudtrain.providers.aws.account_checks.network import network_checks
from cloudtrain.providers.aws.account_checks.resources import quota_checks, storage_checks
from cloudtrain.providers.aws.account_checks.rights import rights_checks
from cloudtrain.providers.aws.config import AwsConfig
from cloudtrain.providers.aws.target import format_issues

if TYPE_CHECKING:
    from cloudtrain.providers.aws.client import AwsClient
    from cloudtrain.spec.model import JobSpec


def account_checks(cloud: AwsClient, target: Target, spec: JobSpec) -> Iterator[Check]:
    """Yield each check of a job's account as its answer comes.

    Without credentials no further question is possible.
    """
    config = target.config_as(AwsConfig)
    malformed = [*format_issues("role", config.role), *format_issues("bucket", config.bucket)]
    yield from map(Question.of_setting, malformed)
    if malformed:
        return
    account = Account(cloud=cloud, config=config, target=target, spec=spec)
    for result in caller_checks(cloud):
        if isinstance(result, Caller):
            yield from _of_caller(account, result)
        else:
            yield result


def _of_caller(account: Account, caller: Caller) -> Iterator[Check]:
    account_answer = account_check(account, caller)
    yield account_answer
    if account_answer.is_wrong:  # further answers would be about another account
        return
    role = role_check(account)
    yield role
    if not role.is_wrong:
        yield from rights_checks(account, caller)
    yield from storage_checks(account)
    yield from quota_checks(account)
    yield from network_checks(account)
