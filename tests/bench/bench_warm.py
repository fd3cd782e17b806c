"""Twenty short runs in turn, from a warm process against each by itself: `python
tests/bench/bench_warm.py`.

A trivial script, and the shared trainer on digits for one epoch, one process each. CPU: the program
that starts the runs, the warm process, supervisors, launchers, torchrun and ranks, all of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.pairs import Comparison, compare, options, report
from tests.bench.processes import cost, workplace

RUNS = 20
PROGRAM = """
import os, sys
from contextlib import nullcontext
from pathlib import Path
import cloudtrain
from cloudtrain.providers import get_provider

file, runs, warm = sys.argv[1:]
with get_provider("local").warm(Path(os.environ["CLOUDTRAIN_DATA_DIR"])) if warm == "warm" else nullcontext():
    for _ in range(int(runs)):
        state = cloudtrain.submit(cloudtrain.plan(cloudtrain.load(file))).wait()
        assert state.state == "succeeded", state.reason
"""
JOBS = {
    "a trivial script": "name: trivial\nentrypoint: train.py\n",
    "digits, 1 epoch": "name: digits\nargs: {task: digits, epochs: 1}\nenv: {OMP_NUM_THREADS: 1}\n",
}


def main() -> None:
    """Print the rows."""
    given = options(rounds=3)
    found = []
    with workplace() as (place, env):
        for number, (what, document) in enumerate(JOBS.items()):
            job = place / f"job-{number}"
            job.mkdir()
            (job / "job.yaml").write_text(document)
            (job / "train.py").write_text("import torch\nprint(torch.__version__)\n")
            argv: list[str | Path] = [sys.executable, "-c", PROGRAM, job / "job.yaml", str(RUNS)]
            found.append(
                compare(
                    Comparison(
                        f"{RUNS} runs of {what}", "each by itself", {"wall": None, "cpu": None}
                    ),
                    lambda argv=argv, job=job: cost([*argv, "warm"], env, job),  # type: ignore[misc]
                    lambda argv=argv, job=job: cost([*argv, "cold"], env, job),  # type: ignore[misc]
                    given.rounds,
                    warm_ups=0,
                )
            )
    report(found, given.json)


if __name__ == "__main__":
    main()
