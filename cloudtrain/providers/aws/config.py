"""Settings of a SageMaker job's account, fixed in its plan, and clients of that account."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cloudtrain.extras import importing
from cloudtrain.planning.target import CloudConfig

if TYPE_CHECKING:
    from cloudtrain.providers.aws.client import AwsClient
    from cloudtrain.runs.folder import RunFolder

_CHOOSES_CREDENTIALS = ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_ACCESS_KEY_ID")
"""Variables that choose other credentials than the submit's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AwsConfig(CloudConfig):
    """Account, region and network of a SageMaker job; partly unknown for discovered runs."""

    region: str
    profile: str = ""
    """Profile of the AWS CLI at the submit; empty for none."""
    role: str = ""
    """ARN of the job's role."""
    bucket: str = ""
    """Bucket for source, checkpoints and models."""
    repository: str | None = None
    """ECR repository for built images: its name or address."""
    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    kms_key: str | None = None
    queue: str = ""
    """Queue of AWS Batch that starts the job; empty: the job is created at once."""

    @property
    def storage(self) -> str:
        """URI of the bucket."""
        return f"s3://{self.bucket}"


def config_of(run: RunFolder) -> AwsConfig:
    """Return the settings from the run's plan."""
    from cloudtrain.runs.record import RunRecord  # a plan has no run

    return RunRecord(run).config(AwsConfig)


def profile_of(config: AwsConfig) -> str:
    """Return the profile for later commands: the submit's, unless variables choose others."""
    if any(os.environ.get(name) for name in _CHOOSES_CREDENTIALS):
        return ""

    return config.profile


def client_of_run(run: RunFolder) -> AwsClient:
    """Return the client of a run's or a sweep's region. Raise UsageError without boto3."""
    config = config_of(run)
    return connect(config.region, profile_of(config))


def connect(region: str, profile: str = "") -> AwsClient:
    """Return the client of a region. Raise UsageError without boto3."""
    with importing("aws", "the aws provider needs boto3"):
        from cloudtrain.providers.aws.client import aws

    return aws(region, profile)
