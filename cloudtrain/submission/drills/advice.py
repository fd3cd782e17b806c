"""Advice on a job from the findings of its drills. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cloudtrain.submission.drills.scenario import Fault
from cloudtrain.submission.drills.verdict import DrillRun, Finding, Verdict, was_killed

SAVES_NOTHING = (
    "the program saves no checkpoint, so every run starts over: torch.save(state, …) into"
    " $CLOUDTRAIN_CHECKPOINT_DIR now and then, and load what is there at the start"
    " (docs/guides/spot.md)"
)


KEEP_ONE_MORE = (
    "keep the checkpoint before the newest, and resume from it if the newest cannot be loaded"
)
LEAVES_NOTHING = (
    "it is unknown whether it resumed from its checkpoint or started over: report its steps "
    "(cloudtrain_job.log_progress), or write what it has learnt into $CLOUDTRAIN_MODEL_DIR"
)
BEGINS_ANEW = (
    "it saves checkpoints and did not resume from them, but started over: load what is in"
    " $CLOUDTRAIN_CHECKPOINT_DIR at the start (docs/guides/spot.md)"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class JobFacts:
    """Facts of the job that the advice depends on."""

    restarts: int
    retries: int
    hang_seconds: int
    drilled_hang_seconds: int
    """limits.hang during the drill."""
    is_trainer: bool
    """True for the shared trainer."""
    saves: bool
    """True if the undisturbed run saved a checkpoint."""
    grace: str
    """Grace period of a stop and its origin."""
    never_loads: bool = False
    """True if it began anew although its newest checkpoint was intact."""
    is_reproducible: bool | None = None
    """True if two undisturbed runs ended with the same parameters; None if not tried."""


def advice(fault: Fault, finding: Finding, faulty: DrillRun | None, job: JobFacts) -> list[str]:
    """Return changes, the most useful first; empty for a job that is ready.

    `faulty`: the run that got the fault.
    """
    if finding.verdict in (Verdict.SKIPPED, Verdict.NOT_INJECTED):
        return []
    return [*_of_parameters(finding, job), *_of_fault(fault, finding, faulty, job)]


def advice_on_all(findings: Sequence[Finding], job: JobFacts) -> list[str]:
    """Return changes that do not depend on the drill."""
    changes = [] if job.saves else [SAVES_NOTHING]
    if job.saves and any(
        finding.verdict is Verdict.NOT_COMPARED and finding.steps_lost is None
        for finding in findings
    ):
        changes.append(LEAVES_NOTHING)
    return changes


def _of_parameters(finding: Finding, job: JobFacts) -> Iterator[str]:
    if finding.verdict is not Verdict.OTHER:
        return
    names = ", ".join(finding.differing[:3]) + (", …" if len(finding.differing) > 3 else "")
    if job.is_reproducible is False:
        yield (
            f"two undisturbed runs differ, too ({names}): seed the program, so that a difference"
            " means something"
        )
    elif job.is_reproducible:
        yield (
            f"two undisturbed runs are equal, this one differs ({names}): it does not restore all"
            " that the next step depends on. Besides model and optimizer that is the scheduler,"
            " the random generators, and the place in the data (a seed for each epoch,"
            " sampler.set_epoch)"
        )


def _of_fault(
    fault: Fault, finding: Finding, faulty: DrillRun | None, job: JobFacts
) -> Iterator[str]:
    if finding.began_anew and job.saves:
        yield (
            KEEP_ONE_MORE if fault is Fault.CHECKPOINT_TORN and not job.never_loads else BEGINS_ANEW
        )
    if fault is Fault.RANK_KILLED and job.restarts == 0:
        yield (
            "limits.restarts is 0: with 1 the ranks start again within seconds, on the machines"
            " that are there"
        )
    if fault is Fault.NODE_LOST and job.retries == 0 and finding.verdict is not Verdict.NAMED:
        yield (
            "limits.retries is 0: with 1 SageMaker starts the job again by itself; elsewhere"
            " `cloudtrain rerun` does"
        )
    if fault is Fault.SIGTERM and faulty is not None:
        yield from _of_stop(finding, faulty, job)
    if (
        fault is Fault.CHECKPOINT_TORN
        and finding.verdict in (Verdict.NAMED, Verdict.UNNAMED)
        and not job.is_trainer
    ):
        yield KEEP_ONE_MORE
    if fault is Fault.LOADER_STALLED and finding.verdict is Verdict.UNNOTICED:
        yield (
            "limits.hang is 0: nothing ends a job that waits; limits: {hang: 10 min} does"
            if job.hang_seconds == 0
            else (
                "it has waited without a word for longer than limits.hang"
                f" ({job.drilled_hang_seconds} s in the drill)"
            )
        )


def _of_stop(finding: Finding, faulty: DrillRun, job: JobFacts) -> Iterator[str]:
    if was_killed(faulty.state):
        yield (
            f"it did not end within the grace period ({job.grace}): end on SIGTERM, or save more"
            " often"
        )
    elif finding.saved_at_stop is False and not job.is_trainer and job.saves:
        yield (
            "it does not save at a stop, so the work since its last checkpoint is"
            " lost: save on SIGTERM (docs/guides/spot.md)"
        )
