"""CPU time of a trial that does nothing: ours, with its journal on disk, against Optuna alone.

Each side runs as a process with few trials and as one with many. The difference is divided by the
additional trials, so that starting up does not count. A suggestion after 1,000 trials is timed in its
process: ours has 20, each with a new result, and Optuna's study is asked and told 20 times.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.measure import Comparison, Cost, compare, cost, options, report, workplace

ROOT = Path(__file__).resolve().parents[2]
FEW = 50

OURS = """
import sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from cloudtrain.spec.search_space import read_space
from cloudtrain.sweeps.definition import Definition
from cloudtrain.sweeps.driver import drive
from cloudtrain.sweeps.journal import Reported, RunEnded
from cloudtrain.sweeps.journal import SweepFolder

class Trials:
    def start(self, trial): return None
    def has_run(self, trial): return True
    def publish(self, state): pass
    def request_stop(self, trial): pass
    def failure(self, state): return ""
    def observe(self, trial):
        now, value = time.time(), (trial.parameters["x"] - 0.3) ** 2
        return [Reported(time=now, trial=trial.number, report=1, value=value),
                RunEnded(time=now, trial=trial.number, run=trial.run, outcome="completed")]

definition = Definition(sweep_id="bench", name="bench", provider="local", metric="loss", goal="minimize",
                        space=read_space({{"x": "uniform(0, 1)", "y": "loguniform(1e-5, 1)"}}),
                        sampler={sampler!r}, trials={trials})
folder = SweepFolder.create(Path(sys.argv[1]), definition, {{"spec.yaml": "", "plan.json": "{{}}"}})
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

TIMED = """
import random, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
import optuna
from cloudtrain.spec.search_space import read_space
from cloudtrain.sweeps.definition import Definition
from cloudtrain.sweeps.journal import Launching, Reported, RunEnded, Suggested
from cloudtrain.sweeps.optuna_sampler import OptunaSampler, distributions_of
from cloudtrain.sweeps.state import SweepState

optuna.logging.set_verbosity(optuna.logging.ERROR)
definition = Definition(sweep_id="bench", name="bench", provider="local", metric="loss", goal="minimize",
                        space=read_space({{"x": "uniform(0, 1)", "y": "loguniform(1e-5, 1)"}}),
                        sampler="tpe", trials=2000)
draw = random.Random(0)
points = [{{"x": draw.random(), "y": 10 ** -draw.uniform(0, 5)}} for _ in range(1000)]

def measure(suggest, end):
    for point in points:
        end(point, draw.random())
    end(suggest(), draw.random())
    seconds = 0.0
    for _ in range(20):
        begun = time.process_time()
        point = suggest()
        seconds += time.process_time() - begun
        end(point, draw.random())
    Path(sys.argv[1]).write_text(str(seconds))
"""

SUGGESTS = """
state, sampler = SweepState.new(definition), OptunaSampler(definition)

def end(point, value):
    trial, run = len(state.trials), f"run-{len(state.trials)}"
    for event in (Suggested(time=1.0, trial=trial, parameters=point), Launching(time=1.0, trial=trial, run=run),
                  Reported(time=1.0, trial=trial, report=1, value=value),
                  RunEnded(time=1.0, trial=trial, run=run, outcome="completed")):
        state.apply(event)

measure(lambda: sampler.suggest(state), end)
"""

ASKS = """
space = distributions_of(definition)
study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0))

def end(point, value):
    if isinstance(point, dict):
        study.add_trial(optuna.trial.create_trial(params=point, distributions=space, value=value))
    else:
        study.tell(point, value)

measure(lambda: study.ask(space), end)
"""


def main() -> None:
    """Compare TPE and random search, and print the seconds of their trials."""
    parsed = options(rounds=5)
    comparisons = []
    for sampler, trials in (("tpe", 200), ("random", 1000)):
        comparison = Comparison(
            f"{trials} trials that do nothing, {sampler}",
            f"Optuna's {sampler}, in memory",
            {"wall": None, "cpu": None},
        )
        compare(
            comparison,
            partial(_cost_of, OURS, sampler, trials),
            partial(_cost_of, OPTUNA, sampler, trials),
            parsed.rounds,
            warm_ups=1,
        )
        comparisons.append(comparison)

    comparison = Comparison("20 suggestions after 1,000 trials", "Optuna's `ask`", {"cpu": 1.5})
    sides = (partial(_seconds_of, SUGGESTS), partial(_seconds_of, ASKS))
    comparisons.append(compare(comparison, *sides, parsed.rounds, warm_ups=1))
    report(comparisons, parsed.json)


def _seconds_of(program: str) -> Cost:
    """Return the CPU time that a program has measured."""
    with workplace() as (place, env):
        env["OMP_NUM_THREADS"] = "1"
        (place / "timed.py").write_text(TIMED.format(root=str(ROOT)) + program)
        cost([sys.executable, place / "timed.py", place / "seconds"], env, place)
        return Cost(wall=0.0, cpu=float((place / "seconds").read_text()))


def _cost_of(program: str, sampler: str, trials: int) -> Cost:
    """Return the cost of this many trials after the first ones."""
    with workplace() as (place, env):
        env["OMP_NUM_THREADS"] = "1"
        costs = []
        for number in (FEW, FEW + trials):
            script = place / f"{number}.py"
            script.write_text(program.format(root=str(ROOT), sampler=sampler, trials=number))
            costs.append(cost([sys.executable, script, place / str(number)], env, place))
    few, many = costs
    return Cost(wall=many.wall - few.wall, cpu=many.cpu - few.cpu)


if __name__ == "__main__":
    main()
