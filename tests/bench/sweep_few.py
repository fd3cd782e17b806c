"""Few trials, each as long as it is let: early stopping at the same number of trials, of LCBench's
surrogate.

Syne Tune is compared where it is installed (`pip install syne-tune`).
"""

from __future__ import annotations

import datetime
import heapq
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import count
from typing import Any

from cloudtrain.spec.search_space import Integers, Scalar
from cloudtrain.spec.sweep import default_rungs
from cloudtrain.sweeps.rungs import rungs_of
from cloudtrain.sweeps.schedule import End, next_action
from tests.bench.sweep_curves import DATA, EPOCHS, SPACE, Surrogate, _distributions
from tests.bench.sweep_simulation import OurSearch, World, definition_of

NUMBERS = (20, 40, 60)
"""Of trials."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a search reached."""

    value: float
    """Best value that was seen, or the last one of the trial that reached it."""
    epochs: int
    """Trained in all trials together."""


Search = Callable[[World, int, int], Found]
"""A search in a world, with a seed and a number of trials."""


class OurFewTrials(OurSearch):
    """Our kernel, until all trials have ended."""

    def search(self) -> Found:
        """Search to the end."""
        self._start_all(0.0)
        while self._reports:
            now, _, number = heapq.heappop(self._reports)
            self._report(now, number)
            if isinstance(next_action(self.state, now), End):
                break
            self._start_all(now)
        best = self.state.best
        assert best is not None
        assert best.value is not None
        epochs = sum(trial.reports for trial in self.state.trials)
        return Found(max(best.value, self._curves[best.number][-1]), epochs)


def ours(
    sampler: str, *, promotes: bool, grace: int | None = None, eta: int | None = None
) -> Search:
    """A sweep of ours; `grace`, `eta`: by default those of a sweep that does not say."""

    def search(world: World, seed: int, trials: int) -> Found:
        first, part = default_rungs(trials, EPOCHS)
        part = eta or part
        rungs = tuple(rungs_of(grace or first, part, EPOCHS))
        definition = definition_of(world, sampler, seed, promotes=promotes)
        return OurFewTrials(
            world, replace(definition, trials=trials, eta=part, rungs=rungs)
        ).search()

    return search


class Others:
    """A search that is asked for values, and at each epoch whether the trial is to be stopped."""

    def suggest(self) -> Mapping[str, Scalar]:
        """The values of the next trial."""
        raise NotImplementedError

    def stops(self, trial: int, epoch: int, value: float) -> bool:
        """Whether a trial ends with this value."""
        raise NotImplementedError

    def end(self, trial: int, value: float, *, stopped: bool) -> None:
        """A trial has ended."""

    def search(self, world: World, trials: int) -> Found:
        """Run all trials."""
        curves: list[Any] = []
        reports: list[tuple[float, int, int, int]] = []
        order = count()
        best = float("-inf")
        epochs = 0

        def begin(now: float) -> None:
            heapq.heappush(reports, (now + 1, next(order), len(curves), 1))
            curves.append(world.curve_of(self.suggest()))

        for _ in range(min(world.workers, trials)):
            begin(0.0)
        reached: Any = ()
        while reports:
            now, _, number, epoch = heapq.heappop(reports)
            value = curves[number][epoch - 1]
            epochs += 1
            if value > best:
                best = value
                reached = curves[number]
            stopped = epoch < world.epochs and self.stops(number, epoch, value)
            if stopped or epoch == world.epochs:
                self.end(number, value, stopped=stopped)
                if len(curves) < trials:
                    begin(now)
            else:
                heapq.heappush(reports, (now + 1, next(order), number, epoch + 1))
        return Found(max(best, reached[-1]), epochs)


class Optunas(Others):
    """Optuna's TPE with a pruner."""

    def __init__(self, pruner: str, seed: int) -> None:
        self._optuna = import_module("optuna")
        self._optuna.logging.set_verbosity(self._optuna.logging.ERROR)
        sampler = self._optuna.samplers.TPESampler(seed=seed)
        chosen = getattr(self._optuna.pruners, pruner)()
        self._study = self._optuna.create_study(
            direction="maximize", sampler=sampler, pruner=chosen
        )
        self._asked: list[Any] = []

    def suggest(self) -> Mapping[str, Scalar]:
        """The values of the next trial."""
        self._asked.append(self._study.ask(_distributions()))
        values: Mapping[str, Scalar] = self._asked[-1].params
        return values

    def stops(self, trial: int, epoch: int, value: float) -> bool:
        """Whether the pruner ends a trial."""
        self._asked[trial].report(value, epoch)
        return bool(self._asked[trial].should_prune())

    def end(self, trial: int, value: float, *, stopped: bool) -> None:
        """Tell the study."""
        state = self._optuna.trial.TrialState
        if stopped:
            self._study.tell(self._asked[trial], state=state.PRUNED)
        else:
            self._study.tell(self._asked[trial], value)


class SyneTunes(Others):
    """A scheduler of Syne Tune, with its own defaults."""

    def __init__(self, name: str, seed: int) -> None:
        spaces = import_module("syne_tune.config_space")
        numpy = import_module("numpy")
        numpy.random.seed(seed)
        space = {}
        for key, item in SPACE.items():
            kind = f"{'log' if item.log else ''}{'randint' if isinstance(item, Integers) else 'uniform'}"  # type: ignore[union-attr]
            space[key] = getattr(spaces, kind)(item.low, item.high)  # type: ignore[union-attr]
        baselines = import_module("syne_tune.optimizer.baselines")
        options = {"metric": "value", "time_attr": "epoch", "max_t": EPOCHS, "do_minimize": False}
        self._scheduler = getattr(baselines, name)(space, random_seed=seed, **options)
        self._trials: list[Any] = []

    def suggest(self) -> Mapping[str, Scalar]:
        """The values of the next trial."""
        values: Mapping[str, Scalar] = self._scheduler.suggest().config
        trial = import_module("syne_tune.backend.trial_status").Trial
        made = trial(
            trial_id=len(self._trials), config=values, creation_time=datetime.datetime.now()
        )
        self._trials.append(made)
        self._scheduler.on_trial_add(made)
        return values

    def stops(self, trial: int, epoch: int, value: float) -> bool:
        """Whether the scheduler ends a trial."""
        result = {"value": value, "epoch": epoch}
        return bool(self._scheduler.on_trial_result(self._trials[trial], result) != "CONTINUE")

    def end(self, trial: int, value: float, *, stopped: bool) -> None:
        """Tell the scheduler."""
        if stopped:
            self._scheduler.on_trial_remove(self._trials[trial])
        else:
            self._scheduler.on_trial_complete(
                self._trials[trial], {"value": value, "epoch": EPOCHS}
            )


def searches() -> dict[str, Search]:
    """What is compared."""
    found: dict[str, Search] = {
        "ours, asha by default, promoted": ours("qmc", promotes=True),
        "ours, asha by default, stopped": ours("qmc", promotes=False),
        "ours, tpe, stopped": ours("tpe", promotes=False),
        "ours, asha from report 1, eta 3": ours("qmc", promotes=True, grace=1, eta=3),
        "Optuna's TPE, median pruner": (
            lambda world, seed, trials: Optunas("MedianPruner", seed).search(world, trials)
        ),
        "Optuna's TPE, to the end": (
            lambda world, seed, trials: Optunas("NopPruner", seed).search(world, trials)
        ),
    }
    try:
        import_module("syne_tune")
    except ImportError as error:
        print(f"Syne Tune is left out: {error}; pip install syne-tune")
    else:
        found["Syne Tune's ASHA"] = lambda world, seed, trials: SyneTunes("ASHA", seed).search(
            world, trials
        )
        found["Syne Tune's BOHB"] = lambda world, seed, trials: SyneTunes("BOHB", seed).search(
            world, trials
        )
    return found


def run(seeds: int, only: str = "") -> list[dict[str, object]]:
    """Rows: mean normalised regret, its standard error, and the share of all epochs. ImportError,
    FileNotFoundError.
    """
    if not (DATA / "model.onnx").exists():
        raise FileNotFoundError(f"{DATA / 'model.onnx'} is not there")
    surrogate = Surrogate(DATA)
    ranges = {task: surrogate.range_of(task) for task in surrogate.tasks}
    rows: list[dict[str, object]] = []
    for trials in NUMBERS:
        for name, search in searches().items():
            if only and only not in name:
                continue
            regrets: list[float] = []
            shares: list[float] = []
            for task, (top, middle) in ranges.items():
                world = World(space=SPACE, curve_of=surrogate.curve_of(task), epochs=EPOCHS)
                for seed in range(seeds):
                    found = search(world, seed, trials)
                    regrets.append((top - found.value) / (top - middle))
                    shares.append(found.epochs / (trials * EPOCHS))
            row: dict[str, object] = {
                "part": "few",
                "trials": trials,
                "who": name,
                "regrets": regrets,
            }
            row |= {
                "regret": statistics.fmean(regrets),
                "error": statistics.stdev(regrets) / len(regrets) ** 0.5,
            }
            row["epochs"] = statistics.fmean(shares)
            print(
                f"{trials} {name}: {row['regret']:.3f} ({row['error']:.3f}), {row['epochs']:.0%}",
                flush=True,
            )
            rows.append(row)
    return rows
