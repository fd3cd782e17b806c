"""Trials with learning curves, of LCBench's surrogate (`pip install onnxruntime`): early stopping
in simulated time.

The data is YAHPO Gym's model of LCBench (Apache-2.0, of slds-lmu/yahpo_data), kept beside the
checkout.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cloudtrain.spec.search_space import Choice, Integers, Scalar, read_space
from cloudtrain.spec.sweep_rules import SAMPLERS
from cloudtrain.sweeps.suggest import suggester_of
from tests.bench.sweep_simulation import (
    OurSearch,
    Outcome,
    World,
    configurations_of,
    definition_of,
    search_with,
)

DATA = Path(__file__).resolve().parents[3] / "shared" / "data" / "lcbench"
EPOCHS = 52
ETA = 3
TASKS = 12
POOL = 1200
SPACE = read_space(
    {
        "batch_size": "logint(16, 512)",
        "learning_rate": "loguniform(1e-4, 1e-1)",
        "momentum": "uniform(0.1, 0.99)",
        "weight_decay": "uniform(1e-5, 0.1)",
        "num_layers": "int(1, 5)",
        "max_units": "logint(64, 1024)",
        "max_dropout": "uniform(0, 1)",
    }
)
DELAYS = ((0.0, 0.0), (2.0, 2.0), (10.0, 10.0))
"""To start and to stop a trial, in epochs."""
BARS = {0.0: 0.167, 2.0: 0.224, 10.0: 0.386}
"""The better of stopping and promotion with random values, as measured before ours was written."""


class Surrogate:
    """Validation accuracies of a configuration on a task."""

    def __init__(self, folder: Path) -> None:
        onnxruntime = import_module("onnxruntime")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self.codes: Mapping[str, int] = json.loads((folder / "encoding.json").read_text())[
            "OpenML_task_id"
        ]
        self.tasks = list(self.codes)[1 : TASKS + 1]

    def curves(self, task: str, points: Sequence[Sequence[float]]) -> Sequence[Sequence[float]]:
        """One curve for each point, from 0 to 1."""
        import numpy

        rows = numpy.empty((len(points) * EPOCHS, 8), numpy.float32)
        rows[:, 0] = numpy.tile(numpy.arange(1, EPOCHS + 1), len(points))
        rows[:, 1:] = numpy.repeat(numpy.asarray(points, float), EPOCHS, 0)
        codes = numpy.full((len(rows), 1), self.codes[task], numpy.int32)
        found = self._session.run(None, {"x_cat": codes, "x_cont": rows})[0]
        curves: Sequence[Sequence[float]] = (found[:, 1].reshape(-1, EPOCHS) / 100).tolist()
        return curves

    def curve_of(self, task: str) -> Callable[[Mapping[str, Scalar]], Sequence[float]]:
        """The curve of a trial's values."""
        return lambda values: self.curves(task, [[float(values[key]) for key in SPACE]])[0]

    def range_of(self, task: str) -> tuple[float, float]:
        """The best and the median last value of 1,200 random points: regrets 0 and 1."""
        import numpy

        drawn = numpy.random.default_rng(0)

        def log(low: float, high: float) -> Any:
            return numpy.exp(drawn.uniform(numpy.log(low), numpy.log(high), POOL))

        # In the order in which the bars were measured, so that the points are the same.
        columns = [numpy.round(log(16, 512)), log(1e-4, 1e-1), drawn.uniform(0.1, 0.99, POOL)]
        columns += [
            drawn.uniform(1e-5, 0.1, POOL),
            drawn.integers(1, 6, POOL),
            numpy.round(log(64, 1024)),
        ]
        points = numpy.stack([*columns, drawn.uniform(0, 1, POOL)], 1).tolist()
        last = [
            curve[-1]
            for at in range(0, POOL, 100)
            for curve in self.curves(task, points[at : at + 100])
        ]
        return max(last), statistics.median(last)


Search = Callable[[World, int], Outcome]
"""A search in a world, with a seed."""


def ours(sampler: str, *, promotes: bool, halving: bool = True) -> Search:
    """A sweep of ours."""
    return lambda world, seed: OurSearch(
        world, definition_of(world, sampler, seed, promotes=promotes, halving=halving)
    ).run()


def rays(world: World, seed: int) -> Outcome:
    """Ray Tune's ASHA scheduler, asked at each epoch; random values, as Ray chooses them by
    default.
    """
    schedulers = import_module("ray.tune.schedulers")
    scheduler = schedulers.AsyncHyperBandScheduler(
        time_attr="epoch",
        metric="value",
        mode="max",
        max_t=EPOCHS,
        grace_period=1,
        reduction_factor=ETA,
    )
    known: dict[int, Any] = {}

    def stops(number: int, epoch: int, value: float) -> bool:
        if number not in known:
            known[number] = SimpleNamespace(trial_id=str(number))
            scheduler.on_trial_add(None, known[number])
        result = {"epoch": epoch, "value": value}
        return bool(
            scheduler.on_trial_result(None, known[number], result) == schedulers.TrialScheduler.STOP
        )

    definition = definition_of(world, "random", seed, promotes=False)
    return search_with(world, configurations_of(suggester_of(definition), definition), stops)


def optunas(sampler: str) -> Search:
    """Optuna's successive halving, asked at each epoch."""

    def search(world: World, seed: int) -> Outcome:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        kinds = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
        pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=ETA)
        study = optuna.create_study(
            direction="maximize", sampler=kinds[sampler](seed=seed), pruner=pruner
        )
        asked: list[Any] = []

        def configurations() -> Any:
            for _ in count():
                asked.append(study.ask(_distributions()))
                yield asked[-1].params

        def stops(number: int, epoch: int, value: float) -> bool:
            trial = asked[number]
            trial.report(value, epoch)
            if epoch == EPOCHS:
                study.tell(trial, value)
            elif trial.should_prune():
                study.tell(trial, state=optuna.trial.TrialState.PRUNED)
                return True
            return False

        return search_with(world, configurations(), stops)

    return search


def _distributions() -> dict[str, Any]:
    from optuna.distributions import FloatDistribution, IntDistribution

    return {
        key: IntDistribution(item.low, item.high, log=item.log)
        if isinstance(item, Integers)
        else FloatDistribution(item.low, item.high, log=item.log)
        for key, item in SPACE.items()
        if not isinstance(item, Choice)
    }


def searches(start: float) -> dict[str, Search]:
    """What is compared: ours, first as it is by default, then others."""
    default = SAMPLERS["asha"][0]
    promotes = start == 0
    found = {"ours, by default": ours(default, promotes=promotes)}
    for sampler in ("random", "qmc", "tpe"):
        for one in (True, False):
            if (sampler, one) != (default, promotes):
                found[f"ours, {sampler}, {'promotion' if one else 'stopping'}"] = ours(
                    sampler, promotes=one
                )
    found["random, nothing ended early"] = ours("random", promotes=False, halving=False)
    found["Optuna's pruner, random"] = optunas("random")
    found["Optuna's pruner, TPE"] = optunas("tpe")
    try:
        import_module("ray.tune.schedulers")
    except ImportError as error:
        print(f"Ray is left out: {error}; pip install 'ray[tune]'")
    else:
        found["Ray Tune's ASHA, random"] = rays
    return found


def run(seeds: int, only: str = "") -> list[dict[str, object]]:
    """Rows: mean normalised regret and its standard error, for each pair of delays. ImportError,
    FileNotFoundError.
    """
    if not (DATA / "model.onnx").exists():
        raise FileNotFoundError(f"{DATA / 'model.onnx'} is not there")
    surrogate = Surrogate(DATA)
    ranges = {task: surrogate.range_of(task) for task in surrogate.tasks}
    found: list[dict[str, object]] = []
    for start, stop in DELAYS:
        for name, search in searches(start).items():
            if only and only not in name:
                continue
            before = time.process_time()
            regrets = []
            for task, (top, middle) in ranges.items():
                world = World(
                    space=SPACE,
                    curve_of=surrogate.curve_of(task),
                    epochs=EPOCHS,
                    start=start,
                    stop=stop,
                )
                for seed in range(seeds):
                    value, curve = search(world, seed)
                    regrets.append((top - max(curve[-1], value)) / (top - middle))
            row: dict[str, object] = {"part": "curves", "start": start, "stop": stop, "who": name}
            row |= {
                "regret": statistics.fmean(regrets),
                "error": statistics.stdev(regrets) / len(regrets) ** 0.5,
            }
            row |= {
                "bar": BARS[start],
                "cpu_s": (time.process_time() - before) / len(regrets),
                "regrets": regrets,
            }
            print(
                f"{start:g}/{stop:g} {name}: {row['regret']:.4f} ({row['error']:.4f})", flush=True
            )
            found.append(row)
    return found
