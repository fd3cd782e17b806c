"""Loss and accuracy on the validation data, every sample counted once on any number of ranks."""

from __future__ import annotations

from collections.abc import Callable

import torch

from cloudtrain_trainer.batches import evaluation_draws, loader
from cloudtrain_trainer.measure import LossMean
from cloudtrain_trainer.step import Step


@torch.no_grad()
def evaluate(step: Step, batch_size: int, workers: int, asked: Callable[[], bool]) -> dict[str, float] | None:
    """`val_loss` and `val_accuracy`; None when `asked` says on any rank that a stop was asked for.

    `batch_size`: samples per rank and pass. What fits into memory in training fits here, too.
    """
    data, strategy, ranks = step.task.validation, step.strategy, step.strategy.ranks
    strategy.sync_buffers(step.model)
    strategy.average(step.task.statistics(step.model))
    step.wrapped.eval()
    loss, correct = LossMean(step.device), torch.zeros((), dtype=torch.float64, device=step.device)
    plan = list(evaluation_draws(len(data), strategy.data_rank, strategy.data_ranks, batch_size))
    batches = iter(loader(data, [draw for draw, _ in plan], workers, step.device.type == "cuda"))
    for (inputs, targets), (_, count) in zip(batches, plan, strict=True):
        learn = ranks.agree(asked())
        inputs, targets = step.to_device(inputs, targets)
        outputs = strategy.outputs(step, inputs)
        if count and outputs is not None and strategy.counts:
            with step.precision():
                loss.add(step.task.loss(outputs, targets), count)
            correct += step.task.correct(outputs, targets)
        if learn()[0]:
            return None
    total, samples, right = ranks.sum(*loss.state(), float(correct))
    return {"val_loss": total / samples, "val_accuracy": right / samples}
