"""The peak of a real training step of the trainer, and a rehearsal's estimate of it."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch.distributed as dist

from cloudtrain_trainer import trees
from cloudtrain_trainer.arguments import parse
from cloudtrain_trainer.memory import precision, rehearse
from cloudtrain_trainer.own.task import from_options
from cloudtrain_trainer.ranks import Ranks
from tests.entrypoints.loss_curves import begin
from tests.support.allocations import Allocations

STEPS = 3


def measured(argv: Sequence[str], ranks: Ranks) -> int:
    """The most bytes that torch's CPU allocator had handed out to this rank during the steps of a
    training.

    Bytes of the data set do not count: it is in the host's memory.
    """
    gc.collect()  # what an earlier training left is not freed while this one is measured
    task = from_options(parse(list(argv)))
    with Allocations() as allocations:
        loop = begin(task, list(argv), ranks)
        loop.step.wrapped.train()
        allocations.mark()
        loaded = list(islice(loop.batches.load(0, 0), STEPS * loop.step.accumulation_steps))
        batches = map(_copy, loaded)
        for number in range(STEPS):
            allocations.mark()
            loop.step.train_step(batches, number, STEPS)
    before, after, *_ = allocations.at_marks()
    peak = max(allocations.peaks()[2:]) - (after - before)
    if dist.is_initialized():
        dist.destroy_process_group()
    return peak


def _copy(batch: Any) -> Any:
    return trees.map_tensors(lambda t: t.clone(), batch)


def estimated(argv: Sequence[str]) -> int:
    """The same from a rehearsal. `WORLD_SIZE` in the environment says how many ranks the options
    are for.
    """
    options = parse(list(argv))
    return rehearse(options, like_gpu=False, amp=precision(options.amp, "")).peak
