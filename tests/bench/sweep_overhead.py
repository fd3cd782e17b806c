"""What a search itself costs: trials that do nothing but report one value, in processes of their
own.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

from tests.bench.processes import cost, workplace

ROOT = Path(__file__).resolve().parents[2]

OURS = """
import sys, time
from contextlib import nullcontext
from pathlib import Path
sys.path.insert(0, {root!r})
from cloudtrain.spec.search_space import read_space
from cloudtrain.sweeps.definition import Definition
from cloudtrain.sweeps.driver import drive
from cloudtrain.sweeps.events import Reported, RunEnded
from cloudtrain.sweeps.journal import SweepFolder

class Trials:
    def warm(self): return nullcontext()
    def start(self, trial): return None
    def publish(self, state): pass
    def request_stop(self, trial): pass
    def observe(self, trial):
        now, value = time.time(), (trial.parameters["x"] - 0.3) ** 2
        return [Reported(time=now, trial=trial.number, report=1, value=value),
                RunEnded(time=now, trial=trial.number, run=trial.run, outcome="completed")]

definition = Definition(sweep_id="bench", name="bench", provider="local", metric="loss", goal="minimize",
                        space=read_space({{"x": "uniform(0, 1)", "y": "loguniform(1e-5, 1)"}}),
                        sampler={sampler!r}, trials={trials})
folder = SweepFolder.create(Path.cwd() / "data{trials}{sampler}", definition, {{"spec.yaml": "", "plan.json": "{{}}"}})
state = drive(folder, Trials(), pause=lambda: None)
assert len(state.trials) == {trials} and state.state == "succeeded", state
"""

OPTUNA = """
import optuna
optuna.logging.set_verbosity(optuna.logging.ERROR)
sampler = {{"tpe": optuna.samplers.TPESampler, "random": optuna.samplers.RandomSampler}}[{sampler!r}](seed=0)
def run(trial):
    trial.suggest_float("y", 1e-5, 1, log=True)
    return (trial.suggest_float("x", 0, 1) - 0.3) ** 2
optuna.create_study(sampler=sampler).optimize(run, n_trials={trials})
"""

RAY = """
import ray
from ray import tune
ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
def run(config):
    tune.report({{"loss": (config["x"] - 0.3) ** 2}})
space = {{"x": tune.uniform(0, 1), "y": tune.loguniform(1e-5, 1)}}
found = tune.Tuner(run, param_space=space, run_config=tune.RunConfig(verbose=0),
                   tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples={trials})).fit()
assert len(found) == {trials} and not found.errors
"""

SEARCHES = (
    ("ours, random, its journal on disk", OURS, "random", (50, 250)),
    ("ours, TPE, its journal on disk", OURS, "tpe", (50, 250)),
    ("Optuna, random, in memory", OPTUNA, "random", (50, 250)),
    ("Optuna, TPE, in memory", OPTUNA, "tpe", (50, 250)),
    ("Ray Tune, random, an actor for each trial", RAY, "random", (2, 10)),
)


def run() -> list[dict[str, object]]:
    """Rows: a trial's share of CPU and wall time, from runs of two lengths, so that starting up is
    not counted.
    """
    found: list[dict[str, object]] = []
    with workplace() as (place, env):
        env |= {
            "OMP_NUM_THREADS": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "TMPDIR": os.environ.get("TMPDIR", "/tmp"),  # noqa: S108
        }
        for who, program, sampler, lengths in SEARCHES:
            if program is RAY and importlib.util.find_spec("ray") is None:
                print("Ray is left out: it is not installed; pip install 'ray[tune]'")
                continue
            costs = []
            for trials in lengths:
                script = place / f"{sampler}{trials}.py"
                script.write_text(program.format(root=str(ROOT), sampler=sampler, trials=trials))
                costs.append(cost([sys.executable, script], env, place, limit=580))
            more = lengths[1] - lengths[0]
            cpu, wall = (
                (getattr(costs[1], kind) - getattr(costs[0], kind)) / more * 1000
                for kind in ("cpu", "wall")
            )
            found.append(
                {"part": "overhead", "who": who, "cpu_ms": cpu, "wall_ms": wall, "trials": more}
            )
    return found
