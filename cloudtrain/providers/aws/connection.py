"""Clients of an account. boto3 is imported with the first one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloudtrain.errors import UsageError
from cloudtrain.providers.aws.config import config_of, profile_of

if TYPE_CHECKING:
    from cloudtrain.providers.aws.client import AwsClient
    from cloudtrain.runs.folder import RunFolder


def client_of_run(run: RunFolder) -> AwsClient:
    """Return the client of a run's or a sweep's region. Raise UsageError without boto3."""
    config = config_of(run)
    return connect(config.region, profile_of(config))


def connect(region: str, profile: str = "") -> AwsClient:
    """Return the client of a region. Raise UsageError without boto3."""
    try:
        from cloudtrain.providers.aws.client import aws
    except ImportError as error:
        hint = 'pip install "cloudtrain[aws]"'
        raise UsageError(
            f"the aws provider needs boto3, which is not installed: {error}", hint=hint
        ) from None
    return aws(region, profile)
