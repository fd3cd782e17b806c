"""`cloudtrain plan` against importing click, pydantic and yaml: `python tests/bench/bench_plan.py`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.measure import (
    BIN,
    Comparison,
    Counted,
    compare,
    cost,
    count,
    options,
    report,
    workplace,
)
from tests.support.samples import AWS_ACCOUNT, AZURE_ACCOUNT

JOB = """name: digits
entrypoint: train.py
args: {epochs: 5, lr: 0.05, verbose: true}
resources: {nodes: 1, processes: 2}
checkpoints: {every: 10 min, keep: 3}
limits: {restarts: 1, max_runtime: 1 h}
env: {NCCL_DEBUG: WARN}
"""
BAR = 1.6
LIMITS = {"local": 2.05, "aws": 2.3, "azure": 2.3}
"""Of instructions, by provider."""
PLANS: tuple[list[str], ...] = (
    [],
    ["--json"],
    ["--provider", "aws"],
    ["--provider", "azure"],
    ["--provider", "docker"],
)
IMPORTS = """import click
import yaml
from pydantic import BaseModel
"""
"""`import pydantic` alone loads nearly nothing: its classes are imported on first access.
"""
REFERENCE = "importing click, pydantic.BaseModel, yaml"
MODEL = f"{IMPORTS}\nclass Model(BaseModel):\n    field: int = 1\n"
"""pydantic imports the other half of itself for the first class of a program."""


def counted(place: Path) -> list[Counted]:
    """Return the rows of instructions."""
    rows = []
    for provider, limit in LIMITS.items():
        words = ("plan", "job.yaml", "--provider", provider)
        command = (BIN / "cloudtrain", *words)
        what = f"`cloudtrain {' '.join(words)}`"
        rows.append(Counted(what, command, (place / "imports.py",), limit, BAR))

    return rows


def main() -> None:
    """Print the rows."""
    parsed = options(rounds=30)
    bars = {"wall": BAR, "cpu": BAR}
    with workplace() as (place, env):
        job = place / "job"
        job.mkdir()
        (job / "job.yaml").write_text(JOB)
        (job / "train.py").write_text("print('hello')\n")
        (place / "imports.py").write_text(IMPORTS)
        (place / "model.py").write_text(MODEL)
        if parsed.count:
            sys.exit(count(counted(place), env | AWS_ACCOUNT | AZURE_ACCOUNT, job))

        comparisons = [
            compare(
                Comparison(
                    "importing them, and a model of one field",
                    REFERENCE,
                    {"wall": None, "cpu": None},
                ),
                lambda: cost([sys.executable, place / "model.py"], env, job),
                lambda: cost([sys.executable, place / "imports.py"], env, job),
                parsed.rounds,
            )
        ]
        env |= AWS_ACCOUNT | AZURE_ACCOUNT
        for flags in PLANS:
            words = ["plan", "job.yaml", *flags]
            argv = [sys.executable, BIN / "cloudtrain", *words]
            comparisons.append(
                compare(
                    Comparison(f"`cloudtrain {' '.join(words)}`", REFERENCE, bars),
                    lambda argv=argv: cost(argv, env, job),  # type: ignore[misc]
                    lambda: cost([sys.executable, place / "imports.py"], env, job),
                    parsed.rounds,
                )
            )
    report(comparisons, parsed.json)


if __name__ == "__main__":
    main()
