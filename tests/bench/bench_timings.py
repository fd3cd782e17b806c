"""Steps of about 1, 5 and 20 ms with and without `--timings`: DDP on 2 ranks, and a loader.

In one job of two ranks windows of equally many steps take turns, with and without the patches. The
figure is the difference of a round, as a share of the step without them, by CPU time.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.measure import quartiles

ROOT = Path(__file__).resolve().parents[2]
STEP_SECONDS = (0.001, 0.005, 0.02)
BAR = 0.01
"""Maximum share of a step."""
TORCH_RATE = 100
"""How rarely DDP measures itself without the patches."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=0.02, help="of a window; at least 3 steps")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the shares there")
    options = parser.parse_args()
    if "RANK" in os.environ:
        shares = {}
        for seconds in STEP_SECONDS:
            steps = max(3, round(options.seconds / seconds))
            shares[seconds] = measure(seconds, options.rounds, steps)

        if options.json and os.environ["RANK"] == "0":
            options.json.write_text(json.dumps(shares))
        os._exit(0)

    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "entrypoints", ROOT / "entrypoints" / "job")))
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    return subprocess.run([*argv, __file__, *sys.argv[1:]], env=env, check=False).returncode


def measure(seconds: float, rounds: int, steps: int) -> float:
    """Measure steps of this length in one rank, and return the share; rank 0 prints the row."""
    import torch
    import torch.distributed as dist
    from torch.utils.data import dataloader

    import cloudtrain_job
    from cloudtrain_launcher.step_timings import report_steps

    torch.set_num_threads(1)
    if not dist.is_initialized():
        dist.init_process_group("gloo")
        cloudtrain_job.set_output(os.open(os.devnull, os.O_WRONLY))

    ddp: Any = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    window = Window(torch, ddp, dataloader, steps)
    window.work_for(seconds)
    owners = {dataloader.DataLoader: "__iter__", dataloader._BaseDataLoaderIter: "__next__"}
    plain = {owner: getattr(owner, name) for owner, name in owners.items()}
    report_steps()
    patched = {owner: getattr(owner, name) for owner, name in owners.items()}
    shares = []
    microseconds = []
    for number in range(rounds):
        costs = {}
        for with_patches in (number % 2 == 0, number % 2 == 1):
            for owner, name in owners.items():
                setattr(owner, name, (patched if with_patches else plain)[owner])

            cloudtrain_job.watch(ddp if with_patches else None)
            if not with_patches:
                ddp._set_ddp_runtime_logging_sample_rate(TORCH_RATE)
            costs[with_patches] = window.cost()

        shares.append(costs[True] / costs[False] - 1)
        microseconds.append((costs[True] - costs[False]) * 1e6)

    for owner, name in owners.items():
        setattr(owner, name, plain[owner])

    low, middle, high = quartiles(shares)
    if dist.get_rank() == 0:
        verdict = "met" if middle <= BAR else "missed"
        print(
            f"step of {window.cost() * 1e3:.1f} ms: {statistics.median(microseconds):.0f} µs of"
            f" {rounds} rounds, {middle:.2%} [{low:.2%} to {high:.2%}], bar {BAR:.0%}, {verdict}; load"
            f" {os.getloadavg()[0]:.0f}",
            flush=True,
        )
    else:
        window.cost()

    return middle


class Window:
    """Equally many steps."""

    def __init__(self, torch: Any, ddp: Any, dataloader: Any, steps: int) -> None:
        self.torch = torch
        self.ddp = ddp
        self.loader = dataloader.DataLoader(torch.zeros(steps, 64), batch_size=1)
        self.block = torch.zeros(128, 128)
        self.products = 0

    def work_for(self, seconds: float) -> None:
        """Make a step about as long, on the rank that computes more slowly."""
        before = self.cost()
        begun = time.process_time()
        for _ in range(300):
            self.block @ self.block

        product = (time.process_time() - begun) / 300
        products = self.torch.tensor(round(max(0.0, seconds - before) / product))
        self.torch.distributed.all_reduce(products, op=self.torch.distributed.ReduceOp.MAX)
        self.products = int(products)

    def cost(self) -> float:
        """Return the CPU seconds of a step."""
        begun = time.process_time()
        for batch in self.loader:
            for _ in range(self.products):
                self.block @ self.block
            self.ddp(batch).sum().backward()

        return (time.process_time() - begun) / len(self.loader)


if __name__ == "__main__":
    sys.exit(main())
