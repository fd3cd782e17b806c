"""A local run of a trivial script against bare torchrun, 2 and 8 processes: `python
tests/bench/bench_local.py`.

Wall: until the command returns. CPU: client, supervisor, launcher, torchrun and ranks, all of them.
The second row is the stricter one: our ranks leave without tearing down the interpreter; there the
script itself leaves so, on both sides. What we save is the import of torch in every rank, what we
add is client, supervisor and launcher.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.measure import BIN, Comparison, compare, cost, options, report, workplace

SCRIPT = """import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
"""
JOB = "name: trivial\nentrypoint: train.py\nresources: {processes: 2}\n"


def main() -> None:
    """Print the row."""
    parsed = options(rounds=10)
    with workplace() as (place, env):
        job = place / "job"
        job.mkdir()
        (job / "job.yaml").write_text(JOB)
        (job / "train.py").write_text(SCRIPT)
        (job / "leave.py").write_text(SCRIPT + "import os\nos._exit(0)\n")
        comparisons = []
        for script, how, processes, bars in (
            ("train.py", "", 2, {"wall": 0.6, "cpu": 0.55}),
            ("leave.py", ", a script that ends by os._exit", 2, {"wall": 0.6, "cpu": 0.55}),
            ("train.py", "", 8, {"wall": 0.6, "cpu": 0.3}),
        ):
            submit: list[str | Path] = [
                sys.executable,
                BIN / "cloudtrain",
                "submit",
                "--provider",
                "local",
            ]
            submit += ["--set", f"entrypoint={script}", "--set", f"resources.processes={processes}"]
            torchrun: list[str | Path] = [
                sys.executable,
                BIN / "torchrun",
                "--nproc-per-node",
                str(processes),
                script,
            ]
            comparisons.append(
                compare(
                    Comparison(f"local run, {processes} processes{how}", "bare torchrun", bars),
                    lambda argv=submit: cost(argv, env, job),  # type: ignore[misc]
                    lambda argv=torchrun: cost(argv, env, job),  # type: ignore[misc]
                    parsed.rounds,
                    warm_ups=1,
                )
            )
    report(comparisons, parsed.json)


if __name__ == "__main__":
    main()
