"""Shared parts of an imitated account: its region, storage, logs, machines, quotas, and timing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.fakes.aws.logs import LogGroup
from tests.fakes.aws.policies import Statement
from tests.fakes.aws.storage import Storage


@dataclass(kw_only=True)
class Account:
    """Tests set some of it while jobs run; it is read each time it matters."""

    region: str
    account: str
    storage: Storage
    logs: LogGroup
    folder: Path
    """The folder of the containers' trees."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that the platform adds to every container: credentials, and the address of AWS."""
    grace_seconds: float | None = None
    """From SIGTERM to SIGKILL; None: as long as the contract says."""
    phase_seconds: float = 0.02
    """Length of each idle phase of a job."""
    capacity: set[str] = field(default_factory=set)
    """Instance types that are sold out."""
    quotas: dict[str, int] = field(default_factory=dict)
    """Instance type -> number that may be used at once; other types are unlimited."""
    missing_images: set[str] = field(default_factory=set)
    """Images that cannot be pulled, although their address looks right."""
    denied_actions: set[str] = field(default_factory=set)
    """IAM actions that are denied, such as `logs:GetLogEvents`, or all of a service as `logs:*`."""
    caller_policy: Sequence[Statement] | None = None
    """Rights of the caller; None: everything."""
    tags: Callable[[str], Mapping[str, str]] = lambda arn: {}  # noqa: ARG005
    """The tags of a job, by its ARN, as policies see them."""
    tag_delay_seconds: float = 0
    """Age of a job after which policies see its tags."""
    attempted: set[str] = field(default_factory=set)
    """The actions that were held against it."""
    job_policy: Sequence[Statement] | None = None
    """Rights of the role of jobs; None: everything."""
    tuning_parallel: int = 10
    """How many training jobs a tuning job may have at once: the quota of a new account."""
    has_warm_pools: bool = False
    """True if the account has a quota of warm pools.

    A new account's is 0: AWS silently keeps no machine.
    """
    closing: threading.Event = field(default_factory=threading.Event)
    """The whole imitation is being taken down: jobs end by force."""
    unexpected_errors: list[str]
    """Tracebacks of the imitation's own mistakes; a test that leaves one here has found one."""

    def arn(self, name: str) -> str:
        """The address of a training job."""
        return f"arn:aws:sagemaker:{self.region}:{self.account}:training-job/{name}"
