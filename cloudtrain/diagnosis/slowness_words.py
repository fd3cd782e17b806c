"""Words for the verdict on a slow run: what takes the time, and what to change."""

from __future__ import annotations

from dataclasses import dataclass

from cloudtrain.units import format_duration

SAVING_GOAL = 0.02
"""Goal for the share of the time that saving takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """Setup of a run, for remedies."""

    ranks: int = 1
    nodes: int = 1
    has_gpus: bool = False
    trainer: bool = True
    """True for the shared trainer, whose options the remedies name."""
    strategy: str = "ddp"
    accumulate: int = 1
    checkpoint_every: float | None = None
    """Seconds."""


_DOING = {
    "data": "it waits for its data",
    "compute": "its forward and backward passes take longer",
    "optimizer": "its optimizer takes longer",
    "other": "it does something else between its steps",
}


def sentence_for(
    cause: str, share: float, setup: Setup, rank: int | None, phase: str, idle: float
) -> str:
    """Return what takes the time, as a sentence without its full stop."""
    of = f"{share:.0%} of the time"
    workers = "GPUs" if setup.has_gpus else "processes"
    if cause == "straggler":
        return f"rank {rank} is slower than the others, which wait for it {of}: {_DOING[phase]}"
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
            f"the steps are too small for {setup.ranks} {workers}: {of} goes into agreeing, not"
            " computing"
        ),
        "saving": f"training waits for checkpoints {of}",
        "evaluation": f"evaluations take {of}",
        "compute": f"it is not slow for any one reason: it computes {of}",
    }[cause]


def change_for(cause: str, share: float, setup: Setup, rank: int | None, phase: str) -> str:
    """Return the recommended change; empty for none."""
    is_own_program = not setup.trainer
    if cause == "straggler":
        return _about_straggler(rank, phase, setup)
    if cause == "other-work":
        return (
            "end what else runs there, or run no more ranks than the machine has cores that are"
            " free (cloudtrain top)"
        )
    return {
        "input": (
            "num_workers of the DataLoader, pin_memory and persistent_workers; or data that is"
            " cheaper to decode"
            if is_own_program
            else (
                "--workers N (more loader processes per rank), or data that is cheaper to read and"
                " decode"
            )
        ),
        "communication": _less_communication(setup),
        "too-small": _more_per_step(setup),
        "saving": _rarer_checkpoints(share, setup),
        "evaluation": (
            "evaluate more rarely, or on fewer samples"
            if is_own_program
            else "--eval-every N (epochs) or a larger --eval-every-steps"
        ),
        "compute": "",
    }[cause]


def _about_straggler(rank: int | None, phase: str, setup: Setup) -> str:
    where = f"the machine of rank {rank}" if setup.nodes > 1 else "this machine's other work"
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
    if setup.strategy == "ddp":
        return (
            f"--accumulate {more} with a batch {more} times as large exchanges gradients {more}x as"
            " rarely"
        )
    return (
        f"--accumulate {more} with --gradient-sync last, or --strategy ddp if the model fits on one"
        " device"
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
