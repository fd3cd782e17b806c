"""State of one training: what the loop advances, and what reports and checkpoints read."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, NoReturn

from torch import Tensor

from cloudtrain_trainer import finite, state, strategies
from cloudtrain_trainer.data.batches import Batches, gains_from_processes, loader_processes
from cloudtrain_trainer.data.stream_batches import StreamBatches
from cloudtrain_trainer.data.streams import Stream
from cloudtrain_trainer.finite import NotFinite
from cloudtrain_trainer.options import Options
from cloudtrain_trainer.ranks import Ranks
from cloudtrain_trainer.reporting.metrics import Meter
from cloudtrain_trainer.reporting.trackers import Trackers
from cloudtrain_trainer.rules import Refused
from cloudtrain_trainer.sigterm import Stop
from cloudtrain_trainer.tasks import Task
from cloudtrain_trainer.training.step import Step
from cloudtrain_wire.cores import available_cores

OOM_HINT = (
    "use larger machines, --recompute blocks, or a program that shares the model out over ranks"
    " (examples/parallelism/fsdp2)"
)
"""Hint if even the smallest micro-batch does not fit into memory."""


class Position(NamedTuple):
    """Progress of training."""

    step: int = 0
    """Optimizer steps done."""
    epoch: int = 0
    """Epochs finished, including their evaluation."""
    samples: int = 0
    """Samples of the current epoch over all ranks; after all, only the evaluation remains."""


class TrainingRun:
    """One task: its step, its batches, and how far it has come."""

    def __init__(
        self,
        task: Task,
        ranks: Ranks,
        options: Options,
        stop: Stop,
        trackers: Trackers | None = None,
    ) -> None:
        self.task = task
        self.ranks = ranks
        self.device = ranks.device
        self.devices = strategies.devices(options.strategy, ranks.device)
        """The devices that this rank computes on; the first is `device`."""
        self.options = options
        self.stop = stop
        self.trackers = trackers

        batch_size = options.batch_size or task.batch_size
        self.step = Step(task, ranks, options, batch_size)
        self.workers = self._loader_processes()
        self.batches = self._make_batches()

        self.epochs = options.epochs or task.epochs
        steps = self.epochs * self.batches.samples_per_epoch // batch_size
        self.steps = min(steps, options.max_steps or steps)
        self.seed_this_rank()

        self.position = Position()
        self.meter = Meter()
        self.metrics: dict[str, float] = {}

    @property
    def micro_batch(self) -> int:
        """Samples of the largest micro-batch, per rank and accumulation step."""
        parts = self.ranks.size * self.step.accumulation_steps
        return math.ceil(self.batches.batch_size / parts)

    def split_to_fit(self, micro_batch: int) -> None:
        """Increase the accumulation steps until micro-batches have at most this many samples.

        The batch stays the same. Raise `Refused` if it cannot be split into such small parts.
        """
        samples = self.batches.batch_size / self.ranks.size

        for count in range(self.step.accumulation_steps + 1, int(samples) + 1):
            if math.ceil(samples / count) <= micro_batch:
                self.step.accumulation_steps = count
                self.batches = self._make_batches()
                return

        raise Refused(
            f"micro-batches of {self.micro_batch} samples per rank do not fit into memory, and a"
            f" batch of {self.batches.batch_size} cannot be split further here: {OOM_HINT}"
        )

    def describe_batch(self) -> str:
        """Return the size of the batch, in total and per rank, in one line."""
        passes = self.step.accumulation_steps
        batch = self.batches.batch_size
        line = (
            f"batch: {batch} {self.task.unit} per step over all ranks,"
            f" {math.ceil(batch / self.ranks.size)} per rank"
        )
        if passes > 1:
            line += f", in {passes} micro-batches of {self.micro_batch}"

        samples = self.batches.samples
        if samples is not None and samples % batch:
            line += f"; each epoch leaves out {samples % batch} of {samples}, which fill no batch"

        return line

    def run_discarded_step(self) -> None:
        """Run one forward and backward pass without effect, before a checkpoint is loaded.

        DDP reorders its buckets after its first backward pass, and so the order of the sums of
        gradients on three or more ranks. A resumed run must be past that point, as the
        uninterrupted one was.
        """
        self.step.wrapped.train()
        self.step.forward_backward(*next(self.batches.load(epoch=0, skip=0)))
        self.step.optimizer.zero_grad(set_to_none=True)

    def seed_this_rank(self) -> None:
        """Seed the random generators, differently on each rank: noise such as dropout differs."""
        seed = (self.options.seed + 1) * 1_000_003 + self.ranks.rank
        state.seed_generators(seed, self.devices)

    def check_finite(self, tensors: Iterable[Tensor] = ()) -> None:
        """Raise `NotFinite` on all ranks after a bad step or if a tensor is not finite."""
        is_bad = self.step.finite_watch.first_bad() is not None
        if self.ranks.all_reduce_max(is_bad or not finite.all_finite(tensors))()[0]:
            self.raise_not_finite()

    def raise_not_finite(self) -> NoReturn:
        """Raise `NotFinite` with the first bad step of any rank. Called by all ranks."""
        bad_steps = self.ranks.all_gather(self.step.finite_watch.first_bad())
        if any(bad_steps):
            raise NotFinite(finite.reason(bad_steps))

        raise NotFinite(f"step {self.position.step}: the weights are not finite")

    def _loader_processes(self) -> int:
        """Return the number of loader processes of this rank; by default only if they pay."""
        requested = self.options.workers
        of_task = self.task.workers
        is_stream = isinstance(self.task.train, Stream)
        if is_stream and of_task is None:  # some iterables do not survive a fork: on request only
            of_task = 0

        count = loader_processes(requested, of_task, available_cores(), self.ranks.local_size)
        if not count or requested is not None or of_task is not None:
            return count

        shares = self.ranks.size * self.step.accumulation_steps
        samples = math.ceil(self.step.batch_size / shares)

        return count if gains_from_processes(self.task.train, samples) else 0

    def _make_batches(self) -> Batches | StreamBatches:
        arguments: dict[str, Any] = {
            "data": self.task.train,
            "batch_size": self.step.batch_size,
            "accumulation_steps": self.step.accumulation_steps,
            "rank": self.ranks.rank,
            "ranks": self.ranks.size,
            "workers": self.workers,
            "pin_memory": self.device.type == "cuda",
        }

        if isinstance(self.task.train, Stream):
            max_steps = 1 if self.options.eval_only else self.options.max_steps
            return StreamBatches(**arguments, max_steps=max_steps)

        return Batches(seed=self.options.seed, **arguments)
