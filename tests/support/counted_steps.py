"""Steps of the shared trainer, counted by the rules of counts.py."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from cloudtrain_trainer import strategies
from cloudtrain_trainer.arguments import parse
from cloudtrain_trainer.own_task import complete
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.tasks import Task
from cloudtrain_trainer.training import step as step_module
from cloudtrain_trainer.training.step import Step
from tests.support import decoder
from tests.support.counts import Counts, counting, fake_tensors
from tests.support.decoder import GPT2, Shape

OWN = ["--task", "tests.support.decoder:task"]


def count_ours(batch: int, *flags: str, shape: Shape = GPT2) -> Counts:
    """Count a step of a decoder in bf16 on this many sequences."""
    options = parse([*OWN, "--amp", "bf16", "--clip-norm", "1", *flags, f"--batch-size={batch}"])
    with on_gpus(), fake_tensors():
        step = Step(task_of(shape), Ranks(), options, batch)
        return count(step, options.accumulate, batch // options.accumulate, shape.context)


def count_rank(size: int, rank: int, flags: str, shape: Shape) -> Counts:
    """Count a step of one rank of DDP, in a world whose other ranks do not exist.

    `flags`: a batch that gives each micro-batch one sequence.
    """
    with fake_group(size, rank), on_gpus():
        options = parse([*OWN, "--strategy", "ddp", *flags.split()])
        assert options.batch_size is not None
        step = Step(task_of(shape), Ranks(), options, options.batch_size)
        # DDP makes its buckets anew after its first backward pass.
        return count(step, options.accumulate, 1, shape.context, warm_up=2)


def task_of(shape: Shape) -> Task:
    """Return a task whose batches are weighed by their samples: fake labels cannot be counted."""
    return replace(complete(decoder.task(0, shape, samples=1), 0, "task"), weight=None)


def count(step: Step, parts: int, batch: int, tokens: int, warm_up: int = 1) -> Counts:
    """Count a step on the same tokens as those before it. `parts`: accumulation steps of `batch`
    sequences each.
    """
    inputs = torch.zeros(batch, tokens, dtype=torch.long)
    step.wrapped.train()

    def train() -> None:
        step.train_step(iter([(inputs, inputs)] * parts), 10, 100)

    for _ in range(warm_up):
        train()
    with counting() as counts:
        train()

    return counts


@contextmanager
def on_gpus() -> Iterator[None]:
    """Make the trainer treat CPU tensors like GPU tensors."""
    before = step_module.FUSED_ON
    step_module.FUSED_ON = ("cpu",)
    try:
        yield
    finally:
        step_module.FUSED_ON = before


@contextmanager
def fake_group(
    size: int, rank: int, replicated: Callable[..., Any] | None = None
) -> Iterator[None]:
    """Make this process a rank of a group without other ranks, whose messages go nowhere.

    `replicated`: the class of DDP to use.
    """
    world = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
    }
    torch.set_num_threads(1)  # tensors are small
    with (
        torch.random.fork_rng(devices=[]),
        patch.dict(os.environ, world),
        patch.object(strategies, "DistributedDataParallel", replicated or SendingBuckets),
    ):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
        try:
            yield
        finally:
            dist.destroy_process_group()


class SendingBuckets(DistributedDataParallel):
    """DDP that returns its own gradients, since a fake message returns nothing."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.register_comm_hook(self.process_group, _send_bucket)


def _send_bucket(group: Any, bucket: Any) -> torch.futures.Future[Tensor]:
    dist.all_reduce(bucket.buffer(), group=group)
    sent: torch.futures.Future[Tensor] = torch.futures.Future()
    sent.set_result(bucket.buffer())
    return sent


_send_bucket.__annotations__.clear()  # torch wants its own classes there, not their names
