"""Read-only checks of an account for a SageMaker job: one module for each part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloudtrain.planning.target import Target
    from cloudtrain.providers.aws.client import AwsClient
    from cloudtrain.providers.aws.config import AwsConfig
    from cloudtrain.spec.model import JobSpec


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """Account to check, and the job to check it for."""

    cloud: AwsClient
    config: AwsConfig
    target: Target
    spec: JobSpec

    @property
    def nodes(self) -> int:
        """Number of machines of the job."""
        return self.spec.resources.nodes

    @property
    def demand(self) -> str:
        """Number of machines at once: `the job has 2`, `4 trials at once have 8`."""
        if self.spec.machines == self.nodes:
            return f"the job has {self.nodes}"
        return f"{self.spec.machines // self.nodes} trials at once have {self.spec.machines}"

    @property
    def role_name(self) -> str:
        """Name of the execution role, without its path."""
        return self.config.role.rpartition("/")[2]

    @property
    def partition(self) -> str:
        """Partition in the role's ARN: `aws`, `aws-cn`."""
        return self.config.role.split(":")[1]

    @property
    def number(self) -> str:
        """Number of the role's account."""
        return self.config.role.split(":")[4]


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """Owner of the credentials."""

    arn: str
    """ARN: `arn:aws:iam::123456789012:user/alice`, or an assumed role's session."""
    account: str
