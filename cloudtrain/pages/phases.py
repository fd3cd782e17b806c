"""Where the time of each rank went: a bar for each, by phase."""

from __future__ import annotations

from collections.abc import Mapping

from cloudtrain.pages.axes import WIDTH
from cloudtrain.pages.document import legend
from cloudtrain.pages.svg import line, picture, text
from cloudtrain.runs.step_times import PHASES, PhaseSums

LEFT = 64.0
RIGHT = 428.0
ROW = 24.0
MAX_RANKS = 32
"""So many ranks have a bar."""


def phases_chart(totals: Mapping[int, PhaseSums]) -> str:
    """A bar for each rank: the share of each phase in its time. Nothing without step times."""
    ranks = [rank for rank, sums in totals.items() if sums.wall > 0][:MAX_RANKS]
    parts = []
    for row, rank in enumerate(ranks):
        y = 12.0 + ROW * row
        at = LEFT
        parts.append(text(f"rank {rank}", 4, y + 4, class_="name"))
        for phase in PHASES:
            width = (RIGHT - LEFT) * totals[rank].share(phase)
            about = f"{phase}: {totals[rank].share(phase):.0%}"
            parts.append(
                line([(at, y), (at + width, y)], f"span {phase}", about) if width >= 0.1 else ""
            )
            at += width
    return (
        picture(WIDTH, ROW * len(ranks), "where the time of each rank went", *parts)
        if ranks
        else ""
    )


def phases_legend(totals: Mapping[int, PhaseSums]) -> str:
    """What the colours mean, with the share of each phase on average over the ranks, as HTML."""
    shares = {
        phase: sum(sums.share(phase) for sums in totals.values()) / max(len(totals), 1)
        for phase in PHASES
    }
    shown = [(phase, share) for phase, share in shares.items() if share >= 0.005]
    return legend(
        (line([(1, 8), (15, 8)], f"span {phase}"), f"{phase} {share:.0%}") for phase, share in shown
    )
