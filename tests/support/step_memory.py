"""The peak of a real training step, by torch's allocator, and a rehearsal's estimate of it."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
import torch.distributed as dist
from torch._C._profiler import _EventType
from torch.autograd.profiler import profile

from cloudtrain_trainer import trees
from cloudtrain_trainer.arguments import parse
from cloudtrain_trainer.memory import precision, rehearse
from cloudtrain_trainer.own_task import from_options
from cloudtrain_trainer.ranks import Ranks
from tests.entrypoints.loss_curves import begin

# Records the memory that torch's CPU allocator handed out and got back while a program ran, to
# check an estimate.

FLAG = "FLAGS_caffe2_report_cpu_memory_usage"
"""Of libc10: whether the allocator counts in all threads. Else what one of gloo's threads frees
seems to stay.
"""


class Allocations:
    """Inside, the bytes of the whole process are noted at each allocation of this thread and of its
    collectives.
    """

    def __init__(self) -> None:
        self._profile = profile(use_kineto=True, profile_memory=True)
        self._marks: list[int] = []
        self.sums: list[tuple[int, int]] = []
        """(nanoseconds, bytes that are allocated from then on)."""

    def __enter__(self) -> Allocations:
        _count_in_all_threads()
        self._profile.__enter__()  # type: ignore[no-untyped-call]
        return self

    def mark(self) -> None:
        """From here on is another interval."""
        self._marks.append(time.time_ns())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._profile.__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]
        kineto_results: Any = self._profile.kineto_results
        noted = sorted(_totals(kineto_results.experimental_event_tree()))
        # Of earlier measurements in this process.
        earlier = noted[0][1] - noted[0][2] if noted else 0
        self.sums = [(at, total - earlier) for at, total, _ in noted]

    def peaks(self) -> list[int]:
        """The most bytes in each interval, the first before the first mark."""
        borders = [0, *self._marks, 1 << 63]
        before = 0
        allocations = []
        for first, last in pairwise(borders):
            inside = [total for at, total in self.sums if first <= at < last]
            allocations.append(max([before, *inside]))
            before = inside[-1] if inside else before
        return allocations

    def at_marks(self) -> list[int]:
        """The bytes that there were at each mark."""
        return [
            next((total for at, total in reversed(self.sums) if at < mark), 0)
            for mark in self._marks
        ]


def _count_in_all_threads() -> None:
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    ctypes.c_bool.in_dll(library, FLAG).value = True


def _totals(events: Iterable[Any]) -> Iterator[tuple[int, int, int]]:
    """Return time, allocated bytes after it and change, for all events and those inside of them."""
    for event in events:
        kind, fields = event.typed
        if kind == _EventType.Allocation:
            yield event.start_time_ns, fields.total_allocated, fields.alloc_size
        yield from _totals(event.children)


# The peak of a real training step of the trainer, and a rehearsal's estimate of it.

STEPS = 3


def measured(argv: Sequence[str], ranks: Ranks) -> int:
    """The most bytes that torch's CPU allocator had handed out to this rank during the steps of a
    training.

    Bytes of the data set do not count: it is in the host's memory.
    """
    gc.collect()  # what an earlier training left is not freed while this one is measured
    task = from_options(parse(list(argv)))
    with Allocations() as allocations:
        loop = begin(task, list(argv), ranks)
        loop.step.wrapped.train()
        allocations.mark()
        loaded = list(islice(loop.batches.load(0, 0), STEPS * loop.step.accumulation_steps))
        batches = map(_copy, loaded)
        for number in range(STEPS):
            allocations.mark()
            loop.step.train_step(batches, number, STEPS)
    before, after, *_ = allocations.at_marks()
    peak = max(allocations.peaks()[2:]) - (after - before)
    if dist.is_initialized():
        dist.destroy_process_group()
    return peak


def _copy(batch: Any) -> Any:
    return trees.map_tensors(lambda t: t.clone(), batch)


def estimated(argv: Sequence[str]) -> int:
    """The same from a rehearsal. `WORLD_SIZE` in the environment says how many ranks the options
    are for.
    """
    options = parse(list(argv))
    return rehearse(options, like_gpu=False, amp=precision(options.amp, "")).peak
