"""Parts of a step under strategies that split a model, counted by the rules of counts.py."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.pipelining import PipelineStage, _utils
from torch.distributed.tensor.debug import _clear_sharding_prop_cache
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from cloudtrain_trainer import rules, strategies, tasks
from cloudtrain_trainer.arguments import parse
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.strategies.ddp import DistributedData
from cloudtrain_trainer.strategies.pipeline import Pipeline
from cloudtrain_trainer.tasks import Task, gpt
from cloudtrain_trainer.training import step as step_module
from cloudtrain_trainer.training.step import Step
from cloudtrain_trainer.trees import local_part
from tests.support.counts import Counts, Message, counting


class Plan(NamedTuple):
    """A rank's part of a step."""

    shards: dict[str, list[int]]
    """Shapes of its parameters."""
    messages: list[Message]
    waits: list[str]
    """Operations that the host waits for."""


def plan(ranks: Ranks, shape: gpt.Shape, flags: str) -> Plan:
    """Return the plan of one of these ranks, when later steps are the same. Called by all ranks.

    `flags`: a strategy and a batch that gives each micro-batch one sequence.
    """
    step = _step(ranks, shape, flags)
    parts = step.accumulation_steps
    samples = step.batch_size // step.strategy.data_ranks // parts
    # DDP makes its buckets anew after its first backward pass.
    warm_up = 2 if isinstance(step.wrapped, DistributedDataParallel) else 1
    counts = _count(_train(step, parts, samples, shape.context), warm_up)

    return Plan(_shards(step), counts.messages, counts.waits)


def plan_alone(size: int, rank: int, shape: gpt.Shape, flags: str) -> Plan:
    """Return the plan of a rank in a world of this size, whose other ranks do not exist."""
    with fake_group(size, rank), known_shapes(shape):
        return plan(Ranks(), shape, flags)


def shards_alone(size: int, rank: int, shape: gpt.Shape, flags: str) -> dict[str, list[int]]:
    """Return the shards of such a rank, without a step."""
    with fake_group(size, rank):
        return _shards(_step(Ranks(), shape, flags))


def _step(ranks: Ranks, shape: gpt.Shape, flags: str) -> Step:
    splits = rules.Capabilities(1, shape.tensor_limit, shape.layers)
    with patch.dict(rules.TASKS["gpt"], tiny=splits):
        options = parse(["--task", "gpt", *flags.split()])
    strategy = strategies.build(ranks, options)
    strategy.start()
    assert options.batch_size is not None

    with _on_gpus():
        return Step(_task(shape), strategy, options, options.batch_size)


def _shards(step: Step) -> dict[str, list[int]]:
    return {name: list(local_part(p).shape) for name, p in step.model.named_parameters()}


@cache
def _task(shape: gpt.Shape) -> Task:
    with patch.dict(gpt.SIZES, tiny=shape):
        return tasks.build("gpt", 0)


def _count(step: Callable[[], None], warm_up: int = 1) -> Counts:
    for _ in range(warm_up):
        step()
    with counting() as counts:
        step()
    return counts


def _train(step: Step, parts: int, batch: int, tokens: int) -> Callable[[], None]:
    """A function that trains on the same tokens again. `parts`: accumulation steps of `batch`
    sequences each.
    """
    inputs = torch.zeros(batch, tokens, dtype=torch.long)
    step.wrapped.train()
    return lambda: step.train_step(iter([(inputs, inputs)] * parts), 10, 100)


@contextmanager
def _on_gpus() -> Iterator[None]:
    """Make the trainer treat CPU tensors like GPU tensors."""
    before = step_module.FUSED_ON
    step_module.FUSED_ON = ("cpu",)
    try:
        yield
    finally:
        step_module.FUSED_ON = before


@contextmanager
def known_shapes(shape: gpt.Shape) -> Iterator[None]:
    """Tell stages of a pipeline the shapes that they would ask of their missing neighbours: all are
    equal.
    """

    def receive(stage: Any, source: int) -> Any:
        activations = torch.empty(1, shape.context, shape.width, device="meta")
        is_forward = source < stage.stage_index
        meta = _utils._TensorMeta(
            activations.shape, activations.stride(), torch.float32, is_forward
        )
        return (
            _utils._StageForwardMeta((meta,)) if is_forward else _utils._StageBackwardMeta((meta,))
        )

    with (
        patch.object(PipelineStage, "_recv_meta", receive),
        patch.object(PipelineStage, "_send_meta", lambda *_: None),
    ):
        yield


@contextmanager
def fake_group(size: int, rank: int) -> Iterator[None]:
    """Make this process a rank of a group without other ranks, whose messages go nowhere."""
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
        patch.object(Ranks, "init_process_group", lambda *_: None),
        patch.object(DistributedData, "replicated", SendingBuckets),
        patch.object(Pipeline, "replicated", SendingBuckets),
    ):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
        try:
            yield
        finally:
            dist.destroy_process_group()
            # Operations on DTensors are cached with the names of groups, which other ranks reuse.
            _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]


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
