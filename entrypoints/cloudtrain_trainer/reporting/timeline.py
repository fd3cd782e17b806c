"""Phases of some steps on a GPU's own time line: events in its stream, read later."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

STRIDE = 7
"""One step of this many is measured: the number of loader processes rarely divides it."""

MEASURED = "data", "compute", "communication", "optimizer", "other"
"""Phases within a step. A wait of the GPU between two marks counts in the earlier one."""

MAX_PENDING = 64
"""Maximum steps whose marks the GPU has not passed; further ones are not measured."""


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class TimeLine:
    """Marks the phases of every seventh step in the current stream. The host never waits."""

    def __init__(self, event: Callable[[], Any] = _event) -> None:
        """`event`: makes one with `record`, `query` and `elapsed_time`, as torch.cuda's."""
        self._event = event
        self._number = 0
        self._marks = list[tuple[str, Any]]()
        self._is_measured = False
        self._pending: list[list[tuple[str, Any]]] = []

    def begin_step(self) -> None:
        """Begin a step: its first mark is where the GPU has done all earlier work."""
        self._is_measured = self._number % STRIDE == 0 and len(self._pending) < MAX_PENDING
        self._number += 1

    def mark(self, phase: str) -> None:
        """Begin a phase."""
        if self._is_measured:
            event = self._event()
            event.record()
            self._marks.append((phase, event))

    def end_step(self) -> None:
        """End the step, whose last mark was the next phase's."""
        if self._is_measured and self._marks:
            self._pending.append(self._marks)
        self._marks = []
        self._is_measured = False

    def spread(self, seconds: dict[str, float], steps: int) -> None:
        """Replace the host's seconds of `steps` steps by the GPU's, if any was measured.

        The total stays: time of the GPU outside of the phases is `other`.
        """
        measured = self._take()
        if not measured:
            return
        total = sum(seconds[name] for name in MEASURED)
        on_gpu = {
            name: steps * sum(phases[name] for phases in measured) / len(measured)
            for name in MEASURED[:-1]
        }
        scale = min(1.0, total / max(sum(on_gpu.values()), 1e-9))
        seconds.update({name: value * scale for name, value in on_gpu.items()})
        seconds["other"] = total - scale * sum(on_gpu.values())

    def _take(self) -> list[dict[str, float]]:
        """Return seconds by phase of the measured steps that the GPU has done."""
        finished = [marks for marks in self._pending if marks[-1][1].query()]
        self._pending = [marks for marks in self._pending if marks not in finished]
        measured = []
        for marks in finished:
            phases = dict.fromkeys(MEASURED, 0.0)
            for (phase, begin), (_, end) in pairwise(marks):
                phases[phase] += begin.elapsed_time(end) / 1000
            measured.append(phases)
        return measured
