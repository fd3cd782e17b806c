"""Time of a rank by phase; the phases add up to the time that has passed.

On a CPU the host's clock is exact, and a change of phase costs one look at it. A GPU works behind
the host: the phases of some steps are measured on the GPU's own time line (`TimeLine`), and the
host never waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from cloudtrain_job import StepTimer
from cloudtrain_wire.events import StepTimes

STRIDE = 7
"""One step of this many is measured: the number of loader processes rarely divides it."""

MEASURED = "data", "compute", "communication", "optimizer", "other"
"""Phases within a step. A wait of the GPU between two marks counts in the earlier one."""

MAX_PENDING = 64
"""Maximum steps whose marks the GPU has not passed; further ones are not measured."""


class StepClock(StepTimer):
    """Seconds of this rank by phase since the last report. `timeline`: of a GPU."""

    PHASES = ("data", "compute", "communication", "optimizer", "saving", "evaluation", "other")

    def __init__(self, timeline: TimeLine | None = None, **times: Any) -> None:
        super().__init__(**times)
        self._timeline = timeline
        self.start()

    def enter(self, phase: str) -> str:
        """Start another phase; return the ended one."""
        if self._timeline is not None:
            self._timeline.mark(phase)
        return super().enter(phase)

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Count the time of this context in a phase, then return to the earlier phase."""
        before = self.enter(phase)

        try:
            yield
        finally:
            self.enter(before)

    def begin_step(self) -> None:
        """Begin a training step, with its data."""
        if self._timeline is not None:
            self._timeline.begin_step()
        self.enter("data")

    def end_step(self) -> None:
        """End a training step."""
        self.step_done()
        if self._timeline is not None:
            self._timeline.end_step()

    def split(self) -> dict[str, float]:
        """Return the seconds by phase since the last report."""
        if self._timeline is not None:
            self._timeline.spread(self._seconds, self.steps)

        return super().split()

    def event(self, step: int, batch_size: int) -> StepTimes:
        """Return the event of the time since the last report.

        `step`: steps done in the run. `batch_size`: of all ranks.
        """
        fields = self.take() | {"step": step}
        fields["samples"] = fields["steps"] * batch_size
        times = StepTimes(steps=fields.pop("steps"), wall=fields.pop("wall"))

        return times.replace(**fields)


def step_clock(device: torch.device, wrapped: nn.Module) -> StepClock:
    """Return the clock of a rank's steps. `wrapped`: the module that training calls."""
    clock = StepClock()
    if device.type == "cuda":
        clock = StepClock(TimeLine(), run_delay=lambda: None)

    if isinstance(wrapped, DistributedDataParallel):
        clock.watch(wrapped)

    return clock


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
        on_gpu = {}
        for name in MEASURED[:-1]:
            on_gpu[name] = steps * sum(phases[name] for phases in measured) / len(measured)

        on_gpu_total = sum(on_gpu.values())
        scale = min(1.0, total / max(on_gpu_total, 1e-9))
        for name, value in on_gpu.items():
            seconds[name] = value * scale

        seconds["other"] = total - scale * on_gpu_total

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
