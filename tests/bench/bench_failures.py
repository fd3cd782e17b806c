"""Failures that are really made, and what they are diagnosed as: `python
tests/bench/bench_failures.py`.

Programs fail in processes of their own: memory limits, full disks, killed workers, groups that
never form. `--places` adds containers (with a Docker engine), whole runs, and the imitated clouds.
What needs a GPU is represented by the very text that the driver or the library prints, and marked
`text`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from cloudtrain.diagnosis.failure import diagnose_lines
from cloudtrain.diagnosis.log_text import evidence_of
from tests.bench.failing import SKIPPED, Outcome, outcome_of, run_program
from tests.bench.failing_programs import PLAIN, WITH_TORCH

EXAMPLES = Path(__file__).resolve().parents[1] / "data" / "rule_examples.txt"
GPU_RULES = (
    "gpu-out-of-memory", "gpu-library-without-memory", "cuda-in-forked-worker", "gpu-lost", "gpu-memory-error",
    "nvlink-error", "gpu-firmware", "xid", "device-side-assert", "fabric-manager", "driver-mismatch", "driver-too-old",
    "gpu-busy", "illegal-gpu-access", "gpu-launch-failure", "duplicate-gpu", "nccl-gpu-call-failed", "gpu-not-in-build",
    "fabric-error", "locked-memory", "host-out-of-memory",
)  # fmt: skip
"""What cannot be made without a GPU, InfiniBand or a machine that may be brought down."""


def main(argv: Sequence[str] | None = None) -> None:
    """Make the failures, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--places",
        nargs="*",
        default=["process", "text"],
        help="process, container, run, cloud, text",
    )
    parser.add_argument("--only", default="", help="only failures whose name contains this")
    parser.add_argument("--json", type=Path, help="write the outcomes to this file too")
    options = parser.parse_args(argv)
    outcomes = []
    for outcome in _all(options.places, options.only):
        outcomes.append(outcome)
        mark = "ok" if outcome.is_right else "--" if outcome.found == SKIPPED else "NO"
        print(
            f"{mark}  {outcome.place:<9} {outcome.name:<42} {outcome.expected:<26} {outcome.found}",
            flush=True,
        )
        if mark == "NO":
            print(f"      {outcome.cause} | {outcome.said!r}", flush=True)
    report(outcomes)
    if options.json:
        options.json.write_text(json.dumps([asdict(outcome) for outcome in outcomes], indent=1))


def _all(places: Sequence[str], only: str) -> Iterator[Outcome]:
    if "process" in places:
        yield from (run_program(name, *case) for name, case in PLAIN.items() if only in name)
        import numpy  # noqa: F401  (the forks have them already)
        import torch

        torch.set_num_threads(1)
        yield from (run_program(name, *case) for name, case in WITH_TORCH.items() if only in name)
    if {"container", "run", "cloud"} & set(places):
        from tests.bench.failing_places import cloud_failures, container_failures, run_failures

        for place, make in (
            ("container", container_failures),
            ("run", run_failures),
            ("cloud", cloud_failures),
        ):
            if place in places:
                yield from make(only)
    if "text" in places:
        examples = dict(line.split(" ", 1) for line in EXAMPLES.read_text().splitlines()[1:])
        for rule in GPU_RULES:
            if only in rule:
                found = diagnose_lines(evidence_of(examples[rule], "log", 1))
                yield outcome_of(rule.replace("-", " "), "text", rule, found)


def report(outcomes: Sequence[Outcome]) -> None:
    """How many were right, by where they were made."""
    for place, count in Counter(outcome.place for outcome in outcomes).items():
        mine = [outcome for outcome in outcomes if outcome.place == place]
        skipped = sum(outcome.found == SKIPPED for outcome in mine)
        right = sum(outcome.is_right for outcome in mine)
        wrong = sum(outcome.is_wrong_remedy for outcome in mine)
        print(
            f"{place:<10} {right} of {count - skipped} right, {wrong} with another's remedy,"
            f" {skipped} skipped"
        )


if __name__ == "__main__":
    main()
