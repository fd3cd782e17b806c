"""Parts of an Azure ML workspace as values: jobs, compute targets and quotas. No SDK."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class JobInfo:
    """A job in the workspace's list."""

    name: str
    status: str
    """Status in Azure ML's spelling: `Running`."""
    tags: Mapping[str, str]
    url: str
    """Page of the job in the studio."""
    created: float
    """Unix timestamp; 0 if unknown."""
    owner: str
    """Display name of the user who created it; may be empty."""
    document: Callable[[], dict[str, Any]] = field(repr=False, compare=False)
    """Creates its command-job document, by several requests."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialInfo:
    """A trial of a sweep job in the run history."""

    name: str
    status: str
    """Status in Azure ML's spelling."""
    created: float
    """Unix timestamp; 0 if unknown."""

    @property
    def is_running(self) -> bool:
        """True if its program runs."""
        return self.status == "Running"

    @property
    def has_ended(self) -> bool:
        """True if its state is final."""
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
    """Family of a VM size, for its quota."""

    name: str
    vcpus: int
    """Number of vCPUs of one machine of that size."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QuotaUsage:
    """A quota of the workspace's region, in vCPUs."""

    name: str
    used: int
    limit: int
    """Below 0: unlimited."""
