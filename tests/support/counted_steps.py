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
from torch.distributed.pipelining import PipelineStage, _utils
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from cloudtrain_trainer import strategies, tasks
from cloudtrain_trainer.arguments import parse
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.tasks import Draw, Task, gpt
from cloudtrain_trainer.training import step as step_module
from cloudtrain_trainer.training.step import Step
from tests.support.counts import Counts, counting, fake_tensors

GPT2_FLAGS = [
    "--task",
    "gpt",
    "--size",
    "gpt2-124m",
    "--data",
    "synthetic",
    "--amp",
    "bf16",
    "--clip-norm",
    "1",
]
LAYERS = 12


def count_ours(batch: int, *flags: str, layers: int = LAYERS) -> Counts:
    """Count a step of GPT-2 124M on this many sequences. `flags` add to the task's flags."""
    argv = [*GPT2_FLAGS, "--batch-size", str(batch), *flags]
    shape = replace(gpt.SIZES["gpt2-124m"], layers=layers)
    with _on_gpus(), patch.dict(gpt.SIZES, {"gpt2-124m": shape}):
        options = parse(argv)
        task = tasks.build("gpt", 0, **options.task_options)
        with fake_tensors():
            step = Step(task, strategies.build(Ranks(), options), options, batch)
            run = _train(step, options.accumulate, batch // options.accumulate, task.tokens)
            return _count(run)


def bytes_to_device(task: Task, samples: int) -> int:
    """Return the size of a batch of this many training samples when it leaves the host."""
    batch = task.train[Draw(0, [index % len(task.train) for index in range(samples)])]
    return sum(tensor.nbytes for tensor in batch)


def count_collectives(ranks: int, *flags: str, rank: int = 0) -> Counts:
    """Count a step of the tiny gpt on one rank of this many, with empty messages.

    `flags`: the strategy.
    """
    task = tasks.build("gpt", 0)
    with _on_gpus(), _fake_group(ranks, rank), _known_shapes(task.tokens):
        options = parse(["--task", "gpt", "--batch-size", "32", *flags])
        strategy = strategies.build(Ranks(), options)
        strategy.start()
        step = Step(task, strategy, options, 32)
        buckets = _record_buckets(step.wrapped)
        run = _train(
            step,
            step.accumulation_steps,
            32 // strategy.data_ranks // step.accumulation_steps,
            task.tokens,
        )
        run()  # makes the optimizer's state
        run()  # DDP makes its buckets anew after its first backward pass
        buckets.clear()
        counts = _count(run, warm_up=0)
        counts.collectives["all_reduce"] += len(buckets)
        counts.collective_bytes["all_reduce"] += sum(buckets)
        return counts


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
def _known_shapes(tokens: int) -> Iterator[None]:
    """Tell stages of a pipeline the shapes that they would ask of their missing neighbours: all are
    equal.
    """

    def receive(stage: Any, source: int) -> Any:
        # Samples of a micro-batch: a pipeline makes two for each of its ranks.
        samples = 32 // (2 * dist.get_world_size())
        shape = torch.Size((samples, tokens, gpt.SIZES["tiny"].width))
        is_forward = source < stage.stage_index
        meta = _utils._TensorMeta(
            shape, torch.empty(shape, device="meta").stride(), torch.float32, is_forward
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
def _fake_group(size: int, rank: int = 0) -> Iterator[None]:
    """This process is a rank of a group whose other ranks do not exist, and whose messages go
    nowhere.
    """
    world = {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
    }
    with torch.random.fork_rng(devices=[]), patch.dict(os.environ, world):
        init = Ranks.init_process_group
        Ranks.init_process_group = lambda *_: None  # type: ignore[method-assign]
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
        try:
            yield
        finally:
            dist.destroy_process_group()
            Ranks.init_process_group = init  # type: ignore[method-assign]


def _record_buckets(wrapped: torch.nn.Module) -> list[int]:
    """Record the bytes of each bucket that DDP sends. Its C++ code bypasses every mode."""
    sizes: list[int] = []

    def send(_: object, bucket: Any) -> torch.futures.Future[Tensor]:
        sizes.append(bucket.buffer().numel() * bucket.buffer().element_size())
        sent: torch.futures.Future[Tensor] = torch.futures.Future()
        sent.set_result(bucket.buffer())
        return sent

    send.__annotations__.clear()  # torch wants its own class there, not the name of it
    if isinstance(wrapped, DistributedDataParallel):
        wrapped.register_comm_hook(None, send)
    return sizes
