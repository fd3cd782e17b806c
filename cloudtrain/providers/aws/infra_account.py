"""What an account has already that a stack must not make again: the log group of jobs, GitHub's
OIDC provider.
"""

from __future__ import annotations

from collections.abc import Container
from typing import TYPE_CHECKING, Any

from cloudtrain.errors import CloudError
from cloudtrain.providers.aws.infra_parameters import FOUND, LOG_GROUP

if TYPE_CHECKING:
    from cloudtrain.providers.aws.client import AwsClient

_GITHUB = "token.actions.githubusercontent.com"


def log_group(cloud: AwsClient) -> dict[str, Any] | None:
    """The log group of training jobs, if any job has run in the region or somebody has made it."""
    pages = cloud.pages("logs", "describe_log_groups", logGroupNamePrefix=LOG_GROUP)
    groups = [each for page in pages for each in page["logGroups"]]
    return next((each for each in groups if each["logGroupName"] == LOG_GROUP), None)


def github_provider(cloud: AwsClient, own: Container[str]) -> str:
    """The ARN of the account's OIDC provider for GitHub, of which there can be only one. `own`:
    those of the stack.

    FOUND if there is none but the stack's own, and where these credentials may not look: then the
    stack tells.
    """
    try:
        listed = cloud.call("iam", "list_open_id_connect_providers")["OpenIDConnectProviderList"]
    except CloudError:
        return FOUND
    return next(
        (
            each["Arn"]
            for each in listed
            if each["Arn"].endswith(_GITHUB) and each["Arn"] not in own
        ),
        FOUND,
    )
