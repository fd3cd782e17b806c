"""The settings of a SageMaker job's account, fixed when it is planned."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloudtrain.providers.shared.config import CloudConfig

if TYPE_CHECKING:
    from cloudtrain.runs.folder import RunFolder


@dataclass(frozen=True, kw_only=True, slots=True)
class AwsConfig(CloudConfig):
    """Account, region and network of a SageMaker job. Less is known of runs that another machine
    started.
    """

    region: str
    profile: str = ""
    """The profile of the AWS CLI that was in force; empty for none."""
    role: str = ""
    """ARN of the role that the job runs as."""
    bucket: str = ""
    """For source, checkpoints and models."""
    repository: str | None = None
    """Where images that are built are pushed: ECR's name or address of it."""
    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    kms_key: str | None = None


def config_of(run: RunFolder) -> AwsConfig:
    """As it was when the run was planned."""
    from cloudtrain.runs.record import RunRecord  # a plan needs none of it

    return RunRecord(run).config(AwsConfig)


def profile_of(config: AwsConfig) -> str:
    """The profile to look after a run with: that of its submit, unless variables choose other
    credentials now.
    """
    chosen = any(
        os.environ.get(name) for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_ACCESS_KEY_ID")
    )
    return "" if chosen else config.profile


def request_of(run: RunFolder) -> dict[str, Any]:
    """The CreateTrainingJob body. StorageError where it lacks what later steps need."""
    from cloudtrain.runs.record import RunRecord  # a plan needs none of it

    return RunRecord(run).request(_NEEDED)


_NEEDED: Mapping[str, type] = {
    "TrainingJobName": str,
    "RoleArn": str,
    "InputDataConfig": list,
    "OutputDataConfig.S3OutputPath": str,
    "Tags": list,
}
