"""A local run of a trivial script, two processes, against bare torchrun: `python tests/bench/bench_local.py`.

Wall: until the command returns. CPU: client, supervisor, launcher, torchrun and ranks, all of them. The second row
is the stricter one: our ranks leave without tearing down the interpreter, which saves more than all else costs; there
the script itself leaves so, on both sides, and what is left is the cost of client, supervisor and launcher.
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
        (job / "leave.py").write_text(SCRIPT + "import os\nos._exit(0)\n")
        submit: list[str | Path] = [sys.executable, BIN / "cloudtrain", "submit", "--provider", "local", "--set"]
        torchrun: list[str | Path] = [sys.executable, BIN / "torchrun", "--nproc-per-node", "2"]
        found = []
        for script, how in (("train.py", ""), ("leave.py", ", a script that ends by os._exit")):
            found.append(
                compare(
                    Comparison(f"local run, 2 processes{how}", "bare torchrun", {"wall": 1.15, "cpu": 1.10}),
                    lambda script=script: cost([*submit, f"entrypoint={script}"], env, job),  # type: ignore[misc]
                    lambda script=script: cost([*torchrun, script], env, job),  # type: ignore[misc]
                    given.rounds,
                    warm_ups=1,
                )
            )
    report(found, given.json)


if __name__ == "__main__":
    main()
