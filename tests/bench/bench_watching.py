"""What watching costs a run: `python tests/bench/bench_watching.py`.

A local run of the shared trainer on 2 processes, after its start-up, window by window. Ours: the
CPU time of the launcher, which reads the ranks' output, measures them and reports it, and in the
second row that of an `attach` beside it. The reference: the CPU time of the ranks in the same
window, which is their steps. So the ratio is the overhead.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.pairs import Comparison, options, quartiles, report
from tests.bench.processes import BIN, Cost, workplace

WINDOW_SECONDS = 20.0
BAR = 0.01
START_SECONDS = 120
JOB = "name: watched\nargs: {epochs: 100000}\nresources: {processes: 2}\n"


def main() -> None:
    """Print the rows."""
    given = options(rounds=6)
    with workplace() as (place, env):
        job = place / "job"
        job.mkdir()
        (job / "job.yaml").write_text(JOB)
        submit: list[str | Path] = [
            sys.executable,
            BIN / "cloudtrain",
            "submit",
            "--detach",
            "--run-id",
            "watched-1",
        ]
        subprocess.run(submit, cwd=job, env=env, check=True, capture_output=True)
        events = place / "data" / "runs" / "watched-1" / "events.jsonl"
        try:
            found = measure(events, job, env, given.rounds)
        finally:
            subprocess.run(
                [sys.executable, BIN / "cloudtrain", "stop", "watched-1"],
                cwd=job,
                env=env,
                check=False,
            )
    report(found, given.json)


def measure(events: Path, job: Path, env: Mapping[str, str], rounds: int) -> list[Comparison]:
    """The windows of a run that trains already."""
    wait_for(lambda: any(event["type"] == "progress" for event in read(events)))
    launcher = next(event["pid"] for event in read(events) if event["type"] == "node_started")
    ranks = [event["pid"] for event in read(events) if event["type"] == "rank_started"]
    alone = Comparison("launcher of a run of 2 processes", "its ranks", {"cpu": BAR})
    watched = Comparison("the same, and an attach beside it", "its ranks", {"cpu": BAR})
    window(alone, [launcher], ranks)
    alone.ours.clear()
    alone.theirs.clear()
    for _ in range(rounds):
        window(alone, [launcher], ranks)
        with subprocess.Popen(
            [sys.executable, BIN / "cloudtrain", "attach", "watched-1"],
            cwd=job,
            env=env,
            stderr=subprocess.DEVNULL,
        ) as attached:
            time.sleep(2)  # its start is not a part of watching
            window(watched, [launcher, attached.pid], ranks)
            attached.terminate()
    for comparison in (alone, watched):
        comparison.notes["overhead"] = f"{100 * quartiles(comparison.ratios('cpu'))[1]:.2f} %"
    return [alone, watched]


def window(comparison: Comparison, ours: list[int], ranks: list[int]) -> None:
    """Add one window to a comparison."""
    before = (cpu(ours), cpu(ranks))
    began = time.monotonic()
    time.sleep(WINDOW_SECONDS)
    wall = time.monotonic() - began
    comparison.ours.append(Cost(wall, cpu(ours) - before[0]))
    comparison.theirs.append(Cost(wall, cpu(ranks) - before[1]))


def cpu(pids: list[int]) -> float:
    """CPU seconds of these processes so far, without their children."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(each[11]) + int(each[12]) for each in fields) / os.sysconf("SC_CLK_TCK")


def read(events: Path) -> list[Any]:
    """The events so far."""
    return [json.loads(line) for line in events.read_text().splitlines()]


def wait_for(is_true: Callable[[], bool]) -> None:
    """TimeoutError when it does not become true."""
    deadline = time.monotonic() + START_SECONDS
    while not is_true():
        if time.monotonic() > deadline:
            raise TimeoutError("the run does not train")
        time.sleep(0.2)


if __name__ == "__main__":
    main()
