"""Two things measured in turn, round by round: their paired ratios, the bar beside them, as a table
and as JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.bench.processes import Cost


@dataclass
class Comparison:
    """The rounds of one row: ours and the reference's, pair by pair."""

    what: str
    reference: str
    bars: Mapping[str, float | None]
    """The bar for the ratio, by `wall` and `cpu`; None where it is only shown."""
    ours: list[Cost] = field(default_factory=list)
    theirs: list[Cost] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)

    def ratios(self, kind: str) -> list[float]:
        """Ours divided by the reference of the same round."""
        return [
            getattr(a, kind) / getattr(b, kind) for a, b in zip(self.ours, self.theirs, strict=True)
        ]

    def to_json(self) -> dict[str, object]:
        """The figures, for a file."""
        figures: dict[str, object] = {
            "what": self.what,
            "reference": self.reference,
            "rounds": len(self.ours),
        }
        for kind in self.bars if self.ours else ():
            low, middle, high = quartiles(self.ratios(kind))
            figures[kind] = {
                "ratio": middle,
                "quartiles": [low, high],
                "ours_seconds": statistics.median(getattr(cost, kind) for cost in self.ours),
                "reference_seconds": statistics.median(getattr(cost, kind) for cost in self.theirs),
                "bar": self.bars[kind],
                "met": self._is_met(kind, middle),
            }
        return {**figures, **self.notes}

    def row(self) -> str:
        """One row of the table."""
        if not self.ours:
            return f"| {self.what} | {self.reference} | no pair of rounds | | {self._notes()} |"
        cells = []
        for kind in ("wall", "cpu"):
            if kind not in self.bars:
                cells.append("not measured")
                continue
            low, middle, high = quartiles(self.ratios(kind))
            product, reference = (
                statistics.median(getattr(c, kind) for c in costs)
                for costs in (self.ours, self.theirs)
            )
            bar = self.bars[kind]
            verdict = "met" if self._is_met(kind, middle) else "missed"
            shown = "" if bar is None else f", bar {bar:.2f} {verdict}"
            cells.append(
                f"{middle:.2f} [{low:.2f}-{high:.2f}]{shown} ({product:.3f}/{reference:.3f} s)"
            )
        return f"| {self.what} | {self.reference} | {cells[0]} | {cells[1]} | {self._notes()} |"

    def _is_met(self, kind: str, ratio: float) -> bool | None:
        bar = self.bars[kind]
        return None if bar is None else ratio <= bar

    def _notes(self) -> str:
        return ", ".join(
            [f"{len(self.ours)} rounds", *(f"{key} {value}" for key, value in self.notes.items())]
        )


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Lower quartile, median, upper quartile."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def compare(
    comparison: Comparison,
    ours: Callable[[], Cost],
    theirs: Callable[[], Cost],
    rounds: int,
    warm_ups: int = 2,
) -> Comparison:
    """Fill a comparison: rounds of both, the first one changing; the warm-ups are thrown away."""
    for number in range(-warm_ups, rounds):
        first_is_ours = number % 2 == 0
        first = (ours if first_is_ours else theirs)()
        second = (theirs if first_is_ours else ours)()
        if number >= 0:
            comparison.ours.append(first if first_is_ours else second)
            comparison.theirs.append(second if first_is_ours else first)
    return comparison


def options(rounds: int) -> argparse.Namespace:
    """The options of every benchmark."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    return parser.parse_args()


def report(comparisons: Sequence[Comparison], file: Path | None) -> None:
    """Print the rows; write the figures. A missed bar is reported without an error."""
    print("| what | against | wall | CPU | |\n|---|---|---|---|---|")
    for comparison in comparisons:
        print(comparison.row())
    if file:
        file.write_text(json.dumps([c.to_json() for c in comparisons], indent=2) + "\n")
