"""The verdict on runs that are slow for a known reason, of random strength: how often it is right,
and what else.

    .venv/bin/python tests/bench/bench_slowness.py [--rounds 20] [--json FILE]

Each run is one or two ranks of the shared trainer for a few seconds, forked from a process that has
imported torch (slow_ranks.py says how each is made slow). The verdict is computed from the events
that they have sent, as `cloudtrain diagnose` does.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "entrypoints"), str(ROOT / "entrypoints" / "job")]

if TYPE_CHECKING:
    from cloudtrain.diagnosis.slowness import Slowness
    from tests.entrypoints.groups import ForkServer

HERE = "tests.bench.slow_ranks"
FLAGS = "--workers 0 --eval-every 100000 --epochs 100000 --compile no --no-resume"
MODEL = f"{FLAGS} --task digits --model {HERE}"
SMALL = "--batch-size 2 --optimizer sgd"
BUSY = "--batch-size 128"
"""64 images for each of two ranks."""


@dataclass(frozen=True)
class Injected:
    """A way to be slow."""

    verdict: str
    """What is right to say."""
    ranks: int
    before: str
    """The function of slow_ranks.py that makes a rank slow."""
    flags: str


INJECTED = {
    "slow loader": Injected("input", 2, "slow_loader", f"{FLAGS} --batch-size 16"),
    "tiny model": Injected("too-small", 2, "healthy", f"{MODEL}:tiny_model --batch-size 16"),
    "large gradients": Injected("communication", 2, "slow_network", f"{MODEL}:wide_model {SMALL}"),
    "sleeping rank": Injected("straggler", 2, "sleeping_rank", f"{FLAGS} --batch-size 32"),
    "slow saving": Injected(
        "saving", 2, "slow_saving", f"{MODEL}:deep_model {BUSY} --checkpoint-every-steps 2"
    ),
    "other work on a core": Injected("other-work", 2, "other_work", f"{MODEL}:deep_model {BUSY}"),
    "compute-bound, two ranks": Injected("compute", 2, "healthy", f"{MODEL}:deep_model {BUSY}"),
    "healthy, one rank": Injected("compute", 1, "healthy", f"{FLAGS} --batch-size 64"),
}
VERDICTS = (
    *(
        "input",
        "too-small",
        "communication",
        "straggler",
        "other-work",
        "saving",
        "evaluation",
        "compute",
        "unknown",
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20, metavar="N", help="runs of each [20]")
    parser.add_argument(
        "--seconds", type=float, default=4.0, metavar="S", help="of training in each run [4]"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the strengths [0]")
    parser.add_argument(
        "--only", metavar="TEXT", default="", help="only those with this in their name"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    from tests.entrypoints.groups import TRAINER, ForkServer

    server = ForkServer(*TRAINER)
    random_ = random.Random(options.seed)
    found: dict[str, list[Any]] = {name: [] for name in INJECTED if options.only in name}
    began = time.time()
    try:
        for number in range(options.rounds):
            for name in found:
                strength = random_.random()
                verdict = run(server, INJECTED[name], strength, options.seconds)
                found[name].append({**verdict.to_json(), "strength": round(strength, 3)})
                if verdict.cause != INJECTED[name].verdict:
                    print(
                        f"run {number} of {name}, strength {strength:.2f}: {verdict}",
                        file=sys.stderr,
                        flush=True,
                    )
            if options.json:
                options.json.write_text(json.dumps(found, indent=1) + "\n")
    finally:
        server.close()
    print(table(found))
    print(f"\n{os.cpu_count()} cores, load {os.getloadavg()[1]:.1f}, {time.time() - began:.0f} s")
    return 0


def run(server: ForkServer, injected: Injected, strength: float, seconds: float) -> Slowness:
    """One run, and what its events say."""
    from cloudtrain.diagnosis.slowness import why_slow
    from cloudtrain.diagnosis.slowness_words import Setup
    from cloudtrain.runs import events
    from cloudtrain.runs.step_times import StepTimesHistory
    from tests.entrypoints.groups import Group

    with tempfile.TemporaryDirectory() as folder:
        variables = {"SLOW_STRENGTH": str(strength), "SLOW_SECONDS": str(seconds)}
        before = f"{HERE}:{injected.before}"
        group = Group(
            server, Path(folder), injected.ranks, injected.flags, before=before, **variables
        )
        codes = group.wait()
        history = StepTimesHistory()
        if any(codes):
            raise SystemExit(group.output())
        for rank in range(injected.ranks):
            for fields in group.events("step_times", rank):
                event = events.from_json(fields)
                if isinstance(event, events.StepTimes):
                    history.add(event)
    return why_slow(history, Setup(ranks=injected.ranks))


def table(found: dict[str, list[Any]]) -> str:
    """The confusion table, with how often each verdict was right and how sure."""
    seen = [
        name
        for name in VERDICTS
        if any(each["cause"] == name for runs in found.values() for each in runs)
    ]
    lines = [
        "| made slow by | " + " | ".join(seen) + " | right | share | sure |",
        "|---" * (len(seen) + 4) + "|",
    ]
    for name, runs in found.items():
        counts = Counter(each["cause"] for each in runs)
        right = counts[INJECTED[name].verdict]
        cells = [str(counts[verdict] or "") for verdict in seen]
        shares = sorted(each["share"] for each in runs)
        sure = sum(each["confidence"] for each in runs) / len(runs)
        spread = f"{shares[0]:.0%} to {shares[-1]:.0%}"
        lines.append(
            f"| {name} | {' | '.join(cells)} | {right} of {len(runs)} | {spread} | {sure:.2f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
