"""Records the memory that torch's CPU allocator handed out and got back while a program ran, to
check an estimate.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch._C._profiler import _EventType
from torch.autograd.profiler import profile

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
