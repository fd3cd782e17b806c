"""Report the batch of a run: in total, per device, and whether it is small for the machine."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from cloudtrain_trainer.training.loop import Loop

FEW_SAMPLES = 8
FEW_TOKENS = 4096
"""With fewer per forward pass on a device, common models hardly fill a GPU: a rule of thumb."""


class BatchShape(NamedTuple):
    """How a global batch is split."""

    samples: int
    """Samples per optimizer step, over all ranks."""
    shares: int
    """Ranks, or groups of ranks that see the same samples."""
    group: int
    """Ranks in such a group."""
    passes: int
    """Forward and backward passes per share and step."""

    @property
    def per_pass(self) -> int:
        """Samples of the largest pass of a share."""
        return math.ceil(self.samples / (self.shares * self.passes))


def log_batch(loop: Loop) -> None:
    """Log the size of the batch at the start of a run, unless it only evaluates."""
    if loop.options.eval_only:
        return
    strategy = loop.strategy
    shares = loop.strategy.data_ranks
    passes = loop.step.accumulation_steps * strategy.n_microbatches
    shape = BatchShape(loop.batches.batch_size, shares, loop.ranks.size // shares, passes)
    device = "GPU" if loop.device.type == "cuda" else "rank"
    for line in describe(shape, loop.task.unit, device, loop.task.tokens):
        loop.ranks.log(line)


def describe(shape: BatchShape, unit: str, device: str, tokens: int = 0) -> list[str]:
    """Return the lines. `unit`: of samples. `device`: of a rank. `tokens`: per sample, or 0."""
    who = f"{device}" if shape.group == 1 else f"group of {shape.group} {device}s"
    least = shape.samples // shape.shares
    most = math.ceil(shape.samples / shape.shares)
    samples_per_share = str(most) if least == most else f"{least} or {most}"
    line = f"batch: {shape.samples} {unit} per step over all ranks, {samples_per_share} per {who}"
    if shape.passes > 1:
        line += f", in {shape.passes} micro-batches of {shape.per_pass}"
    return [line, *_too_small(shape, unit, who, tokens)]


def _too_small(shape: BatchShape, unit: str, who: str, tokens: int) -> list[str]:
    enough = max(1, FEW_TOKENS // tokens) if tokens else FEW_SAMPLES
    if shape.per_pass >= enough or shape.shares * shape.passes == 1:
        return []
    reason = f"fewer than {FEW_TOKENS} tokens" if tokens else f"fewer than {FEW_SAMPLES}"
    hints = [f"--batch-size {enough * shape.shares * shape.passes}"]
    if shape.passes > 1:
        hints.append("a lower --accumulate (--microbatches of a pipeline)")
    if shape.shares > 1:
        hints.append("fewer ranks")
    return [
        f"the batch is small for this machine: a {who} computes {shape.per_pass} {unit} at once,"
        f" {reason}, so that starting kernels and sending gradients take most of the time."
        f" {' or '.join(hints)} would use it better"
    ]
