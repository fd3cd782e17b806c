"""What a SageMaker job needs of an account, asked by calls that only read: one module for each part
of the account.
"""

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
    """The account that is asked, and the job that it is asked for."""

    cloud: AwsClient
    config: AwsConfig
    target: Target
    spec: JobSpec

    @property
    def nodes(self) -> int:
        """How many machines the job has."""
        return self.spec.resources.nodes

    @property
    def demand(self) -> str:
        """How many machines are wanted at once: `the job has 2`, `4 trials at once have 8`."""
        if self.spec.machines == self.nodes:
            return f"the job has {self.nodes}"
        return f"{self.spec.machines // self.nodes} trials at once have {self.spec.machines}"

    @property
    def role_name(self) -> str:
        """Of the execution role, without its path."""
        return self.config.role.rpartition("/")[2]

    @property
    def partition(self) -> str:
        """`aws`, `aws-cn`: what the role's ARN says."""
        return self.config.role.split(":")[1]

    @property
    def number(self) -> str:
        """The account's number, that of the role."""
        return self.config.role.split(":")[4]


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """Who these credentials are."""

    arn: str
    """`arn:aws:iam::123456789012:user/alice`,
    `arn:aws:sts::123456789012:assumed-role/NAME/SESSION`.
    """
    account: str
