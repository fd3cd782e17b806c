"""Scenarios of drills: fault and moment."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cloudtrain.planning.plan import Plan


class Fault(Enum):
    """Kind of fault."""

    RANK_KILLED = "rank-killed"
    NODE_LOST = "node-lost"
    SIGTERM = "sigterm"
    DISK_FULL = "disk-full"
    CHECKPOINT_TORN = "checkpoint-torn"
    LOADER_STALLED = "loader-stalled"


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """One drill."""

    fault: Fault
    action: str
    """Action on the job."""
    checkpoints: int = 1
    """Number of checkpoints before the fault."""
    needs_checkpoint: bool = False
    """True if it needs a job that saves checkpoints."""

    @property
    def name(self) -> str:
        """Name for `--only`."""
        return self.fault.value


SCENARIOS = (
    Scenario(fault=Fault.RANK_KILLED, action="SIGKILL of one rank"),
    Scenario(fault=Fault.NODE_LOST, action="SIGKILL of all processes of one node, at once"),
    Scenario(
        fault=Fault.SIGTERM, action="a stop: SIGTERM, and SIGKILL when the grace period is over"
    ),
    Scenario(
        fault=Fault.DISK_FULL,
        action="the disk of the checkpoints is full",
        needs_checkpoint=True,
    ),
    Scenario(
        fault=Fault.CHECKPOINT_TORN,
        action=(
            "a stop, then the largest file of the newest checkpoint is cut in half, and the job run"
            " again"
        ),
        checkpoints=2,
        needs_checkpoint=True,
    ),
    Scenario(
        fault=Fault.LOADER_STALLED,
        action="SIGSTOP of the loader's workers of one rank, or of the rank where it has none",
    ),
)

DRILLED_HANG_SECONDS = 10
"""limits.hang in the drill of a stalled loader, to keep the drill short."""

NAMES = tuple(scenario.name for scenario in SCENARIOS)


def grace_of(plan: Plan) -> str:
    """Return the grace period of a job and its origin."""
    seconds = plan.target.grace_seconds
    if plan.is_rehearsal:
        return f"{seconds:g} s, as in a job on {plan.target.declaration.label}"
    return f"{seconds:g} s, by stop_grace of this machine"
