"""The estimate of a rank's memory: what it adds up, how strategies divide it, and what a run logs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cloudtrain_trainer import tasks
from cloudtrain_trainer.tasks import Draw
from cloudtrain_trainer.training import memory
from cloudtrain_trainer.training.loop import Loop
from cloudtrain_trainer.training.memory_estimate import Division, MemoryEstimate, ModelSizes, division, estimate
from cloudtrain_trainer.training.memory_trace import LiveBytes, measure
from tests.entrypoints.loss_curves import begin, one_process, task_flags

SIZES = ModelSizes(parameters=1200, trained=1000, layer=100, rest=200, activations=6000)


def divided(strategy: str, ranks: int, **given: Any) -> Division:
    usual: dict[str, Any] = {"shard": ranks, "tensor": None, "context": None, "stages": None, "schedule": "1f1b"}
    return division(strategy, ranks, **{**usual, **given})


@pytest.mark.parametrize(
    ("division_of_it", "expected"),
    [
        (divided("single", 1), MemoryEstimate(1200, 1000, 2000, 0, 6000)),
        (divided("ddp", 4, shard=1), MemoryEstimate(1200, 1000, 2000, 0, 6000)),
        (divided("fsdp", 4), MemoryEstimate(300, 250, 500, 500, 6000)),
        (divided("hsdp", 4, shard=2), MemoryEstimate(600, 500, 1000, 500, 6000)),
        (divided("context", 4), MemoryEstimate(300, 250, 500, 500, 1500)),
        (divided("hybrid", 4, context=2), MemoryEstimate(300, 250, 500, 500, 3000)),
        (divided("tp", 4), MemoryEstimate(300, 250, 500, 0, 1500)),
        (divided("hybrid", 4, tensor=2), MemoryEstimate(300, 250, 500, 500, 3000)),
        (divided("pipeline", 4), MemoryEstimate(300, 250, 500, 0, 6000)),
        (divided("pipeline", 4, schedule="gpipe"), MemoryEstimate(300, 250, 500, 0, 12000)),
        (divided("hybrid", 4, stages=2), MemoryEstimate(600, 500, 1000, 0, 6000)),
    ],
)
def test_strategies_divide_what_they_share(division_of_it: Division, expected: MemoryEstimate) -> None:
    assert estimate(SIZES, division_of_it, 2) == expected


def test_recomputing_and_bf16_need_less_for_activations_and_the_same_for_weights() -> None:
    task = tasks.build("gpt", 0)
    batch = task.train[Draw(0, list(range(8)))]
    kept, selective, blocks = (measure(task, *batch, how=how) for how in ("none", "selective", "blocks"))
    assert kept.activations > 1.4 * selective.activations > 1.4 * 1.4 * blocks.activations
    assert kept.activations > 1.5 * measure(task, *batch, amp="bf16").activations
    assert {kept[:4] for kept in map(_without_activations, (kept, selective, blocks))} == {_without_activations(kept)}
    whole = sum(p.numel() * 4 for p in task.model().parameters())
    assert kept.parameters == kept.trained == kept.rest + 4 * kept.layer == whole


def _without_activations(sizes: ModelSizes) -> tuple[int, ...]:
    return sizes.parameters, sizes.trained, sizes.layer, sizes.rest


def test_the_activations_are_those_of_a_step() -> None:
    """Counted again on tensors that have values."""
    loop = begin(tasks.build("gpt", 0), [*task_flags("gpt"), "--workers", "0"], one_process())
    inputs, targets = loop.batches.trial(32)
    for parameter in loop.step.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    with LiveBytes() as live:
        loop.step.task.loss(loop.step.model(inputs), targets).backward()  # type: ignore[no-untyped-call]
    assert measure(loop.task, inputs, targets).activations == pytest.approx(live.peak, rel=0.01)


def test_nothing_is_drawn_from_the_generators() -> None:
    before = torch.get_rng_state()
    task = tasks.build("digits", 0)
    measure(task, *task.train[Draw(0, [0, 1])])
    assert torch.equal(torch.get_rng_state(), before)


def test_a_run_logs_the_estimate_and_then_the_peak(
    make_loop: Callable[..., Loop], capfd: pytest.CaptureFixture[str]
) -> None:
    loop = make_loop("--probe-memory", "yes", "--max-steps", "1")
    memory.fit_micro_batch(loop, memory.MicroBatchCache(loop.checkpointer.checkpoints.folder, loop.ranks, "digits"))
    assert "memory: estimate " in (out := capfd.readouterr().out)
    assert "MiB per rank (parameters 0.3, gradients 0.3, optimizer 0.6, activations " in out
    for _ in range(2):
        loop.meter.count(32)
        loop.progress.report()
    assert capfd.readouterr().out.count("memory: peak of a process, with its libraries ") == 1
