"""A local run of a trivial script, two processes, against bare torchrun: `python tests/bench/bench_local.py`.

Wall: until the command returns. CPU: client, supervisor, launcher, torchrun and ranks, all of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.pairs import Comparison, compare, options, report
from tests.bench.processes import BIN, cost, workplace

SCRIPT = """import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
"""
JOB = "name: trivial\nentrypoint: train.py\nresources: {processes: 2}\n"


def main() -> None:
    """Print the row."""
    given = options(rounds=10)
    with workplace() as (place, env):
        job = place / "job"
        job.mkdir()
        (job / "job.yaml").write_text(JOB)
        (job / "train.py").write_text(SCRIPT)
        comparison = compare(
            Comparison("local run, 2 processes", "bare torchrun", {"wall": 1.15, "cpu": 1.10}),
            lambda: cost([sys.executable, BIN / "cloudtrain", "submit", "--provider", "local"], env, job),
            lambda: cost([sys.executable, BIN / "torchrun", "--nproc-per-node", "2", "train.py"], env, job),
            given.rounds,
            warm_ups=1,
        )
    report([comparison], given.json)


if __name__ == "__main__":
    main()
