"""Memory of a local run of two ranks, all its processes, against torchrun's: proportional set size.

Shared pages count in equal parts for the processes that share them (PSS of smaps_rollup), also for
those of other runs that have the same torch: compare figures of one round. Both run the same
program, which imports torch or not, and waits until it is measured.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.measure import BIN, descendants, options, reap_all, workplace

JOB = "name: trivial\nentrypoint: train.py\nresources: {processes: 2}\n"
WAIT = """
import os, time
open("../waits-" + os.environ["RANK"], "w").close()
while not os.path.exists("../leave"):
    time.sleep(0.05)
"""
BAR_MB = 250
SETTLE_SECONDS = 2.0
"""Until garbage was collected once, which writes to shared pages."""


def main() -> None:
    """Print the rows."""
    parsed = options(rounds=1)
    with workplace() as (place, env):
        job = place / "job"
        job.mkdir()
        (job / "job.yaml").write_text(JOB)
        print(f"| program | ours, MB (bar {BAR_MB}) | torchrun, MB |\n|---|---|---|")
        for name, line in (("that imports torch", "import torch"), ("without torch", "")):
            # The ranks of a run start in a copy of the source.
            text = (line + WAIT).replace("../", f"{place}/")
            (job / "train.py").write_text(text)
            for _ in range(parsed.rounds):
                run = memory([BIN / "cloudtrain", "submit", "--provider", "local"], env, place)
                torchrun = memory(
                    [BIN / "torchrun", "--nproc-per-node", "2", "train.py"], env, place
                )
                print(f"| {name} | {run:.0f} | {torchrun:.0f} |", flush=True)


def memory(argv: Sequence[str | Path], env: Mapping[str, str], place: Path) -> float:
    """Return the MB of all processes that a command starts, while both ranks wait."""
    process = subprocess.Popen(
        argv,
        env=env,
        cwd=place / "job",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while len(list(place.glob("waits-*"))) < 2:
        if process.poll() is not None:
            raise RuntimeError(f"{argv} ended with code {process.returncode}")
        time.sleep(0.05)

    time.sleep(SETTLE_SECONDS)
    total = sum(map(proportional_kilobytes, descendants())) / 1024
    (place / "leave").touch()
    process.wait()
    reap_all(60)
    for mark in [place / "leave", *place.glob("waits-*")]:
        mark.unlink()

    return total


def proportional_kilobytes(pid: int) -> int:
    """Return the PSS of a process."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("Pss:"))
    return int(line.split()[1])


if __name__ == "__main__":
    main()
