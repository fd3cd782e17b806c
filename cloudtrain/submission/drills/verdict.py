"""What a drill has shown, by the runs that it took. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from cloudtrain.runs.failure import explain
from cloudtrain.runs.state import RunState
from cloudtrain.submission.drills.compared import Trained
from cloudtrain.submission.drills.history import RunHistory, began_anew, steps_done_again


class Verdict(Enum):
    """How a drill has ended."""

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
        """Whether the job is ready for this: it recovers, or says what was wrong."""
        return self not in (Verdict.UNNAMED, Verdict.UNNOTICED, Verdict.NOT_INJECTED)


@dataclass(frozen=True, kw_only=True, slots=True)
class DrillRun:
    """One run of a drilled job, after its end or at the drill's own limit."""

    run: str
    """Its id."""
    state: RunState
    history: RunHistory
    trained: Trained
    overdue: bool = False
    """Whether it was ended by the drill, since nothing else had ended it within the drill's limit.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A verdict with what it rests on."""

    verdict: Verdict
    seen: str = ""
    """What the job's own report says of the fault; empty if it says nothing."""
    compared: str = ""
    """By what the parameters were compared."""
    differing: tuple[str, ...] = ()
    """Which files or metrics differ from those of the undisturbed run."""
    steps_lost: float | None = None
    """Steps that were done again; None if the job reports no steps, or did not recover."""
    rerun: bool = False
    """Whether it took a run of its own to go on."""
    began_anew: bool = False
    """Whether it did its first step again, and did not say that it went on from a checkpoint."""
    saved_at_stop: bool | None = None
    """Whether it has saved a checkpoint when it was told to stop; None: it was not."""


def is_named(state: RunState) -> bool:
    """Whether the report of a run that did not succeed says what was wrong, and not merely that
    something was.
    """
    cause = state.error
    if cause is None:
        return bool(state.reason)
    return not cause.consequence and not (cause.rank < 0 and cause.exception == "exit")


def judge(reference: DrillRun, runs: Sequence[DrillRun]) -> Finding:
    """The verdict on a drill by its runs, the one with the fault first; the last decides whether
    the job recovers.
    """
    last = runs[-1]
    seen = next((text for each in runs if (text := _seen(each))), "")
    if any(each.overdue for each in runs):
        return Finding(verdict=Verdict.UNNOTICED, seen=seen, rerun=len(runs) > 1)
    if last.state.state != "succeeded":
        named = is_named(last.state)
        verdict = Verdict.NAMED if named else Verdict.UNNAMED
        return Finding(verdict=verdict, seen=explain(last.state), rerun=len(runs) > 1)
    differing = tuple(last.trained.differences(reference.trained))
    verdict = Verdict.OTHER if differing else Verdict.SAME
    if not reference.trained.by or last.trained.by != reference.trained.by:
        verdict = Verdict.NOT_COMPARED
        differing = ()
    return Finding(
        verdict=verdict,
        seen=seen,
        compared=reference.trained.by if verdict is not Verdict.NOT_COMPARED else "",
        differing=differing,
        steps_lost=steps_done_again([each.history for each in runs], reference.history),
        rerun=len(runs) > 1,
        began_anew=began_anew([each.history for each in runs], reference.history),
    )


def _seen(run: DrillRun) -> str:
    """What the run says of its trouble: why its ranks were restarted, or else why it has ended."""
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
    """Whether a run that was stopped had to be killed, since it did not end within the grace
    period.
    """
    return any(ended.forced for ended in state.nodes_ended.values()) or "by force" in state.reason
