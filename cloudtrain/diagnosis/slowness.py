"""Verdict on a slow run: its cause, share of the time, confidence, and what to change.

It is computed from step times without the first steps of a process. A cause is named if it costs
enough to be worth a change.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from cloudtrain.diagnosis.step_costs import (
    Ranks,
    compute_share,
    confidence_of,
    costs,
    find_lasting_straggler,
    largest_cost,
    without_single,
)
from cloudtrain.errors import StorageError
from cloudtrain.runs.folder import RunFolder
from cloudtrain.runs.record import RunRecord
from cloudtrain.runs.state import RunState
from cloudtrain.runs.step_times import PHASES, StepTimesHistory, Utilization
from cloudtrain.units import format_duration

LEAST_STEPS = 10
LEAST_SECONDS = 1.0
"""Minimum duration for a verdict, and minimum number of steps."""

BUSY_GPU_PERCENT = 40.0
"""Minimum use of a GPU that does not wait for its host."""

MIN_RUN_SECONDS = 60.0
"""Minimum duration of training for a verdict at the end of a run."""

MIN_CONFIDENCE = 0.8
MIN_SHARE = 0.2
"""Minimum confidence and share of the time for a verdict at the end of a run."""

SAVING_GOAL = 0.02
"""Goal for the share of the time that saving takes."""

_HOOK = (
    "to measure it, cloudtrain submit --timings; or add: from cloudtrain_job import timed;"
    " for batch in timed(loader): ..."
)

_SLOWER_PHASE = {
    "data": "it waits for its data",
    "compute": "its forward and backward passes take longer",
    "optimizer": "its optimizer takes longer",
    "other": "it does something else between its steps",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """Setup of a run, for remedies."""

    ranks: int = 1
    nodes: int = 1
    has_gpus: bool = False
    trainer: bool = True
    """True for the shared trainer, whose options the remedies name."""
    accumulate: int = 1
    checkpoint_every: float | None = None
    """Seconds."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slowness:
    """Verdict on the speed of a run."""

    cause: str
    """Cause: input, communication, straggler, other-work, too-small, saving or evaluation.

    compute: the run is not slow; unknown: too little data.
    """
    rank: int | None = None
    """Straggler, or rank that shares its core with other work."""
    phase: str = ""
    """Slower phase of the straggler."""
    share: float = 0.0
    """Share of the time that the cause takes, 0 to 1; of `compute`, the share of computing."""
    confidence: float = 0.0
    """Confidence, 0 to 1: the share of the run that agrees, reduced for short runs."""
    sentence: str = ""
    """Verdict for people."""
    change: str = ""
    """Recommended change; empty for none."""
    shares: Mapping[str, float] | None = None
    """Mean share of the time over the ranks, by phase."""

    @property
    def gain(self) -> float:
        """Maximum speed-up without the cause."""
        if self.cause in ("compute", "unknown"):
            return 1.0

        return 1 / max(1 - self.share, 0.01)

    @property
    def is_slow(self) -> bool:
        """True if the run is slow for a known cause."""
        return self.cause not in ("compute", "unknown")

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON, with the gain."""
        return {**asdict(self), "gain": round(self.gain, 2)}


def diagnose_slowness(folder: RunFolder, state: RunState) -> Slowness:
    """Return the verdict on a run until now. Ignore a plan that cannot be read."""
    return why_slow(state.step_times, setup_of(folder, state), state.utilization)


def clear_slowness(folder: RunFolder, state: RunState) -> Slowness | None:
    """Return the verdict if a run was slow for one clear reason, and long enough; else None."""
    wall = max((sums.wall for sums in state.step_times.totals().values()), default=0.0)
    if wall < MIN_RUN_SECONDS:
        return None

    slowness = diagnose_slowness(folder, state)
    if not slowness.is_slow:
        return None
    if slowness.confidence < MIN_CONFIDENCE or slowness.share < MIN_SHARE:
        return None

    return slowness


def setup_of(folder: RunFolder, state: RunState) -> Setup:
    """Return the setup of a run, with defaults for unknown values."""
    from cloudtrain.spec.options_of_words import options_of  # it loads the reader of YAML

    spec: Mapping[str, Any] = {}
    with suppress(StorageError):
        spec = RunRecord(folder).spec

    ranks = max(1, len(state.step_times.totals()), state.nodes * state.processes)
    values, _ = options_of((spec.get("args") or {}).get("argv") or [])
    accumulate = values.get("accumulate", 1)

    return Setup(
        ranks=ranks,
        nodes=max(1, state.nodes),
        has_gpus=bool(state.utilization.gpus),
        trainer=not spec.get("entrypoint"),
        accumulate=accumulate if isinstance(accumulate, int) else 1,
        checkpoint_every=(spec.get("checkpoints") or {}).get("every"),
    )


def why_slow(
    times: StepTimesHistory, setup: Setup, utilization: Utilization | None = None
) -> Slowness:
    """Return the verdict on a run until now."""
    totals = times.totals()
    intervals = times.intervals()
    wall = max((sums.wall for sums in totals.values()), default=0.0)

    if times.steps < LEAST_STEPS or wall < LEAST_SECONDS:
        return _without_times(times, setup, utilization)

    straggler = find_lasting_straggler(totals, intervals)
    shares = without_single(costs(totals, times.message_mb, straggler), intervals)
    cause = largest_cost(shares)
    if cause not in ("straggler", "other-work"):
        straggler = None

    idle = _idle_gpu_share(utilization)
    if not cause and idle and setup.has_gpus:
        cause = "too-small"
        shares["too-small"] = idle

    rank = None
    phase = ""
    if straggler:
        rank = straggler.rank
        phase = straggler.phase

    confidence = confidence_of(cause, intervals, times.message_mb, rank)
    if cause:
        share = round(shares[cause], 3)
    else:
        cause = "compute"
        share = round(compute_share(totals), 3)

    sentence = sentence_for(cause, share, setup, rank, phase, idle)
    if setup.ranks > 1 and not any("communication" in sums.seconds for sums in totals.values()):
        sentence += "; communication: not measured"

    return Slowness(
        cause=cause,
        rank=rank,
        phase=phase,
        share=share,
        confidence=round(confidence, 2),
        sentence=sentence,
        change=change_for(cause, share, setup, rank, phase),
        shares={name: round(_mean_share(totals, name), 3) for name in PHASES},
    )


def _without_times(
    times: StepTimesHistory, setup: Setup, utilization: Utilization | None
) -> Slowness:
    """Return a verdict by the use of GPUs, without step times."""
    percent = utilization.gpu_percent if utilization else None
    reports = bool(times.steps or times.warm_up)
    if reports or percent is None:
        few = "no step times were reported"
        if reports:
            few = f"only {times.steps} steps after the first ones"

        if times.steps >= LEAST_STEPS:
            few = "all steps after the first ones took less than a second"

        change = "" if reports or setup.trainer else _HOOK
        return Slowness(cause="unknown", sentence=f"not known: {few}", change=change)

    if percent < BUSY_GPU_PERCENT:
        sentence = (
            f"the GPUs were busy {percent:.0f} % of the time: what they waited for was not reported"
        )
        return Slowness(
            cause="unknown",
            share=round(1 - percent / 100, 3),
            sentence=sentence,
            change=_HOOK,
        )

    return Slowness(
        cause="compute",
        share=round(percent / 100, 3),
        confidence=0.5,
        sentence=(
            f"it is not slow by what the launchers saw: the GPUs were busy {percent:.0f} % of the"
            " time"
        ),
    )


def _idle_gpu_share(utilization: Utilization | None) -> float:
    percent = utilization.gpu_percent if utilization else None
    if percent is not None and percent < BUSY_GPU_PERCENT:
        return 1 - percent / 100

    return 0.0


def _mean_share(totals: Ranks, phase: str) -> float:
    return sum(sums.share(phase) for sums in totals.values()) / len(totals)


def sentence_for(
    cause: str, share: float, setup: Setup, rank: int | None, phase: str, idle: float
) -> str:
    """Return what takes the time, as a sentence without its full stop."""
    of = f"{share:.0%} of the time"
    workers = "GPUs" if setup.has_gpus else "processes"

    if cause == "straggler":
        return (
            f"rank {rank} is slower than the others, which wait for it {of}: {_SLOWER_PHASE[phase]}"
        )
    if cause == "too-small" and idle:
        return f"the steps are too small for the GPU, which is idle {of}"

    if cause == "other-work":
        return (
            f"other work on its machine takes the core of rank {rank}: the other ranks wait for it"
            f" {of}"
        )

    return {
        "input": f"training waits for its data {of}",
        "communication": (
            f"training waits {of} for gradients to be exchanged between {setup.ranks} ranks"
        ),
        "too-small": (
            f"the steps are too small for {setup.ranks} {workers}: {of} is spent on communication, not"
            " computing"
        ),
        "saving": f"training waits for checkpoints {of}",
        "evaluation": f"evaluations take {of}",
        "compute": f"it is not slow for any one reason: it computes {of}",
    }[cause]


def change_for(cause: str, share: float, setup: Setup, rank: int | None, phase: str) -> str:
    """Return the recommended change; empty for none."""
    if cause == "straggler":
        return _about_straggler(rank, phase, setup)
    if cause == "other-work":
        return (
            "end what else runs there, or run no more ranks than the machine has cores that are"
            " free (cloudtrain top)"
        )

    if cause == "input":
        return _faster_input(setup)
    if cause == "communication":
        return _less_communication(setup)
    if cause == "too-small":
        return _more_per_step(setup)
    if cause == "saving":
        return _rarer_checkpoints(share, setup)
    if cause == "evaluation":
        return _rarer_evaluations(setup)

    return ""


def _faster_input(setup: Setup) -> str:
    if setup.trainer:
        return (
            "--workers N (more loader processes per rank), or data that is cheaper to read and"
            " decode"
        )

    return (
        "num_workers of the DataLoader, pin_memory and persistent_workers; or data that is cheaper"
        " to decode"
    )


def _rarer_evaluations(setup: Setup) -> str:
    if setup.trainer:
        return "--eval-every N (epochs) or a larger --eval-every-steps"

    return "evaluate more rarely, or on fewer samples"


def _about_straggler(rank: int | None, phase: str, setup: Setup) -> str:
    where = "this machine's other work"
    if setup.nodes > 1:
        where = f"the machine of rank {rank}"

    if phase == "data":
        return f"check what rank {rank} reads: its files may be larger, or its disk slower"
    return (
        f"look at what rank {rank} does that others do not, at {where} and, on a GPU, its"
        " temperature and clock (cloudtrain top); or share the work out evenly"
    )


def _less_communication(setup: Setup) -> str:
    if not setup.trainer:
        return (
            "accumulate gradients (no_sync), exchange them in bf16 (a DDP communication hook), or"
            " use fewer ranks"
        )

    more = setup.accumulate * 4
    return (
        f"--accumulate {more} with a batch {more} times as large exchanges gradients {more}x as"
        " rarely"
    )


def _more_per_step(setup: Setup) -> str:
    batch = "a larger --batch-size" if setup.trainer else "a larger batch"
    if setup.ranks == 1:
        return f"{batch}, or torch.compile: fewer, larger kernels"
    return f"fewer processes (resources.processes; one may be as fast), or {batch}"


def _rarer_checkpoints(share: float, setup: Setup) -> str:
    if setup.checkpoint_every is None:
        return "save more rarely: checkpoints.every"
    # Only the training between two checkpoints counts: its time stays the same.
    interval = setup.checkpoint_every * (share / (1 - min(share, 0.99))) / SAVING_GOAL
    return (
        f"checkpoints.every: {format_duration(interval)} instead of"
        f" {format_duration(setup.checkpoint_every)}"
    )
