"""The phases of some steps on a GPU's own time line: events in its stream, read when it has passed
them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

STRIDE = 7
"""One of so many steps is measured: a number that the count of a loader's processes rarely divides.
"""

MEASURED = "data", "compute", "communication", "optimizer", "other"
"""Phases within a step. What a GPU waits for between two of its marks counts in the earlier one."""

MAX_PENDING = 64
"""Steps whose marks the GPU has not passed yet; further ones are not measured."""


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class TimeLine:
    """Marks the phases of every seventh step in the current stream. The host never waits."""

    def __init__(self, event: Callable[[], Any] = _event) -> None:
        """`event`: makes one with `record`, `query` and `elapsed_time`, as those of torch.cuda."""
        self._event = event
        self._number = 0
        self._marks = list[tuple[str, Any]]()
        self._is_measured = False
        self._pending: list[list[tuple[str, Any]]] = []

    def begin_step(self) -> None:
        """A step begins: its first mark is where the GPU has done all that came before."""
        self._is_measured = self._number % STRIDE == 0 and len(self._pending) < MAX_PENDING
        self._number += 1

    def mark(self, phase: str) -> None:
        """This phase begins."""
        if self._is_measured:
            event = self._event()
            event.record()
            self._marks.append((phase, event))

    def end_step(self) -> None:
        """The step has ended; its last mark was that of what comes after it."""
        if self._is_measured and self._marks:
            self._pending.append(self._marks)
        self._marks = []
        self._is_measured = False

    def spread(self, seconds: dict[str, float], steps: int) -> None:
        """Replace the host's seconds of `steps` steps by the GPU's, where any of them was measured.

        The total stays: what the GPU spent on none of the phases is `other`.
        """
        measured = self._take()
        if not measured:
            return
        total = sum(seconds[name] for name in MEASURED)
        found = {
            name: steps * sum(each[name] for each in measured) / len(measured)
            for name in MEASURED[:-1]
        }
        scale = min(1.0, total / max(sum(found.values()), 1e-9))
        seconds.update({name: value * scale for name, value in found.items()})
        seconds["other"] = total - scale * sum(found.values())

    def _take(self) -> list[dict[str, float]]:
        """Seconds by phase of the measured steps that the GPU has done."""
        done = [marks for marks in self._pending if marks[-1][1].query()]
        self._pending = [marks for marks in self._pending if marks not in done]
        found = []
        for marks in done:
            phases = dict.fromkeys(MEASURED, 0.0)
            for (phase, begin), (_, end) in pairwise(marks):
                phases[phase] += begin.elapsed_time(end) / 1000
            found.append(phases)
        return found
