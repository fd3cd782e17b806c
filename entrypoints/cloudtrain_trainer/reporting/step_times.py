"""Where the time of a rank goes: seconds by phase, which add up to the time that has passed.

On a CPU the host's clock is exact, and a change of phase costs one look at it. A GPU works behind
the host: there the phases of some steps are measured on the GPU's own time line (timeline.py), and
the host never waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cloudtrain_launcher.events import StepTimes
from cloudtrain_trainer.reporting.timeline import TimeLine
from cloudtrain_trainer.reporting.waiting import Waiting, schedule_seconds
from cloudtrain_trainer.strategies import Step

PHASES = "data", "compute", "communication", "optimizer", "saving", "evaluation", "other"
"""What a rank does; each moment is in exactly one of them."""

DIGITS = 6
"""Decimals of the seconds that are reported."""

REPORT_SECONDS = 0.5, 60.0
"""Shortest and longest time between two reports: every rank sends one, and they are kept with the
run.
"""

WARM_UP_STEPS = 2
"""The first steps of a process, in which memory is allocated, kernels are chosen and models
compiled.
"""


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
        """`waiting`: what knows how long backward passes wait for messages. `timeline`: that of a
        GPU.

        `message_bytes`: of the gradients that a step exchanges; 0: none. `schedule`: how long this
        thread has run, and how long it had no core to run on.
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
        """Another phase begins; returns the one that has ended."""
        now = self._clock()
        before = self._phase
        self.seconds[before] += now - self._since
        self._phase = phase
        self._since = now
        if self._timeline is not None:
            self._timeline.mark(phase)
        return before

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """A context whose time is of this phase; afterwards the phase around it goes on."""
        before = self.enter(phase)
        try:
            yield
        finally:
            self.enter(before)

    def begin_step(self) -> None:
        """A training step begins, with its data."""
        if self._timeline is not None:
            self._timeline.begin_step()
        self.enter("data")

    def end_step(self) -> None:
        """A training step has ended."""
        self.enter("other")
        if self._timeline is not None:
            self._timeline.end_step()
        self.steps += 1

    def restart(self) -> None:
        """Count from here on."""
        self.enter("other")
        self._began = self._reported = self._since
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.steps = 0
        self._steps_before = 0
        self._delayed = self._run_delay(self._schedule)

    def due(self) -> bool:
        """Whether a report is due: at the first step, then after half a second, later after up to a
        minute.
        """
        shortest, longest = REPORT_SECONDS
        pause = min(longest, max(shortest, (self._since - self._began) / 60))
        return self._steps_before == 0 or self._since - self._reported >= pause

    def take(self, step: int, batch_size: int) -> StepTimes:
        """The event of the time since the last call. `step`: those done in the run. `batch_size`:
        of all ranks.
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
        """Seconds in which this thread had no core; None where that is not known, or a GPU's phases
        are measured.
        """
        found = schedule() if self._timeline is None else None
        return None if found is None else found[1]

    def _delay_since_the_last(self) -> dict[str, float]:
        before = self._delayed
        self._delayed = self._run_delay(self._schedule)
        if before is None or self._delayed is None:
            return {}
        return {"run_delay": round(max(0.0, self._delayed - before), DIGITS)}

    def _move_waiting(self, seconds: dict[str, float], steps: int) -> None:
        """Take the waiting for messages out of the passes; where it is not known, there is no
        communication at all.
        """
        waited = self.waiting.take(steps)
        if waited is None:
            seconds["other"] += seconds.pop("communication")
            return
        waited = min(waited, seconds["compute"])
        seconds["compute"] -= waited
        seconds["communication"] += waited


def step_clock(step: Step) -> StepClock:
    """The clock of a rank's steps, as its device and its strategy need it."""
    strategy = step.strategy
    ranks = step.strategy.ranks
    shared = [p for p in step.model.parameters() if p.requires_grad] if ranks.size > 1 else []
    size = sum(p.numel() * p.element_size() for p in shared)
    return StepClock(
        strategy.waiting(step.wrapped),
        TimeLine() if step.device.type == "cuda" else None,
        message_bytes=size,
    )
