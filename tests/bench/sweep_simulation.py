"""Searches in simulated time: workers that train by learning curves, a delay for each start and
each stop from outside.

A unit of time is an epoch, which is also a report. Ours is the sweep's own kernel, driven by the
events of its journal; others are asked at each report whether the trial is to be stopped.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from cloudtrain.spec.search_space import Dimension, Scalar
from cloudtrain.sweeps.definition import Definition
from cloudtrain.sweeps.events import Launching, Reported, RunEnded, Suggested
from cloudtrain.sweeps.rungs import goes_on, rungs_of
from cloudtrain.sweeps.schedule import Start, Suggest, next_action
from cloudtrain.sweeps.state import SweepState
from cloudtrain.sweeps.suggest import Suggester, suggester_of

CurveOf = Callable[[Mapping[str, Scalar]], Sequence[float]]
"""The values of a metric that a configuration reaches, one for each epoch; more is better."""
Outcome = tuple[float, Sequence[float]]
"""The best value that was seen, and the whole curve of the configuration that reached it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """What every search is given."""

    space: Mapping[str, Dimension]
    curve_of: CurveOf
    epochs: int
    eta: int = 3
    workers: int = 4
    horizon: float = 150.0
    start: float = 0.0
    """From a decision to start a trial until its training begins."""
    stop: float = 0.0
    """From a decision to stop a trial from outside until its worker is free. A job that ends itself
    has none.
    """


def definition_of(
    world: World, sampler: str, seed: int, *, promotes: bool, halving: bool = True
) -> Definition:
    """A sweep of ours in that world."""
    return Definition(
        sweep_id="bench",
        name="bench",
        provider="local",
        metric="value",
        goal="maximize",
        space=world.space,
        sampler=sampler,  # type: ignore[arg-type]
        seed=seed,
        trials=10_000,
        parallel=world.workers,
        rungs=tuple(rungs_of(1, world.eta, world.epochs)) if halving else (),
        eta=world.eta,
        last_report=world.epochs,
        promotes=promotes,
    )


class OurSearch:
    """Our kernel: `next_action`, the rungs and the suggester, told of all that happens by events."""

    def __init__(self, world: World, definition: Definition) -> None:
        self.world = world
        self.state = SweepState.new(definition)
        self.suggester = suggester_of(definition)
        self._curves: dict[int, Sequence[float]] = {}
        self._reports: list[tuple[float, int, int]] = []
        self._order = count()

    def run(self) -> Outcome:
        """Search until the time is over."""
        self._start_all(0.0)
        while self._reports[0][0] <= self.world.horizon:
            now, _, number = heapq.heappop(self._reports)
            self._report(now, number)
            self._start_all(now)
        best = self.state.best
        assert best is not None
        assert best.value is not None
        return best.value, self._curves[best.number]

    def _start_all(self, now: float) -> None:
        while (action := next_action(self.state, now)) is not None:
            number = len(self.state.trials)
            if isinstance(action, Suggest):
                values = self.suggester.suggest(self.state)
                self.state.apply(Suggested(time=now, trial=number, parameters=values))
                self._curves[number] = self.world.curve_of(values)
                continue
            assert isinstance(action, Start)
            self.state.apply(
                Launching(time=now, trial=action.trial, run=action.run, until=action.until)
            )
            self._next(now + self.world.start, action.trial)

    def _next(self, now: float, number: int) -> None:
        heapq.heappush(self._reports, (now + 1, next(self._order), number))

    def _report(self, now: float, number: int) -> None:
        trial = self.state.trials[number]
        report = trial.reports + 1
        self.state.apply(
            Reported(time=now, trial=number, report=report, value=self._curves[number][report - 1])
        )
        outcome = self._outcome(number, report)
        if outcome:
            self.state.apply(RunEnded(time=now, trial=number, run=trial.run, outcome=outcome))  # type: ignore[arg-type]
        else:
            self._next(now, number)

    def _outcome(self, number: int, report: int) -> str:
        """How the run ends with this report; empty: it goes on. As the job decides it by itself."""
        trial = self.state.trials[number]
        definition = self.state.definition
        if report == self.world.epochs:
            return "completed"
        if report == trial.runs[-1].until:
            return "paused"
        if definition.promotes or report not in definition.rungs:
            return ""
        values = self.state.rungs[definition.rungs.index(report)]
        others = [value for other, value in values.items() if other != number]
        return "" if goes_on(values[number], others, definition.eta, definition.goal) else "pruned"


Stops = Callable[[int, int, float], bool]
"""Whether a trial is to be stopped: its number, the epoch, its value there."""


def search_with(
    world: World, configurations: Iterator[Mapping[str, Scalar]], stops: Stops
) -> Outcome:
    """A search that is only asked whether to stop a trial, as Ray's scheduler and Optuna's pruner
    are.
    """
    curves: list[Sequence[float]] = []
    reports: list[tuple[float, int, int]] = []
    best: Outcome = (float("-inf"), ())

    def begin(now: float) -> None:
        heapq.heappush(reports, (now + world.start + 1, len(curves), 1))
        curves.append(world.curve_of(next(configurations)))

    for _ in range(world.workers):
        begin(0.0)
    while reports[0][0] <= world.horizon:
        now, number, epoch = heapq.heappop(reports)
        value = curves[number][epoch - 1]
        if value > best[0]:
            best = value, curves[number]
        is_stopped = stops(number, epoch, value)
        if epoch == world.epochs:
            begin(now)
        elif is_stopped:
            begin(now + world.stop)
        else:
            heapq.heappush(reports, (now + 1, number, epoch + 1))
    return best


def configurations_of(
    suggester: Suggester, definition: Definition
) -> Iterator[Mapping[str, Scalar]]:
    """What a suggester chooses that learns nothing."""
    state = SweepState.new(definition)
    while True:
        values = suggester.suggest(state)
        yield values
        state.apply(Suggested(time=0.0, trial=len(state.trials), parameters=values))
