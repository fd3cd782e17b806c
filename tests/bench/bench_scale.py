"""Growth of costs: a node beside more nodes, commands beside more runs, a trial after more trials.

Each row is the larger case against the smallest one of the same round.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.bench_list import RUNS, fill
from tests.bench.bench_trials import JOB, PROGRAM, REPORT
from tests.bench.measure import (
    BIN,
    Comparison,
    Cost,
    compare,
    cost,
    cpu_until_now,
    options,
    report,
    workplace,
)

LIMIT = 3600
"""Maximum seconds of a command on a busy machine."""
BAR = 1.2

FEWEST_NODES = 2
NODES = (4, 8, 16)
WIDE = "name: wide\nentrypoint: train.py\nresources: {{nodes: {nodes}, processes: 1}}\n"

FEW_RUNS = 100
COMMANDS = ("submit --provider local", "status digits-00042", "status", "logs digits-00042")

TRIALS = 1000
STEP = 100
"""Trials of a figure."""
LOOK_SECONDS = 0.1


def main() -> None:
    """Print the rows, each group at its end."""
    parsed = options(rounds=3)
    comparisons = []
    for measure in (nodes, runs, trials):
        rows = measure(parsed.rounds)
        report(rows, None)
        sys.stdout.flush()
        comparisons += rows

    report(comparisons, parsed.json)


def nodes(rounds: int) -> list[Comparison]:
    """Return the cost of a node of a job whose program does nothing."""
    rows = []
    for number in NODES:
        row = Comparison(f"a node of {number}", f"a node of {FEWEST_NODES}", {"cpu": BAR})
        rows.append(
            compare(row, partial(_of_node, number), partial(_of_node, FEWEST_NODES), rounds, 0)
        )

    return rows


def _of_node(number: int) -> Cost:
    with workplace() as (place, env):
        job = place / "job"
        job.mkdir()
        (job / "train.py").write_text("print('done')\n")
        (job / "job.yaml").write_text(WIDE.format(nodes=number))
        whole = cost([BIN / "cloudtrain", "submit", "--provider", "local"], env, job, LIMIT)

    return Cost(wall=whole.wall / number, cpu=whole.cpu / number)


def runs(rounds: int) -> list[Comparison]:
    """Return the cost of commands beside many ended runs."""
    with workplace() as (place, env):
        places = []
        for number in (RUNS, FEW_RUNS):
            job = place / f"job-{number}"
            job.mkdir()
            (job / "train.py").write_text("print('done')\n")
            (job / "job.yaml").write_text("name: tiny\nentrypoint: train.py\n")
            fill(place / f"data-{number}", number)
            places.append((job, {**env, "CLOUDTRAIN_DATA_DIR": str(place / f"data-{number}")}))

        rows = []
        for words in COMMANDS:
            argv = [str(BIN / "cloudtrain"), *words.split()]
            what = f"`cloudtrain {words}` beside {RUNS} runs"
            row = Comparison(what, f"beside {FEW_RUNS}", {"cpu": BAR})
            many, few = (partial(cost, argv, its_env, job, LIMIT) for job, its_env in places)
            rows.append(compare(row, many, few, rounds, warm_ups=1))

    return rows


def trials(rounds: int) -> list[Comparison]:
    """Return the cost of the last trials of a sweep against its first ones."""
    what = f"a trial of {TRIALS - STEP + 1} to {TRIALS}"
    row = Comparison(what, f"a trial of 1 to {STEP}", {"cpu": BAR})
    for _ in range(max(1, rounds // 3)):  # each takes half an hour
        costs = _of_trials()
        row.ours.append(costs[-1])
        row.theirs.append(costs[0])

    return [row]


def _of_trials() -> Sequence[Cost]:
    """Return the cost of a trial in each hundred of a sweep."""
    with workplace() as (place, env):
        job = place / "job"
        job.mkdir()
        (job / "job.yaml").write_text(JOB)
        (job / "train.py").write_text(PROGRAM + REPORT)
        argv = [str(BIN / "cloudtrain"), "sweep", "--provider", "local", "--yes", "--trials"]
        sweep = subprocess.Popen(
            [*argv, str(TRIALS)],
            env=env,
            cwd=job,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        costs: list[Cost] = []
        before = (time.perf_counter(), cpu_until_now())
        while sweep.poll() is None:
            time.sleep(LOOK_SECONDS)
            begun = sum(1 for _ in place.glob("data/runs/*"))
            if begun // STEP > len(costs):
                after = (time.perf_counter(), cpu_until_now())
                costs.append(Cost((after[0] - before[0]) / STEP, (after[1] - before[1]) / STEP))
                before = after

        if sweep.returncode != 0:
            raise RuntimeError(f"the sweep ended with code {sweep.returncode}")

    return costs


if __name__ == "__main__":
    main()
