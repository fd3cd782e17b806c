"""Time of a rank by phase; the phases add up to the time that has passed.

On a CPU the host's clock is exact, and a change of phase costs one look at it. A GPU works behind
the host: the phases of some steps are measured on the GPU's own time line (`TimeLine`), and the
host never waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch

from cloudtrain_launcher.events import StepTimes
from cloudtrain_trainer.reporting.waiting import Waiting, schedule_seconds
from cloudtrain_trainer.strategies import Step

PHASES = "data", "compute", "communication", "optimizer", "saving", "evaluation", "other"
"""Phases of a rank; each moment is in exactly one of them."""

DIGITS = 6
"""Decimals of the reported seconds."""

REPORT_SECONDS = 0.5, 60.0
"""Shortest and longest time between two reports: every rank's are stored with the run."""

WARM_UP_STEPS = 2
"""First steps of a process, which allocate memory, choose kernels and compile models."""

STRIDE = 7
"""One step of this many is measured: the number of loader processes rarely divides it."""

MEASURED = "data", "compute", "communication", "optimizer", "other"
"""Phases within a step. A wait of the GPU between two marks counts in the earlier one."""

MAX_PENDING = 64
"""Maximum steps whose marks the GPU has not passed; further ones are not measured."""


class StepClock:
    """Seconds of this rank by phase since the last report."""

    def __init__(
        self,
        waiting: Waiting,
        timeline: TimeLine | None = None,
        message_bytes: int = 0,
        clock: Callable[[], float] = time.perf_counter,
        schedule: Callable[[], tuple[float, float] | None] = schedule_seconds,
    ) -> None:
        """`waiting`: measures how long passes wait for messages. `timeline`: of a GPU.

        `message_bytes`: of the gradients that a step exchanges; 0: none. `schedule`: how long this
        thread has run, and how long it was ready without a core.
        """
        self.waiting = waiting
        self._timeline = timeline
        self._clock = clock
        self.message_bytes = message_bytes
        self._phase = "other"
        self._since = clock()
        self._began = self._reported = self._since
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.steps = self._steps_before = 0
        self._schedule, self._delayed = schedule, self._run_delay(schedule)

    def enter(self, phase: str) -> str:
        """Begin another phase; return the previous one."""
        time_now = self._clock()
        before = self._phase
        self.seconds[before] += time_now - self._since
        self._phase = phase
        self._since = time_now
        if self._timeline is not None:
            self._timeline.mark(phase)
        return before

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
        self.enter("other")
        if self._timeline is not None:
            self._timeline.end_step()
        self.steps += 1

    def restart(self) -> None:
        """Restart at zero."""
        self.enter("other")
        self._began = self._reported = self._since
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.steps = 0
        self._steps_before = 0
        self._delayed = self._run_delay(self._schedule)

    def due(self) -> bool:
        """Return whether a report is due: at once, then after 0.5 s, later up to a minute."""
        shortest, longest = REPORT_SECONDS
        pause = min(longest, max(shortest, (self._since - self._began) / 60))
        return self._steps_before == 0 or self._since - self._reported >= pause

    def take(self, step: int, batch_size: int) -> StepTimes:
        """Return the event of the time since the last call.

        `step`: steps done in the run. `batch_size`: of all ranks.
        """
        self.enter(self._phase)
        seconds = self.seconds
        steps = self.steps
        if self._timeline is not None:
            self._timeline.spread(seconds, steps)
        self._move_waiting(seconds, steps)
        event = StepTimes(steps=steps, wall=round(self._since - self._reported, DIGITS)).replace(
            step=step,
            samples=steps * batch_size,
            **{phase: round(taken, DIGITS) for phase, taken in seconds.items()},
            **({"message_mb": round(self.message_bytes / 1e6, 3)} if self.message_bytes else {}),
            **({"warm_up": True} if self._steps_before < WARM_UP_STEPS else {}),
            **self._delay_since_the_last(),
        )
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.steps = 0
        self._steps_before = self._steps_before + steps
        self._reported = self._since
        return event

    def _run_delay(self, schedule: Callable[[], tuple[float, float] | None]) -> float | None:
        """Return seconds without a core; None if unknown, or if a GPU's phases count."""
        times = schedule() if self._timeline is None else None
        return None if times is None else times[1]

    def _delay_since_the_last(self) -> dict[str, float]:
        before = self._delayed
        self._delayed = self._run_delay(self._schedule)
        if before is None or self._delayed is None:
            return {}
        return {"run_delay": round(max(0.0, self._delayed - before), DIGITS)}

    def _move_waiting(self, seconds: dict[str, float], steps: int) -> None:
        """Move waits for messages out of the passes; drop communication if unknown."""
        waited = self.waiting.take(steps)
        if waited is None:
            seconds["other"] += seconds.pop("communication")
            return
        waited = min(waited, seconds["compute"])
        seconds["compute"] -= waited
        seconds["communication"] += waited


def step_clock(step: Step) -> StepClock:
    """Return the clock of a rank's steps for its device and strategy."""
    strategy = step.strategy
    ranks = step.strategy.ranks
    shared = [p for p in step.model.parameters() if p.requires_grad] if ranks.size > 1 else []
    size = sum(p.numel() * p.element_size() for p in shared)
    return StepClock(
        strategy.waiting(step.wrapped),
        TimeLine() if step.device.type == "cuda" else None,
        message_bytes=size,
    )


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
