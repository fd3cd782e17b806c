"""How far the verdict and the interval of a scaling curve can be trusted: curves of known truth
with noise laid over.

    .venv/bin/python tests/bench/bench_scaling.py [--curves 200] [--seed 0] [--json FILE]

No job runs. Each curve has a speed-up by Amdahl's law for 1, 2 and 4 ranks. Windows vary, and the
whole machine is slower or faster from run to run, as other work comes and goes; both by a
log-normal factor. Counted are the intervals in which the true speed-up of 4 ranks lies, the
verdicts that are given as certain, and those of them that are right.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from math import exp
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT)]

SIZES = (1, 2, 4)
WINDOWS = 7
NOISES = ((0.02, 0.0), (0.1, 0.0), (0.02, 0.05), (0.1, 0.2), (0.3, 0.2))
"""Standard deviations of the logarithm: of windows, and of runs."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--curves", type=int, default=200, metavar="N", help="for each line of the table [200]"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the curves [0]")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    options = parser.parse_args()
    figures: list[dict[str, float]] = []
    print(
        "| windows vary by | runs vary by | turns | intervals with the truth | certain | of them"
        " right |"
    )
    print("|---|---|---|---|---|---|")
    for noise in NOISES:
        for turns in (1, 2):
            covered, certain, right = tried(
                options.curves, turns, noise, random.Random(options.seed)
            )
            counts = {"covered": covered, "certain": certain, "right": right}
            figures.append({"windows": noise[0], "runs": noise[1], "turns": turns, **counts})
            share = f"{right / certain:.0%}" if certain else ""
            cells = f"{noise[0]:.0%} | {noise[1]:.0%} | {turns} | {covered / options.curves:.0%}"
            print(f"| {cells} | {certain / options.curves:.0%} | {share} |", flush=True)
    if options.json:
        options.json.write_text(
            json.dumps({"curves": options.curves, "figures": figures}, indent=1) + "\n"
        )
    return 0


def tried(
    curves: int, turns: int, noise: tuple[float, float], draw: random.Random
) -> tuple[int, int, int]:
    """Of so many curves: intervals that hold the truth, verdicts given as certain, and certain ones
    that are right.
    """
    from cloudtrain.diagnosis.scaling import Measurement, ScalingCurve
    from cloudtrain.diagnosis.scaling_words import CLEAR

    covered = certain = right = 0
    for _ in range(curves):
        serial = draw.random() ** 2
        truth = {ranks: 1 / (serial + (1 - serial) / ranks) for ranks in SIZES}
        exact = ScalingCurve(
            [Measurement(ranks=ranks, turns=((rate,),)) for ranks, rate in truth.items()]
        )
        found = ScalingCurve(
            [
                Measurement(
                    ranks=ranks, turns=tuple(turn(100 * rate, noise, draw) for _ in range(turns))
                )
                for ranks, rate in truth.items()
            ]
        )
        low, high = found.points[-1].interval
        covered += low <= truth[SIZES[-1]] <= high
        if found.confidence >= CLEAR:
            certain += 1
            right += found.best() == exact.best()
    return covered, certain, right


def turn(rate: float, noise: tuple[float, float], draw: random.Random) -> tuple[float, ...]:
    """The windows of one run."""
    run = rate * exp(draw.gauss(0, noise[1]))
    return tuple(run * exp(draw.gauss(0, noise[0])) for _ in range(WINDOWS))


if __name__ == "__main__":
    sys.exit(main())
