"""The numbers of a run: throughput, mean training loss, and evaluations."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from cloudtrain_trainer.data.batches import Loader, evaluation_draws
from cloudtrain_trainer.data.streams import Stream, evaluation_batches
from cloudtrain_trainer.strategies import Step
from cloudtrain_trainer.tasks import Task

_T = TypeVar("_T")


REPORT_SECONDS = 0.5, 10.0
"""Shortest and longest time between two progress events.

Short at first, when people watch; longer later, since each event is stored with the run.
"""


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


MAX_ADDED = 1000
"""Losses on a device, of 512 bytes each, until they are read."""


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

    def value(self) -> float:
        """Return the mean; 0 without losses. Waits for the device."""
        total, weight = self.state()
        return total / weight if weight else 0.0

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


@torch.no_grad()
def evaluate(
    step: Step, batch_size: int, workers: int, stop_requested: Callable[[], bool]
) -> dict[str, float] | None:
    """Return `val_loss` and metrics such as `val_accuracy` over all ranks.

    None if any rank's `stop_requested()` became true. `batch_size`: samples per rank and forward
    pass. Called by all ranks.
    """
    strategy = step.strategy
    ranks = step.strategy.ranks
    strategy.sync_buffers(step.model)
    strategy.average_statistics(step.task.statistics(step.model))
    step.wrapped.eval()

    loss = LossMean()
    samples = 0
    sums = dict[str, Tensor]()

    for chunk in _chunks(_evaluation_batches(step, batch_size, workers), strategy.n_microbatches):
        wait = ranks.all_reduce_max(stop_requested())
        for batch, count in chunk:
            inputs, targets = step.to_device(*batch)
            outputs = strategy.outputs(step, inputs)
            if outputs is None or not strategy.reports_metrics:
                continue

            for name, value in _measures(step.task, outputs, targets).items():
                counted = value.double() if count else torch.zeros_like(value).double()
                sums[name] = sums[name] + counted if name in sums else counted
            if count:
                samples += count
                with step.precision():
                    loss.add(step.task.loss(outputs, targets), step.weigh(*batch))

        if wait()[0]:
            return None

    names = sorted(set().union(*ranks.all_gather(sorted(sums))))
    total, weight, all_samples, *values = ranks.all_reduce_sum(
        *loss.state(), samples, *(float(sums.get(name, 0.0)) for name in names)
    )
    means = {f"val_{name}": value / all_samples for name, value in zip(names, values, strict=True)}

    return {"val_loss": total / weight if weight else math.nan, **means}


def _chunks(items: Iterator[_T], size: int) -> Iterator[list[_T]]:
    """Yield `size` items at a time; the last chunk may have fewer."""
    while chunk := list(islice(items, size)):
        yield chunk


def _evaluation_batches(
    step: Step, batch_size: int, workers: int
) -> Iterator[tuple[tuple[Any, Any], int]]:
    """Yield this rank's ((inputs, targets), samples that count).

    All ranks get the same number of batches.
    """
    data = step.task.validation
    strategy = step.strategy
    if isinstance(data, Stream):
        yield from evaluation_batches(data, strategy.data_rank, strategy.data_ranks, batch_size)
        return

    plan = partial(evaluation_draws, len(data), strategy.data_rank, strategy.data_ranks, batch_size)
    workers = min(workers, -(-len(data) // (batch_size * strategy.data_ranks)))
    loader = Loader(data, workers, step.device.type == "cuda")
    batches = loader.load(draw for draw, _ in plan())
    for batch, (_, count) in zip(batches, plan(), strict=True):
        yield batch, count


def _measures(task: Task, outputs: Any, targets: Any) -> Mapping[str, Tensor]:
    """Return the sum over the samples, per metric."""
    if task.measures is not None:
        return task.measures(outputs, targets)
    return {} if task.correct is None else {"accuracy": task.correct(outputs, targets)}


class Trackers:
    """Writes TensorBoard files, and to MLflow by $MLFLOW_TRACKING_URI.

    Each needs its package. TensorBoard's files go to $CLOUDTRAIN_TENSORBOARD_DIR, else to
    `<output>/tensorboard`. `settings`: the options of the run, as MLflow's parameters.
    `active`: false on all ranks except the first.
    """

    def __init__(self, output: Path, settings: Mapping[str, Any], active: bool = True) -> None:
        self._sinks: dict[
            str, tuple[Callable[[int, Mapping[str, float]], None], Callable[[str], None]]
        ] = {}
        if active and find_spec("tensorboard") is not None:
            folder = Path(os.environ.get("CLOUDTRAIN_TENSORBOARD_DIR") or output / "tensorboard")
            self._try("TensorBoard", lambda: self._start_tensorboard(folder))

        if active and os.environ.get("MLFLOW_TRACKING_URI") and find_spec("mlflow") is not None:
            self._try("MLflow", lambda: self._start_mlflow(settings))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write values of a step by name, such as `train/loss`."""
        for name, (write, _) in list(self._sinks.items()):
            self._try(name, partial(write, step, values))

    def close(self, outcome: str) -> None:
        """Finish with the outcome of the run: succeeded, stopped or failed."""
        for name, (_, end) in list(self._sinks.items()):
            self._try(name, partial(end, outcome))
        self._sinks.clear()

    def _start_tensorboard(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        writer: Any = SummaryWriter(str(folder))

        def write(step: int, values: Mapping[str, float]) -> None:
            for key, value in values.items():
                writer.add_scalar(key, value, step)
            writer.flush()

        self._sinks["TensorBoard"] = write, lambda outcome: writer.close()  # noqa: ARG005

    def _start_mlflow(self, settings: Mapping[str, Any]) -> None:
        mlflow: Any = import_module("mlflow")  # by name: mypy must not look for it

        mlflow.start_run(
            run_id=os.environ.get("MLFLOW_RUN_ID"), run_name=os.environ.get("CLOUDTRAIN_RUN_ID")
        )
        mlflow.log_params({key: str(value) for key, value in settings.items()})
        statuses = {"succeeded": "FINISHED", "stopped": "KILLED"}
        self._sinks["MLflow"] = (
            lambda step, values: mlflow.log_metrics(dict(values), step=step),
            lambda outcome: mlflow.end_run(status=statuses.get(outcome, "FAILED")),
        )

    def _try(self, name: str, act: Callable[[], None]) -> None:
        """Drop a tracker that fails, with a warning."""
        try:
            act()
        except Exception as error:  # noqa: BLE001  (a network, a server, a version: anything)
            self._sinks.pop(name, None)
            print(
                f"warning: {name} is turned off: {type(error).__name__}: {error}",
                file=sys.stderr,
                flush=True,
            )
