"""Ranks of the trainer that are slow for one known reason, of a strength that `$SLOW_STRENGTH`
says, 0 to 1.
"""

from __future__ import annotations

import os
import signal
import statistics
import threading
import time
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

LEAST_STEPS = 26


class Delay:
    """Sleeps for a multiple of this rank's step, as its first steps take without it: on a loaded
    machine for longer.
    """

    MEASURED = 5

    def __init__(self, low: float, high: float) -> None:
        self._times = strength(low, high)
        self._steps = list[float]()
        self._seconds = 0.0

    def __call__(self) -> None:
        """To be called once in a step."""
        if len(self._steps) <= self.MEASURED:
            self._steps.append(time.monotonic())
            if len(self._steps) > self.MEASURED:
                self._seconds = self._times * statistics.median(
                    b - a for a, b in pairwise(self._steps)
                )
        time.sleep(self._seconds)


def strength(low: float, high: float) -> float:
    """Between these two, by the strength of this run."""
    share: float = float(os.environ["SLOW_STRENGTH"])
    return float(low * (high / low) ** share)


def stop_soon(rank: int) -> None:
    """Have all ranks stop some seconds and some more steps after the first: rank 0 is told to, as
    by a cloud.
    """
    from cloudtrain_trainer.reporting.step_times import StepClock

    end = StepClock.end_step
    seconds = float(os.environ["SLOW_SECONDS"])
    ended_at = list[float]()

    def ended(self: StepClock) -> None:
        end(self)
        if rank == 0:
            ended_at.append(time.monotonic())
            if len(ended_at) > LEAST_STEPS and ended_at[-1] - ended_at[2] > seconds:
                ended_at.clear()
                os.kill(os.getpid(), signal.SIGTERM)

    StepClock.end_step = ended  # type: ignore[method-assign]


def healthy(rank: int) -> None:
    """Nothing is slow but the computation."""
    stop_soon(rank)


def slow_loader(rank: int) -> None:
    """Each batch takes as long as half a step to three steps to be made, on every rank."""
    from cloudtrain_trainer.tasks.digits import Digits

    stop_soon(rank)
    read = Digits.__getitem__
    delay = Delay(0.5, 3)

    def slow(self: Any, draw: Any) -> Any:
        delay()
        return read(self, draw)

    Digits.__getitem__ = slow  # type: ignore[method-assign]


def other_work(rank: int) -> None:
    """The last rank shares its core with as many as one to four processes that never rest; all
    ranks have their own.
    """
    stop_soon(rank)
    core = sorted(os.sched_getaffinity(0))[rank]
    os.sched_setaffinity(0, {core})
    if rank == 0:
        return
    for _ in range(round(strength(1, 4))):
        if os.fork() == 0:
            parent = os.getppid()
            while os.getppid() == parent:
                pass
            os._exit(0)


def sleeping_rank(rank: int) -> None:
    """The last rank sleeps for half a step to three steps in each."""
    from cloudtrain_trainer.strategies import ModelWithLoss

    stop_soon(rank)
    if rank == int(os.environ["WORLD_SIZE"]) - 1:
        forward = ModelWithLoss.forward
        delay = Delay(0.5, 3)

        def slow(self: ModelWithLoss, *batch: Any) -> Any:
            delay()
            return forward(self, *batch)

        ModelWithLoss.forward = slow  # type: ignore[assignment, method-assign]


def slow_saving(rank: int) -> None:
    """A checkpoint after every two steps takes 0.25 to 1 s."""
    from cloudtrain_trainer.checkpoints.checkpointer import Checkpointer

    stop_soon(rank)
    save = Checkpointer._save
    seconds = strength(0.25, 1.0)

    def slow(self: Checkpointer) -> None:
        time.sleep(seconds)
        save(self)

    Checkpointer._save = slow  # type: ignore[method-assign]


def slow_network(rank: int) -> None:
    """Gradients are exchanged over a network of 1 Gbit/s, one bucket after the other."""
    from torch.nn.parallel import DistributedDataParallel

    stop_soon(rank)
    init = DistributedDataParallel.__init__

    def made(self: Any, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        self.register_comm_hook(SlowNetwork(), SlowNetwork.exchange)

    DistributedDataParallel.__init__ = made  # type: ignore[method-assign]


class SlowNetwork:
    """Averages buckets of gradients; a bucket is there when a network of 1 Gbit/s would have
    brought it.
    """

    BYTES_PER_SECOND = 125e6

    def __init__(self) -> None:
        self.free_at = 0.0
        """When the network has sent all earlier buckets."""

    def exchange(self, bucket: Any) -> Any:
        """The future of the mean, as a communication hook returns it."""
        buffer = bucket.buffer()
        arrived = torch.futures.Future[Tensor]()
        sent = dist.all_reduce(buffer, async_op=True)
        now = time.monotonic()
        self.free_at = max(now, self.free_at) + buffer.nbytes / self.BYTES_PER_SECOND

        def arrive() -> None:
            sent.wait()
            arrived.set_result(buffer / dist.get_world_size())

        threading.Timer(self.free_at - now, arrive).start()
        return arrived

    exchange.__annotations__.clear()  # torch wants its own class there, not the name of it


def tiny_model() -> nn.Module:
    """Some hundred to some thousand parameters."""
    width = int(strength(4, 64))
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


def wide_model() -> nn.Module:
    """9 to 36 MB of gradients, for two images."""
    width = int(strength(1536, 3000))
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.Linear(width, 10)
    )


class Repeated(nn.Module):
    """One small layer, used again and again: much to compute, little to send."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 256)
        self.middle = nn.Linear(256, 256)
        self.last = nn.Linear(256, 10)
        self.times = int(strength(15, 60))

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.first(images.flatten(1)).repeat(4, 1)
        for _ in range(self.times):
            hidden = torch.tanh(self.middle(hidden))
        outputs: Tensor = self.last(hidden.unflatten(0, (4, -1)).mean(0))
        return outputs


def deep_model() -> nn.Module:
    """Some hundred milliseconds of computation in a step of 64 images."""
    return Repeated()
