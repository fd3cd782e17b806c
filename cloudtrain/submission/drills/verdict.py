"""Verdict on a drill from its runs. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from cloudtrain.runs.failure import explain
from cloudtrain.runs.state import RunState
from cloudtrain.submission.drills.compared import Trained
from cloudtrain.submission.drills.history import RunHistory, began_anew, steps_done_again


class Verdict(Enum):
    """Result of a drill."""

    SAME = "recovered to the same parameters"
    OTHER = "recovered, but to other parameters"
    NOT_COMPARED = "recovered; it leaves nothing to compare"
    NAMED = "failed by name"
    UNNAMED = "failed without a name"
    UNNOTICED = "did not notice"
    NOT_INJECTED = "ended before the fault"
    SKIPPED = "skipped"

    @property
    def is_fine(self) -> bool:
        """True if the job recovers or names the cause."""
        return self not in (Verdict.UNNAMED, Verdict.UNNOTICED, Verdict.NOT_INJECTED)


@dataclass(frozen=True, kw_only=True, slots=True)
class DrillRun:
    """Run of a drilled job, after its end or at the drill's limit."""

    run: str
    """Run id."""
    state: RunState
    history: RunHistory
    trained: Trained
    overdue: bool = False
    """True if the drill ended it at its limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """Verdict with its evidence."""

    verdict: Verdict
    report: str = ""
    """Message about the fault in the job's report; empty for none."""
    compared: str = ""
    """Basis of the comparison of parameters."""
    differing: tuple[str, ...] = ()
    """Files or metrics that differ from the undisturbed run."""
    steps_lost: float | None = None
    """Repeated steps; None if the job reports none or did not recover."""
    rerun: bool = False
    """True if it needed another run to continue."""
    began_anew: bool = False
    """True if it repeated its first step and did not report a resume."""
    saved_at_stop: bool | None = None
    """True if it saved a checkpoint at a stop; None without a stop."""


def is_named(state: RunState) -> bool:
    """Return whether a failed run's report names the cause, not only the failure."""
    cause = state.error
    if cause is None:
        return bool(state.reason)
    return not cause.consequence and not (cause.rank < 0 and cause.exception == "exit")


def judge(reference: DrillRun, runs: Sequence[DrillRun]) -> Finding:
    """Return the verdict on a drill. The faulty run comes first; the last shows the recovery."""
    last = runs[-1]
    report = next((text for run in runs if (text := _report_of(run))), "")
    if any(run.overdue for run in runs):
        return Finding(verdict=Verdict.UNNOTICED, report=report, rerun=len(runs) > 1)
    if last.state.state != "succeeded":
        named = is_named(last.state)
        verdict = Verdict.NAMED if named else Verdict.UNNAMED
        return Finding(verdict=verdict, report=explain(last.state), rerun=len(runs) > 1)
    differing = tuple(last.trained.differences(reference.trained))
    verdict = Verdict.OTHER if differing else Verdict.SAME
    if not reference.trained.by or last.trained.by != reference.trained.by:
        verdict = Verdict.NOT_COMPARED
        differing = ()
    return Finding(
        verdict=verdict,
        report=report,
        compared=reference.trained.by if verdict is not Verdict.NOT_COMPARED else "",
        differing=differing,
        steps_lost=steps_done_again([run.history for run in runs], reference.history),
        rerun=len(runs) > 1,
        began_anew=began_anew([run.history for run in runs], reference.history),
    )


def _report_of(run: DrillRun) -> str:
    """Return the run's message about its fault: the reason of a restart or of its end."""
    reasons = run.history.restart_reasons
    if reasons:
        return reasons[0]
    if (
        run.overdue
        or run.state.state == "succeeded"
        or (run.state.state == "stopped" and not was_killed(run.state))
    ):
        return ""
    return explain(run.state)


def was_killed(state: RunState) -> bool:
    """Return whether a stopped run was killed after the grace period."""
    return any(ended.forced for ended in state.nodes_ended.values()) or "by force" in state.reason
