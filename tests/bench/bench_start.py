"""Host memory and time that the start of each strategy takes a rank: `python
tests/bench/bench_start.py`.

GPT-2 124M without tied weights (652 MB in float32), on as many processes of this machine as the
strategy has ranks. The peak is that of the process while the step is built, less what it had
before: the largest rank's. No data, no training.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WAYS: dict[str, tuple[int, list[str]]] = {
    "single": (1, []),
    "ddp": (4, []),
    "fsdp": (4, []),
    "hsdp": (4, ["--shard", "2"]),
    "tp": (4, []),
    "pipeline": (4, []),
    "hybrid": (4, ["--tensor", "2"]),
}
"""Ranks and flags."""
COMMON = [
    "--task",
    "gpt",
    "--size",
    "gpt2-124m",
    "--tied",
    "no",
    "--data",
    "synthetic",
    "--batch-size",
    "32",
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--way", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        measure(options.way)
    found = {way: launched(way) for way in WAYS}
    print(
        "| strategy | ranks | peak host memory, MB | held afterwards, MB | seconds"
        " |\n|---|---|---|---|---|"
    )
    for way, told in found.items():
        print(
            f"| {way} | {WAYS[way][0]} | {told['peak']:.0f} | {told['held']:.0f} |"
            f" {told['seconds']:.1f} |"
        )
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def launched(way: str) -> dict[str, Any]:
    """What the ranks of one launch have found."""
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "entrypoints", ROOT / "entrypoints" / "job")))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    ranks = f"--nproc-per-node={WAYS[way][0]}"
    argv = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        ranks,
        __file__,
        "--way",
        way,
    ]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise RuntimeError(f"{way}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(way: str) -> None:
    """One rank; rank 0 prints the most that any of them has found."""
    from cloudtrain_trainer import strategies, tasks
    from cloudtrain_trainer.arguments import parse
    from cloudtrain_trainer.ranks import Ranks
    from cloudtrain_trainer.training.step import Step

    options = parse([*COMMON, "--strategy", way, *WAYS[way][1]])
    task = tasks.from_options(options)
    ranks = Ranks()
    strategy = strategies.build(ranks, options)
    strategy.start()
    before = resident()
    begun = time.monotonic()
    step = Step(task, strategy, options, 32)
    took = time.monotonic() - begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found = {"peak": (peak - before) / 1e6, "held": (resident() - before) / 1e6, "seconds": took}
    everyone = ranks.all_gather(found)
    assert step.optimizer.param_groups
    if ranks.rank == 0:
        print(json.dumps({name: max(one[name] for one in everyone) for name in found}), flush=True)
    ranks.exit()


def resident() -> int:
    """The bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


if __name__ == "__main__":
    sys.exit(main())
