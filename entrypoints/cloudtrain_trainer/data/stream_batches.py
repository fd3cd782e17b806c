"""Read an iterable for a rank: in the rank itself, or in loader processes that take turns.

With `--workers N` a rank has N readers, each in a separate process; the iterable's `shard` splits
it over the readers of all ranks. The first N batches of a rank come from reader 0, 1, ...
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

from torch.utils.data import get_worker_info

from cloudtrain_trainer.data.batches import Loader, split_evenly
from cloudtrain_trainer.data.samples import seed_generators
from cloudtrain_trainer.data.streams import Stream
from cloudtrain_trainer.factories import place
from cloudtrain_trainer.rules import Refused, RefusedData


class Request(NamedTuple):
    """The rank's share of one global batch."""

    first: int
    """Samples of the epoch over all ranks before the batch."""
    beginning: tuple[int, range, Any] | None = None
    """Begin anew: (epoch, `first` of batches to read without use, else a `state`)."""


class StreamReader:
    """Reads a rank's batches of a stream in order, in the rank or in a loader process."""

    def __init__(
        self, part: Stream, count: int, share: slice, accumulation_steps: int, length: int | None
    ) -> None:
        """`count`: samples to read per batch; `share` of them is the rank's.

        `length`: samples that the part must have; None: when it ends, it begins anew.
        """
        self.part = part
        self.count = count
        self.share = share
        self.accumulation_steps = accumulation_steps
        self.length = length
        self._iterator: Iterator[Any] = iter(())
        self._pass = 0
        self._read = 0

    def __getitem__(self, request: Request) -> tuple[list[tuple[Any, Any]], Any]:
        """Return micro-batches, and in a loader process the `state` after them."""
        if request.beginning is not None:
            self._begin(*request.beginning)

        samples = self._next_batch(request.first)
        micro_batches = []
        for number in range(self.accumulation_steps):
            share = split_evenly(samples, self.accumulation_steps, number)
            micro_batches.append(self.part.batch(share))

        return micro_batches, self.state() if get_worker_info() else None

    def state(self) -> dict[str, Any]:
        """Return the position after the latest batch."""
        return {
            "pass": self._pass,
            "read": self._read,
            "state": self.part.state(self._iterator),
        }

    def _begin(self, epoch: int, unused: range, state: dict[str, Any] | None) -> None:
        """Begin an epoch, or continue from a `state` that has a position."""
        if state is not None and state["state"] is not None:
            self._pass = state["pass"]
            self._read = state["read"]
            self._iterator = self.part.read(self._pass, state["state"])
            return

        self._pass = epoch
        self._read = 0
        self._iterator = self.part.read(epoch)
        for first in unused:
            self._next_batch(first)

    def _next_batch(self, first: int) -> list[Any]:
        seed_generators(self.part.seed, self._pass, first)
        return self._take(self.count)[self.share]

    def _take(self, count: int) -> list[Any]:
        taken: list[Any] = []
        while True:
            more = list(itertools.islice(self._iterator, count - len(taken)))
            taken += more
            self._read += len(more)
            if len(taken) == count:
                return taken

            if self.length is not None:
                raise Refused(
                    f"{place(self.part.source)}: {self.part.name} says that it has {self.length}"
                    f" samples and ends after {self._read}: correct its __len__"
                )
            if not self._read:
                raise RefusedData(
                    f"{self.part.name}: a part of the iterable has no sample: write more shards"
                )
            self._pass += 1
            self._read = 0
            self._iterator = self.part.read(self._pass)


class StreamBatches:
    """One rank's training data from an iterable; the interface of `Batches`.

    `max_steps`: of the run. Raise `Refused` if an epoch is endless, or less than one batch.
    """

    def __init__(
        self,
        data: Stream,
        batch_size: int,
        accumulation_steps: int,
        rank: int,
        ranks: int,
        workers: int,
        pin_memory: bool,
        max_steps: int | None = None,
    ) -> None:
        self.data = data
        self.batch_size = batch_size
        self.accumulation_steps = accumulation_steps

        # Parts differ in size: they are repeated instead.
        self.samples = None if data.can_shard else data.length
        """Samples of an epoch; None if unknown."""

        if workers > 1 and not data.can_shard:
            raise Refused(
                f"{data.name}: the {type(data.source).__name__} ({place(data.source)}) cannot be"
                f" read by {workers} processes: give it shard(num_shards, index), or use"
                " --workers 1"
            )

        if batch_size < ranks * accumulation_steps:
            raise Refused(
                f"--batch-size {batch_size} is too small: use at least {ranks * accumulation_steps}"
            )

        if self.samples is None and max_steps is None:
            raise Refused(
                f"{data.name}: the {type(data.source).__name__} ({place(data.source)}) does not say"
                " how many samples an epoch has: give it __len__, or say where training ends with"
                " --max-steps"
            )

        if self.samples is not None and self.samples < batch_size:
            raise Refused(
                f"--batch-size {batch_size} is more than the {self.samples} training samples: use"
                " less"
            )

        self.samples_per_epoch = (max_steps or 0) * batch_size
        if self.samples is not None:
            self.samples_per_epoch = self.samples // batch_size * batch_size

        mine = split_evenly(list(range(batch_size)), ranks, rank)
        count = max(1, workers)

        if data.can_shard and ranks * count > 1:
            parts = [data.shard(ranks * count, rank * count + number) for number in range(count)]
            samples = len(mine)
            share = slice(None)
        else:
            parts = [data]
            samples = batch_size
            share = slice(mine[0], mine[-1] + 1)

        self._readers: list[StreamReader] = []
        self._loaders: list[Loader] = []

        for part in parts:
            reader = StreamReader(part, samples, share, accumulation_steps, self.samples)
            # One process each: an iterable that asks for the number of workers would split again.
            # Not ahead: a checkpoint asks a reader of this process for its position.
            loader = Loader(reader, min(workers, 1), pin_memory, persistent=True, ahead=False)
            self._readers.append(reader)
            self._loaders.append(loader)

        self._states: list[Any] = [None] * len(parts)
        self._resumed: list[Any] | None = None

    def load(self, epoch: int, skip: int) -> Iterator[tuple[Any, Any]]:
        """Yield this rank's micro-batches of an epoch, on the CPU.

        `skip`: samples over all ranks that were trained on.
        """
        resumed = self._resumed if skip else None
        self._resumed = None
        self._states = resumed or [None] * len(self._readers)
        by_reader = []
        for number, loader in enumerate(self._loaders):
            by_reader.append(loader.load(self._requests(number, epoch, skip)))

        return self._micro_batches(by_reader, skip)

    def state(self) -> Any:
        """Return the position after the latest micro-batch, for `resume`: of several readers a list."""
        if len(self._readers) > 1:
            return list(self._states)
        return self._states[0] or self._readers[0].state()

    def resume(self, state: Any) -> None:
        """Make the next `load` continue from a `state` of this rank.

        Raise `Refused` if it is of another number of readers.
        """
        states = state if isinstance(state, list) else [state]
        if len(states) != len(self._readers):
            raise Refused(
                f"{self.data.name}: the checkpoint is of {len(states)} readers per rank, and here"
                f" are {len(self._readers)}: use --workers {len(states)}"
            )

        self._resumed = states

    def _requests(self, number: int, epoch: int, skip: int) -> Iterator[Request]:
        """Return what a reader reads: every n-th batch, n being the number of readers."""
        stride = self.batch_size * len(self._readers)
        earlier = range(number * self.batch_size, skip, stride)
        first = number * self.batch_size + stride * len(earlier)
        beginning = (epoch, earlier, self._states[number])
        positions = range(first, self.samples_per_epoch, stride)

        # Without a reference to this object, whose loader holds these items.
        return (Request(at, beginning if at == first else None) for at in positions)

    def _micro_batches(
        self, by_reader: list[Iterator[Any]], skip: int
    ) -> Iterator[tuple[Any, Any]]:
        for first in range(skip, self.samples_per_epoch, self.batch_size):
            number = first // self.batch_size % len(self._readers)
            micro_batches, self._states[number] = next(by_reader[number])
            yield from micro_batches
