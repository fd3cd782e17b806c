"""Verdict on a drill: what a job reported, what it lost, and whether its models are the same."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Any

from cloudtrain.runs.paths import RunPaths
from cloudtrain.runs.state import RunState, explain
from cloudtrain_wire.events import (
    RESTART_ELSEWHERE,
    Checkpoint,
    Event,
    Metrics,
    Progress,
    Restarted,
    Resumed,
)

WEIGHT_FILES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".npz", ".h5", ".keras", ".joblib")
"""Suffixes of weights in the output; in the model's folder every file counts."""
MAX_FILES = 1000


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
class Trained:
    """Trained parameters of a run, as far as they can be compared."""

    by: str = ""
    """Basis such as `parameters_sha256` or `the files of the model`; empty for none."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Digests of files by path, or metrics by name."""


def trained(run: Path, state: RunState) -> Trained:
    """Return the most certain results of a run. `run`: its folder."""
    paths = RunPaths(run)
    digest = state.result.parameters_sha256 if state.result else ""
    if digest:
        return Trained(by="parameters_sha256", values={"parameters_sha256": digest})
    if files := _digests(paths.model, ()):
        return Trained(by="the files of the model", values=files)
    if files := _digests(paths.output, WEIGHT_FILES):
        return Trained(by="the files of weights in the output", values=files)
    if state.metrics:
        metrics = {name: repr(value) for name, value in state.metrics.items()}
        return Trained(by="the last metrics", values=metrics)

    return Trained()


def _digests(folder: Path, suffixes: tuple[str, ...]) -> dict[str, str]:
    """Return the SHA-256 of each file below a folder by path; {} for none or too many."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    files = [path for path in files if not suffixes or path.suffix in suffixes]
    if len(files) > MAX_FILES:
        return {}

    return {str(path.relative_to(folder)): _digest(path) for path in files}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@dataclass(frozen=True, kw_only=True, slots=True)
class EndedRun:
    """Run of a drill, after its end."""

    run: str
    """Run id."""
    state: RunState
    events: Sequence[Event]
    trained: Trained
    saves: int = 0
    """Number of checkpoints."""
    reports_saves: bool = False
    """True if its program reports them."""
    is_overdue: bool = False
    """True if the drill ended it at its limit."""

    @property
    def steps(self) -> list[float]:
        """Reported steps in order; empty for a program without steps."""
        return [
            event.step
            for event in self.events
            if isinstance(event, Metrics | Progress) and event.step is not None
        ]

    @property
    def seconds(self) -> float:
        """Seconds from its submit to its end."""
        return max(0.0, self.state.ended - self.state.created)

    @property
    def was_killed(self) -> bool:
        """True if it was stopped and killed after the grace period."""
        nodes = self.state.nodes_ended.values()
        return any(node.forced for node in nodes) or "by force" in self.state.reason


@dataclass(kw_only=True, slots=True)
class Result:
    """Verdict on a drill with its evidence."""

    drill: str
    verdict: Verdict
    injected: str = ""
    """Fault and its moment; the reason of a drill that was skipped."""
    runs: Sequence[EndedRun] = ()
    """Run with the fault, and its rerun if it needed one to continue."""
    report: str = ""
    """Message about the fault in the job's report; empty for none."""
    remedy: str = ""
    """Advice of the job's report; empty for none."""
    compared: str = ""
    """Basis of the comparison of parameters."""
    differing: Sequence[str] = ()
    """Files or metrics that differ from the undisturbed run."""
    steps_lost: float | None = None
    """Repeated steps; None if the job reports none or did not recover."""
    began_anew: bool = False
    """True if it repeated its first step and did not report a resume."""
    saved_at_stop: bool = True
    """False if it could have saved a checkpoint at a stop and did not."""
    change: Sequence[str] = ()
    """What to change, the most useful first; empty for a job that is ready."""

    @property
    def is_rerun(self) -> bool:
        """True if it needed another run to continue."""
        return len(self.runs) > 1

    @property
    def seconds(self) -> float:
        """Seconds of its runs."""
        return sum(run.seconds for run in self.runs)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON."""
        return {
            "drill": self.drill,
            "verdict": self.verdict.value,
            "fine": self.verdict.is_fine,
            "injected": self.injected,
            "seen": self.report,
            "remedy": self.remedy or None,
            "compared_by": self.compared or None,
            "differing": list(self.differing),
            "steps_lost": self.steps_lost,
            "seconds": round(self.seconds, 1),
            "rerun": self.is_rerun,
            "runs": [run.run for run in self.runs],
            "change": list(self.change),
        }


def judge(drill: str, reference: EndedRun, runs: Sequence[EndedRun], injected: str = "") -> Result:
    """Return the verdict on a drill. The faulty run comes first; the last shows the recovery."""
    last = runs[-1]
    reports = filter(None, map(_report_of, runs))
    result = Result(
        drill=drill,
        verdict=Verdict.UNNOTICED,
        injected=injected,
        runs=runs,
        report=next(reports, ""),
    )

    if any(run.is_overdue for run in runs):
        return result

    if last.state.state != "succeeded":
        result.verdict = Verdict.NAMED if _is_named(last.state) else Verdict.UNNAMED
        result.report = explain(last.state)
        return result

    _count_repeated_steps(result, reference)
    result.compared = reference.trained.by
    if not result.compared or last.trained.by != result.compared:
        result.verdict = Verdict.NOT_COMPARED
        result.compared = ""
        return result

    values = last.trained.values
    wanted = reference.trained.values
    names = sorted(values.keys() | wanted.keys())
    result.differing = [name for name in names if values.get(name) != wanted.get(name)]
    result.verdict = Verdict.OTHER if result.differing else Verdict.SAME
    return result


def _is_named(state: RunState) -> bool:
    """Return whether a failed run's report names the cause, not only the failure."""
    cause = state.error
    if cause is None:
        return bool(state.reason)
    return not cause.consequence and not (cause.rank < 0 and cause.exception == "exit")


def _report_of(run: EndedRun) -> str:
    """Return the run's message about its fault: the reason of a restart or of its end."""
    for event in run.events:
        if isinstance(event, Restarted) and event.why not in ("", RESTART_ELSEWHERE):
            return event.why

    state = run.state.state
    is_silent = (
        run.is_overdue or state == "succeeded" or (state == "stopped" and not run.was_killed)
    )
    if is_silent:
        return ""

    return explain(run.state)


def _count_repeated_steps(result: Result, reference: EndedRun) -> None:
    """Set the number of steps that restarts and reruns repeated, and whether one began anew.

    A program that reports no resume has resumed one report before its first step.
    """
    steps = sorted(set(reference.steps))
    if not steps:
        return

    stride = min((after - before for before, after in pairwise(steps)), default=1.0)
    reached = 0.0
    lost = 0.0

    for number, run in enumerate(result.runs):
        is_restart = number > 0
        for event in run.events:
            if isinstance(event, Restarted):  # every node reports it
                is_restart = True
            if not isinstance(event, Metrics | Progress | Checkpoint | Resumed):
                continue
            if event.step is None:
                continue

            if is_restart and not isinstance(event, Checkpoint):
                begin = event.step
                if not isinstance(event, Resumed):
                    begin = max(0.0, event.step - stride)
                    result.began_anew |= event.step <= steps[0] < reached and reference.saves > 0

                lost += max(0.0, reached - begin)
                reached = begin
                is_restart = False

            reached = max(reached, event.step)

    result.steps_lost = lost
