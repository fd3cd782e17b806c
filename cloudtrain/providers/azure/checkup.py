"""Checks of an Azure ML workspace for `cloudtrain doctor azure`, in the order of repairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from cloudtrain.checkup import Check, Question
from cloudtrain.planning.target import Target
from cloudtrain.providers.azure.account import format_issues
from cloudtrain.providers.azure.account_checks import Account
from cloudtrain.providers.azure.account_checks.identity import cloud_check, credentials_check
from cloudtrain.providers.azure.account_checks.rights import rights_checks
from cloudtrain.providers.azure.account_checks.workspace import machines_check, workspace_checks
from cloudtrain.providers.azure.config import AzureConfig

if TYPE_CHECKING:
    from cloudtrain.providers.azure.arm import ResourceManager
    from cloudtrain.providers.azure.client import Workspace
    from cloudtrain.spec.model import JobSpec


def account_checks(
    cloud: Workspace, arm: ResourceManager, target: Target, spec: JobSpec
) -> Iterator[Check]:
    """Yield each check of a job's workspace as its answer comes.

    Without a login or a workspace, skip the checks that need it.
    """
    config = target.config_as(AzureConfig)
    malformed = list(format_issues(config))
    yield from map(Question.of_setting, malformed)
    if malformed:
        return
    claims: dict[str, Any] = {}
    document: dict[str, Any] = {}
    right_cloud = cloud_check(arm, config)
    yield right_cloud
    if right_cloud.is_wrong:
        return
    login = credentials_check(arm, claims)
    yield login
    if login.is_wrong:
        return
    yield from workspace_checks(arm, config, document)
    if not document:
        return
    account = Account(
        cloud=cloud,
        arm=arm,
        config=config,
        target=target,
        spec=spec,
        user=str(claims.get("oid") or ""),
        workspace=document,
    )
    yield from rights_checks(account)
    yield machines_check(account)
