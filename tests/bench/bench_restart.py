"""From the kill -9 of a rank to training again, against bare torchrun: `python
tests/bench/bench_restart.py`.

Training again: the first all_reduce of the new attempt is done on both ranks. Bare torchrun often
does not get there (its workers read the dead ones' addresses); how often is counted, and only its
successes enter the ratio. The second row gives it the variable that cures this, so that all its
rounds count.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.measure import BIN, Comparison, Cost, end_all, options, report, workplace

SCRIPT = """import os
import time

import torch
import torch.distributed as dist

place = os.environ["BENCH_PLACE"]
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
with open(f"{place}/marks", "a") as file:
    file.write(f"{os.getpid()} {os.environ['RANK']} {time.time()}\\n")
end = torch.zeros(1)
while not end.item():
    time.sleep(0.02)
    end.fill_(os.path.exists(f"{place}/end"))
    dist.all_reduce(end)
dist.destroy_process_group()
"""
JOB = "name: restart\nentrypoint: train.py\nresources: {processes: 2}\nlimits: {restarts: 1}\n"
LIMIT_SECONDS = 30
"""A restart that takes longer counts as lost."""


def marks(place: Path) -> list[tuple[int, int, float]]:
    """Return the marks of the ranks: process id, rank, time of the first all_reduce."""
    try:
        lines = (place / "marks").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [(int(pid), int(rank), float(when)) for pid, rank, when in map(str.split, lines)]


def wait_for(process: subprocess.Popen[bytes], place: Path, count: int) -> bool:
    """Return whether this many marks appear before the command ends or the time is over."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while len(marks(place)) < count:
        if process.poll() is not None or time.monotonic() > deadline:
            return len(marks(place)) >= count
        time.sleep(0.01)
    return True


def restart(
    argv: Sequence[str | Path], env: Mapping[str, str], job: Path, place: Path
) -> Cost | None:
    """Seconds from the kill to both ranks training again, and the job's good end; None when that
    did not happen.
    """
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    with (place / "said").open("wb") as output:
        environ = {**env, "BENCH_PLACE": str(place)}
        process = subprocess.Popen(
            argv, env=environ, cwd=job, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        try:
            if not wait_for(process, place, 2):
                raise RuntimeError(f"{argv} did not start: {(place / 'said').read_text()[-2000:]}")
            time.sleep(random.uniform(0.3, 0.5))
            victim = next(pid for pid, rank, _ in marks(place) if rank == 1)
            killed = time.time()
            os.kill(victim, signal.SIGKILL)
            if not wait_for(process, place, 4):
                return None
            (place / "end").touch()
            restarted = {rank: when for _, rank, when in marks(place)[2:]}
            if process.wait(LIMIT_SECONDS) != 0 or restarted.keys() != {0, 1}:
                return None
            return Cost(max(restarted.values()) - killed, 0.0)
        except subprocess.TimeoutExpired:
            return None
        finally:
            end_all()


def main() -> None:
    """Print the rows."""
    parsed = options(rounds=8)
    bars = {"wall": 0.3}
    bare = Comparison("kill -9 of a rank -> training again", "bare torchrun, its successes", bars)
    cured = Comparison(bare.what, "bare torchrun with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1", bars)
    succeeded = {"ours": 0, bare.reference: 0, cured.reference: 0}
    with workplace() as (place, env):
        job = place / "job"
        job.mkdir()
        (job / "job.yaml").write_text(JOB)
        (job / "train.py").write_text(SCRIPT)
        submit: list[str | Path] = [
            sys.executable,
            BIN / "cloudtrain",
            "submit",
            "--provider",
            "local",
        ]
        torchrun: list[str | Path] = [
            sys.executable,
            BIN / "torchrun",
            "--standalone",
            "--max-restarts",
            "1",
        ]
        torchrun += ["--nproc-per-node", "2", "train.py"]
        sides: dict[str, tuple[list[str | Path], dict[str, str]]] = {
            "ours": (submit, env),
            bare.reference: (torchrun, env),
            cured.reference: (torchrun, {**env, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}),
        }
        for number in range(parsed.rounds):
            names = list(sides)[:: 1 if number % 2 else -1]
            took = {name: restart(*sides[name], job, place / "round") for name in names}
            shown = (
                f"{name}: {result.wall:.2f} s" if result else f"{name}: lost"
                for name, result in took.items()
            )
            print(f"round {number + 1}:", "; ".join(shown), file=sys.stderr, flush=True)
            for name, result in took.items():
                succeeded[name] += result is not None
            for comparison in (bare, cured):
                product_times = took["ours"]
                reference_times = took[comparison.reference]
                if product_times is not None and reference_times is not None:
                    comparison.ours.append(product_times)
                    comparison.theirs.append(reference_times)
    for comparison in (bare, cured):
        for who, name in (("ours", "ours"), ("reference", comparison.reference)):
            comparison.notes[f"{who} succeeded"] = f"{succeeded[name]} of {parsed.rounds}"
    report([bare, cured], parsed.json)


if __name__ == "__main__":
    main()
