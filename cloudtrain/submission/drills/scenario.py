"""Scenarios of drills: fault, moment, expected reaction and origin."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from cloudtrain.planning.azureml import GRACE_SECONDS as AZURE_GRACE_SECONDS
from cloudtrain.planning.sagemaker import GRACE_SECONDS as SAGEMAKER_GRACE_SECONDS

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
    expected: str
    """Reaction of a job that is ready for it."""
    source: str
    """Origin of such a fault in a cloud."""
    checkpoints: int = 1
    """Number of checkpoints before the fault."""
    needs_checkpoint: bool = False
    """True if it needs a job that saves checkpoints."""

    @property
    def name(self) -> str:
        """Name for `--only`."""
        return self.fault.value


SCENARIOS = (
    Scenario(
        fault=Fault.RANK_KILLED,
        action="SIGKILL of one rank",
        expected=(
            "the ranks start again in place (limits.restarts), or a rerun resumes from the"
            " checkpoint"
        ),
        source="what the kernel does when host memory is full (oom_kill, proc(5))",
    ),
    Scenario(
        fault=Fault.NODE_LOST,
        action="SIGKILL of all processes of one node, at once",
        expected="the report names the node; a rerun resumes from the checkpoint",
        source="a machine that fails, or spot capacity that is taken back without a warning",
    ),
    Scenario(
        fault=Fault.SIGTERM,
        action="a stop: SIGTERM, and SIGKILL when the grace period is over",
        expected="the job saves within the grace period; a rerun resumes from there",
        source=(
            "StopTrainingJob and spot interruptions of SageMaker (120 s); preemptions of Azure ML"
        ),
    ),
    Scenario(
        fault=Fault.DISK_FULL,
        action="the disk of the checkpoints is full",
        expected=(
            "the report names the disk; once there is space a rerun resumes from the last whole"
            " checkpoint"
        ),
        source=(
            "the volume of a training job has the requested size (resources.disk), and"
            " does not grow"
        ),
        needs_checkpoint=True,
    ),
    Scenario(
        fault=Fault.CHECKPOINT_TORN,
        action=(
            "a stop, then the largest file of the newest checkpoint is cut in half, and the job run"
            " again"
        ),
        expected="the job says that the checkpoint is damaged, and resumes from the previous one",
        source=(
            "a machine that loses power while it writes (rename(2) alone promises nothing without"
            " fsync(2))"
        ),
        checkpoints=2,
        needs_checkpoint=True,
    ),
    Scenario(
        fault=Fault.LOADER_STALLED,
        action="SIGSTOP of the loader's workers of one rank, or of the rank where it has none",
        expected="the job ends and names the rank (limits.hang), and resumes from the checkpoint",
        source=(
            "a mount or a download that does not answer; nothing in a cloud ends a job that waits"
        ),
    ),
)

DRILLED_HANG_SECONDS = 10
"""limits.hang in the drill of a stalled loader, to keep the drill short."""

NAMES = tuple(scenario.name for scenario in SCENARIOS)


def grace_of(plan: Plan) -> str:
    """Return the grace period of a job and its origin."""
    return grace_rule(
        plan.target.grace_seconds, plan.target.declaration.label if plan.is_rehearsal else ""
    )


def grace_rule(seconds: float, cloud: str = "") -> str:
    """Return the time between SIGTERM and SIGKILL and its origin. `cloud`: rehearsed cloud."""
    if cloud:
        return f"{seconds:g} s, as in a job on {cloud}"
    clouds = (
        f"SageMaker gives {SAGEMAKER_GRACE_SECONDS} s, Azure ML {AZURE_GRACE_SECONDS} s by"
        " azure.stop_grace"
    )
    return f"{seconds:g} s, by stop_grace of this machine; {clouds}"
