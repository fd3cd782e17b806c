"""Scenarios of drills and the verdict on each: whether models are the same, and what to change."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

from cloudtrain.providers.rehearsal.base import RunPaths
from cloudtrain.runs.state import RunState, explain
from cloudtrain.submission.drills.history import RunHistory, began_anew, steps_done_again

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


WEIGHT_FILES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".npz", ".h5", ".keras", ".joblib")
"""Suffixes of weights in the output; in the model's folder every file counts."""

MAX_FILES = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """Trained parameters of a run, as far as they can be compared."""

    by: str = ""
    """Basis such as `parameters_sha256` or `the files of the model`; empty for none."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Digests of files by path, or metrics by name."""

    def differences(self, reference: Trained) -> list[str]:
        """Return the names of files or metrics that differ."""
        names = self.values.keys() | reference.values.keys()
        return sorted(name for name in names if self.values.get(name) != reference.values.get(name))


def trained(run: Path, state: RunState) -> Trained:
    """Return the most certain results of a run. `run`: its folder."""
    paths = RunPaths(run)
    if state.result and state.result.parameters_sha256:
        return Trained(
            by="parameters_sha256", values={"parameters_sha256": state.result.parameters_sha256}
        )

    if files := _digests(paths.model, ()):
        return Trained(by="the files of the model", values=files)
    if files := _digests(paths.output, WEIGHT_FILES):
        return Trained(by="the files of weights in the output", values=files)

    if state.metrics:
        return Trained(
            by="the last metrics",
            values={name: repr(value) for name, value in state.metrics.items()},
        )

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

    restarts: int | None
    """limits.restarts; None with launcher: none, which has no restarts in place."""
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


def advice(fault: Fault, finding: Finding, faulty: DrillRun | None, job: JobFacts) -> list[str]:
    """Return changes, the most useful first; empty for a job that is ready.

    `faulty`: the run that got the fault.
    """
    if finding.verdict in (Verdict.SKIPPED, Verdict.NOT_INJECTED):
        return []
    return [*_of_parameters(finding), *_of_fault(fault, finding, faulty, job)]


def _of_parameters(finding: Finding) -> Iterator[str]:
    if finding.verdict is Verdict.OTHER:
        names = ", ".join(finding.differing[:3]) + (", …" if len(finding.differing) > 3 else "")
        yield (
            f"the result differs from the undisturbed run ({names}): seed the program, and restore"
            " all that the next step depends on. Besides model and optimizer that is the"
            " scheduler, the random generators, and the place in the data (a seed for each epoch,"
            " sampler.set_epoch)"
        )


def advice_on_all(findings: Sequence[Finding], job: JobFacts) -> list[str]:
    """Return changes that do not depend on the drill."""
    changes = [] if job.saves else [SAVES_NOTHING]
    if job.saves and any(
        finding.verdict is Verdict.NOT_COMPARED and finding.steps_lost is None
        for finding in findings
    ):
        changes.append(LEAVES_NOTHING)

    return changes


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
