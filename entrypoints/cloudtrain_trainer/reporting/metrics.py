"""The numbers of a run: throughput and mean training loss."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

REPORT_SECONDS = 0.5, 10.0
"""Shortest and longest time between two progress events.

Short at first, when people watch; longer later, since each event is stored with the run.
"""
MAX_ADDED = 1000
"""Losses on a device, of 512 bytes each, until they are read."""


class Meter:
    """Throughput: samples per second between two reports."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since = self.started = clock()
        self._samples = 0
        self.total = 0
        """Samples over all ranks since this process started."""
        self._reported = False

    def count(self, samples: int) -> None:
        """Add the count of samples of one step, over all ranks."""
        self._samples += samples
        self.total += samples

    def due(self) -> bool:
        """Return whether the next report is due, 0.5 to 10 seconds after the last.

        The first step is reported at once.
        """
        shortest, longest = REPORT_SECONDS
        pause = min(longest, max(shortest, self.seconds() / 600))
        return not self._reported or self._clock() - self._since >= pause

    def rate(self) -> float:
        """Return the samples per second since the last call."""
        time_now = self._clock()
        rate = self._samples / max(time_now - self._since, 1e-9)
        self._since = time_now
        self._samples = 0
        self._reported = True

        return rate

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Leave the time of this context out of the next rate, such as an evaluation."""
        began = self._clock()

        try:
            yield
        finally:
            self._since += self._clock() - began

    def mean_rate(self) -> float:
        """Return the samples per second since the start, with evaluations and checkpoints."""
        return self.total / max(self.seconds(), 1e-9)

    def seconds(self) -> float:
        """Return the seconds since this process started."""
        return self._clock() - self.started


class LossMean:
    """The weighted mean of losses. They stay on the device until it is read: that stalls a GPU."""

    def __init__(self) -> None:
        self._total = 0.0
        self._weight = 0.0
        self._added: list[tuple[Tensor, float]] = []
        """Losses on the device, and their weights, that are not in the total yet."""

    def add(self, loss: Tensor, weight: float) -> None:
        """Add the mean loss of a micro-batch, shape (); without weight it may be NaN."""
        if weight:
            # A copy: a program may reuse the tensor, or it is a view of a large one.
            self._added.append((loss.detach().clone(), weight))
            self._weight += weight
        if len(self._added) == MAX_ADDED:
            self.state()

    def state(self) -> tuple[float, float]:
        """Return (weighted sum of the losses, sum of the weights). Waits for the device."""
        if self._added:
            losses, weights = zip(*self._added, strict=True)
            for loss, weight in zip(torch.stack(losses).tolist(), weights, strict=True):
                self._total += loss * weight  # in order, however often the state is read

            self._added = []

        return self._total, self._weight

    def restore(self, state: tuple[float, float]) -> None:
        """Continue from a `state`: (weighted sum of the losses, sum of the weights)."""
        self._total, self._weight = state
        self._added = []
