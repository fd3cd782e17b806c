"""CPU time of a trial as a run of this machine, against its program alone.

The cost of a sweep with few trials is taken from one with more, so that starting up does not count.
All processes do: driver, supervisor, launcher and program.
"""

from __future__ import annotations

import statistics
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.measure import BIN, Comparison, Cost, compare, cost, options, report, workplace

JOB = """name: tiny
entrypoint: train.py
args: {x: 1}
sweep: {space: {args.x: "uniform(0, 1)"}, objective: {metric: loss, goal: minimize}, method: random, parallel: 1}
"""
PROGRAM = "import time\ntime.sleep(0.01)\n"
REPORT = "from cloudtrain_job import log_metrics\nlog_metrics(loss=1.0)\n"
FEW = 2
TRIALS = 8
LIMIT = 3600
"""Maximum seconds of a sweep: a busy machine takes long for trials that import torch."""


def main() -> None:
    """Print a row for a program that does not import torch, and one for a program that does."""
    parsed = options(rounds=5)
    comparisons = []
    for title, first in (("", ""), (", which imports torch", "import torch\n")):
        what = f"{TRIALS} trials of a program of 10 ms{title}"
        comparison = Comparison(what, "the program alone", {"wall": None, "cpu": None})
        sides = (partial(_cost_of_trials, first), partial(_cost_of_program, first))
        compare(comparison, *sides, parsed.rounds, warm_ups=1)
        median = statistics.median(one.cpu for one in comparison.ours) / TRIALS
        comparison.notes["CPU seconds of a trial"] = f"{median:.2f}"
        comparisons.append(comparison)
        report(comparisons, parsed.json)
        sys.stdout.flush()


def _cost_of_trials(first: str) -> Cost:
    """Return the cost of the trials of a sweep after the first ones."""
    with workplace() as (place, env):
        job = place / "job"
        job.mkdir()
        (job / "job.yaml").write_text(JOB)
        (job / "train.py").write_text(first + PROGRAM + REPORT)
        sweep = (str(BIN / "cloudtrain"), "sweep", "--provider", "local", "--yes", "--trials")
        costs = [cost([*sweep, str(number)], env, job, LIMIT) for number in (FEW, FEW + TRIALS)]
    few, many = costs
    return Cost(wall=many.wall - few.wall, cpu=many.cpu - few.cpu)


def _cost_of_program(first: str) -> Cost:
    """Return the cost of the program, as often."""
    with workplace() as (place, env):
        (place / "train.py").write_text(first + PROGRAM)
        costs = [cost([sys.executable, "train.py"], env, place) for _ in range(TRIALS)]
    return Cost(wall=sum(one.wall for one in costs), cpu=sum(one.cpu for one in costs))


if __name__ == "__main__":
    main()
