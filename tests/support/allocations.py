"""What torch's CPU allocator handed out and got back while a program ran: the measure of an estimate of memory."""

from __future__ import annotations

import time
from itertools import pairwise
from types import TracebackType
from typing import Any

from torch.autograd.profiler import profile

MEMORY_EVENT = "[memory]"


class Allocations:
    """Inside, each allocation of this thread is recorded. Afterwards `peak` says the most bytes there were at once."""

    def __init__(self) -> None:
        self._profile = profile(use_kineto=True, profile_memory=True)
        self._marks: list[int] = []
        self.sums: list[tuple[int, int]] = []
        """(nanoseconds, bytes that are allocated from then on)."""

    def __enter__(self) -> Allocations:
        self._profile.__enter__()  # type: ignore[no-untyped-call]
        return self

    def mark(self) -> None:
        """From here on is another interval."""
        self._marks.append(time.time_ns())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._profile.__exit__(kind, error, traceback)  # type: ignore[no-untyped-call]
        found: Any = self._profile.kineto_results
        events = [event for event in found.events() if event.name() == MEMORY_EVENT]
        total = 0
        for event in sorted(events, key=lambda event: int(event.start_ns())):
            total += event.nbytes()
            self.sums.append((event.start_ns(), total))

    def peaks(self) -> list[int]:
        """The most bytes in each interval, the first before the first mark."""
        borders = [0, *self._marks, 1 << 63]
        found = []
        before = 0
        for first, last in pairwise(borders):
            inside = [total for at, total in self.sums if first <= at < last]
            found.append(max([before, *inside]))
            before = inside[-1] if inside else before
        return found
