"""The drills, as values: what is done to a job and when, what is expected then, and whose rule that
is.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from cloudtrain.planning.azureml import GRACE_SECONDS as AZURE_GRACE_SECONDS
from cloudtrain.planning.sagemaker import GRACE_SECONDS as SAGEMAKER_GRACE_SECONDS

if TYPE_CHECKING:
    from cloudtrain.planning.plan import Plan


class Fault(Enum):
    """What is done to the job."""

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
    done: str
    """What is done to the job."""
    expected: str
    """What a job that is ready for it does."""
    source: str
    """Where that happens in a cloud, and whose rule it is."""
    checkpoints: int = 1
    """After how many checkpoints it is done."""
    needs_checkpoint: bool = False
    """Whether it means nothing for a job that saves none."""

    @property
    def name(self) -> str:
        """As `--only` has it."""
        return self.fault.value


SCENARIOS = (
    Scenario(
        fault=Fault.RANK_KILLED,
        done="SIGKILL of one rank",
        expected=(
            "the ranks start again in place (limits.restarts), or a rerun goes on from the"
            " checkpoint"
        ),
        source="what the kernel does when host memory is full (oom_kill, proc(5))",
    ),
    Scenario(
        fault=Fault.NODE_LOST,
        done="SIGKILL of all processes of one node, at once",
        expected="the report names the node; a rerun goes on from the checkpoint",
        source="a machine that fails, or spot capacity that is taken back without a warning",
    ),
    Scenario(
        fault=Fault.SIGTERM,
        done="a stop: SIGTERM, and SIGKILL when the grace period is over",
        expected="the job saves within the grace period; a rerun goes on from there",
        source=(
            "StopTrainingJob and spot interruptions of SageMaker (120 s); preemptions of Azure ML"
        ),
    ),
    Scenario(
        fault=Fault.DISK_FULL,
        done="the disk of the checkpoints is full",
        expected=(
            "the report names the disk; once there is space a rerun goes on from the last whole"
            " checkpoint"
        ),
        source=(
            "the volume of a training job has the size that was asked for (resources.disk), and"
            " does not grow"
        ),
        needs_checkpoint=True,
    ),
    Scenario(
        fault=Fault.CHECKPOINT_TORN,
        done=(
            "a stop, then the largest file of the newest checkpoint is cut in half, and the job run"
            " again"
        ),
        expected="the job says that the checkpoint is damaged, and goes on from the one before",
        source=(
            "a machine that loses power while it writes (rename(2) alone promises nothing without"
            " fsync(2))"
        ),
        checkpoints=2,
        needs_checkpoint=True,
    ),
    Scenario(
        fault=Fault.LOADER_STALLED,
        done="SIGSTOP of the loader's workers of one rank, or of the rank where it has none",
        expected="the job ends and names the rank (limits.hang), and goes on from the checkpoint",
        source=(
            "a mount or a download that does not answer; nothing in a cloud ends a job that waits"
        ),
    ),
)

DRILLED_HANG_SECONDS = 10
"""limits.hang in the drill of a stalled loader: nobody waits half an hour for a drill."""

NAMES = tuple(scenario.name for scenario in SCENARIOS)


def grace_of(plan: Plan) -> str:
    """How long a job has to stop, and whose rule that is."""
    return grace_rule(
        plan.target.grace_seconds, plan.target.declaration.label if plan.is_rehearsal else ""
    )


def grace_rule(seconds: float, cloud: str = "") -> str:
    """How long a job has between SIGTERM and SIGKILL, and whose rule that is. `cloud`: the one that
    is rehearsed.
    """
    if cloud:
        return f"{seconds:g} s, as in a job on {cloud}"
    clouds = (
        f"SageMaker gives {SAGEMAKER_GRACE_SECONDS} s, Azure ML {AZURE_GRACE_SECONDS} s by"
        " azure.stop_grace"
    )
    return f"{seconds:g} s, by stop_grace of this machine; {clouds}"
