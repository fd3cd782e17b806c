"""The client of an account. boto3 is imported when one is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudtrain.errors import UsageError
from cloudtrain.providers.aws.config import config_of, profile_of

if TYPE_CHECKING:
    from cloudtrain.providers.aws.client import AwsClient
    from cloudtrain.runs.folder import RunFolder


def client_of_run(run: RunFolder) -> AwsClient:
    """The client of the region for which a run or a sweep was planned. UsageError where boto3 is
    not installed.
    """
    config = config_of(run)
    return connect(config.region, profile_of(config))


def connect(region: str, profile: str = "") -> AwsClient:
    """The client of a region. UsageError where boto3 is not installed."""
    try:
        from cloudtrain.providers.aws.client import aws
    except ImportError as error:
        hint = 'pip install "cloudtrain[aws]"'
        raise UsageError(
            f"the aws provider needs boto3, which is not installed: {error}", hint=hint
        ) from None
    return aws(region, profile)
