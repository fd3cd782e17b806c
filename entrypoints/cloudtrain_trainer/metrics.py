"""The numbers of a run: its speed, the mean training loss, and the evaluation on the validation data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cloudtrain_trainer.batches import evaluation_draws, loader

if TYPE_CHECKING:
    from cloudtrain_trainer.step import Step


REPORT_SECONDS = 0.5, 10.0
"""Between two progress events, at first and at last: whoever watches looks closely at the start, and every event is
kept for as long as the run is."""


class Meter:
    """Samples per second between two reports."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = self.started = clock()
        self._samples = 0
        self.total = 0
        """Samples of the whole run, over all ranks, since this process started."""
        self._reported = False

    def count(self, samples: int) -> None:
        """One step is done, with so many samples over all ranks."""
        self._samples += samples
        self.total += samples

    def due(self) -> bool:
        """Whether it is time for a report; the first step is worth one at once: people wait for it."""
        shortest, longest = REPORT_SECONDS
        pause = min(longest, max(shortest, self.seconds() / 600))
        return not self._reported or self._clock() - self._since >= pause

    def rate(self) -> float:
        """Samples per second since the last call."""
        now = self._clock()
        rate = self._samples / max(now - self._since, 1e-9)
        self._since, self._samples, self._reported = now, 0, True
        return rate

    @contextmanager
    def pause(self) -> Iterator[None]:
        """What takes its time between two steps without being one, such as an evaluation: no part of the next rate."""
        began = self._clock()
        try:
            yield
        finally:
            self._since += self._clock() - began

    def mean_rate(self) -> float:
        """Samples per second since the start, evaluation and checkpoints included."""
        return self.total / max(self.seconds(), 1e-9)

    def seconds(self) -> float:
        """Since the start."""
        return self._clock() - self.started


class LossMean:
    """The mean loss over samples. It stays on the device: reading it at every step would stall a GPU.

    With `finite`, samples whose loss is not a finite number are left out: one of them would hide all others.
    """

    def __init__(self, device: torch.device, finite: bool = False) -> None:
        self.total = torch.zeros((), dtype=torch.float64, device=device)
        self._left_out = torch.zeros((), dtype=torch.float64, device=device) if finite else None
        self._samples = 0

    def add(self, loss: Tensor, samples: int) -> None:
        """`loss` is a mean over `samples`."""
        loss = loss.detach()
        if self._left_out is not None:
            self._left_out.add_(~torch.isfinite(loss), alpha=samples)
            loss = loss.nan_to_num(0.0, 0.0, 0.0)
        self.total.add_(loss, alpha=samples)
        self._samples += samples

    def value(self) -> float:
        total, samples = self.state()
        return total / max(samples, 1)

    def state(self) -> tuple[float, int]:
        """The sum over the samples that count, and their number."""
        return float(self.total), self._samples - (0 if self._left_out is None else int(self._left_out))

    def restore(self, state: tuple[float, int]) -> None:
        self.total.fill_(state[0])
        self._samples = state[1]
        if self._left_out is not None:
            self._left_out.zero_()


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
