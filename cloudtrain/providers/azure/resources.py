"""What an Azure ML workspace has, as values: jobs, compute targets and quotas. No SDK."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class JobInfo:
    """A job as the workspace lists it."""

    name: str
    status: str
    """As Azure ML writes it: `Running`."""
    tags: Mapping[str, str]
    url: str
    """Of the job's page in the studio."""
    created: float
    """Unix timestamp; 0 if unknown."""
    owner: str
    """Display name of the user who created it; may be empty."""
    document: Callable[[], dict[str, Any]] = field(repr=False, compare=False)
    """Makes its command-job document, which takes several requests."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialInfo:
    """A trial of a sweep job, as the run history lists it."""

    name: str
    status: str
    """As Azure ML writes it."""
    created: float
    """Unix timestamp; 0 if unknown."""

    @property
    def is_running(self) -> bool:
        """True if its program runs."""
        return self.status == "Running"

    @property
    def has_ended(self) -> bool:
        """True if nothing of it will change any more."""
        return self.status in ("Completed", "Failed", "Canceled")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """A compute target of the workspace."""

    kind: str
    """`amlcompute`, `computeinstance` or `kubernetes`."""
    size: str
    """The VM size of its machines; empty for Kubernetes."""
    max_nodes: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class VmFamily:
    """The family whose quota a VM size counts towards."""

    name: str
    vcpus: int
    """Of one machine of that size."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QuotaUsage:
    """A quota of the workspace's region, in vCPUs."""

    name: str
    used: int
    limit: int
    """Below 0: unlimited."""
