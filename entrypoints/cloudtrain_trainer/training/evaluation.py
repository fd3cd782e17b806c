"""Evaluations: every sample of the validation data counts once, over all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cloudtrain_trainer.data.batches import Loader, evaluation_draws
from cloudtrain_trainer.data.streams import Stream, evaluation_batches
from cloudtrain_trainer.reporting.metrics import LossMean
from cloudtrain_trainer.strategies import sync_buffers
from cloudtrain_trainer.tasks import Task
from cloudtrain_trainer.training.step import Step


@torch.no_grad()
def evaluate(
    step: Step, batch_size: int, workers: int, stop_requested: Callable[[], bool]
) -> dict[str, float] | None:
    """Return `val_loss` and metrics such as `val_accuracy` over all ranks.

    None if any rank's `stop_requested()` became true. `batch_size`: samples per rank and forward
    pass. Called by all ranks.
    """
    ranks = step.ranks
    sync_buffers(step.model, ranks)
    step.wrapped.eval()

    loss = LossMean()
    samples = 0
    sums = dict[str, Tensor]()

    for batch, count in _evaluation_batches(step, batch_size, workers):
        wait = ranks.all_reduce_max(stop_requested())
        inputs, targets = step.to_device(*batch)
        with step.precision():
            outputs = step.task.call(step.model, inputs)

        for name, value in _measures(step.task, outputs, targets).items():
            counted = value.double()
            if not count:
                counted = torch.zeros_like(counted)

            if name in sums:
                sums[name] = sums[name] + counted
            else:
                sums[name] = counted
        if count:
            samples += count
            with step.precision():
                loss.add(step.task.loss(outputs, targets), step.weigh(*batch))

        if wait()[0]:
            return None

    names = sorted(set().union(*ranks.all_gather(sorted(sums))))
    mine = [float(sums.get(name, 0.0)) for name in names]
    total, weight, all_samples, *totals = ranks.all_reduce_sum(*loss.state(), samples, *mine)
    means = {"val_loss": total / weight if weight else math.nan}
    for name, of_metric in zip(names, totals, strict=True):
        means[f"val_{name}"] = of_metric / all_samples

    return means


def _evaluation_batches(
    step: Step, batch_size: int, workers: int
) -> Iterator[tuple[tuple[Any, Any], int]]:
    """Yield this rank's ((inputs, targets), samples that count).

    All ranks get the same number of batches.
    """
    data = step.task.validation
    ranks = step.ranks
    if isinstance(data, Stream):
        yield from evaluation_batches(data, ranks.rank, ranks.size, batch_size)
        return

    plan = partial(evaluation_draws, len(data), ranks.rank, ranks.size, batch_size)
    workers = min(workers, -(-len(data) // (batch_size * ranks.size)))
    loader = Loader(data, workers, step.device.type == "cuda")
    batches = loader.load(draw for draw, _ in plan())
    for batch, (_, count) in zip(batches, plan(), strict=True):
        yield batch, count


def _measures(task: Task, outputs: Any, targets: Any) -> Mapping[str, Tensor]:
    """Return the sum over the samples, per metric."""
    if task.measures is not None:
        return task.measures(outputs, targets)
    if task.correct is None:
        return {}

    return {"accuracy": task.correct(outputs, targets)}
