"""What parts of a step cost, by windows of steps that left them out (`train.py --measure`)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from cloudtrain.diagnosis.slowness import NAMED_FROM
from cloudtrain.diagnosis.slowness_words import Setup, change_for
from cloudtrain.diagnosis.step_costs import SMALL_MESSAGE_MB, SMALL_STEP_SECONDS
from cloudtrain.runs.events import Windows

PROVEN_FROM = 0.15
"""A part whose absence saves less is within what windows differ by anyway."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Counterfactuals:
    """What a step would take without its parts."""

    seconds: float
    """Of a whole step, of the slowest rank."""
    data: float | None = None
    """The part of it that goes without loading data, 0 to 1; None: not measured."""
    messages: float | None = None
    """The same without exchanging gradients."""
    both: float | None = None
    """The same without either."""
    straggler: int | None = None
    """The rank that takes longest where none waits for another, if it takes clearly longer than the
    others.
    """
    late: float = 0.0
    """The part of the step by which that rank is slower than the others."""

    @property
    def sentence(self) -> str:
        """The result in words, the largest part first."""
        if self.straggler is not None and self.late >= max(self.data or 0.0, PROVEN_FROM):
            return (
                f"rank {self.straggler} alone takes longer than the others alone, by"
                f" {self.late:.0%} of a step"
            )
        parts = [("loading data", self.data), ("exchanging gradients", self.messages)]
        known = sorted(((saved, name) for name, saved in parts if saved is not None), reverse=True)
        step = f"a step takes {self.seconds * 1000:.1f} ms"
        if not known or known[0][0] < PROVEN_FROM:
            return f"{step}, of which neither data nor gradients cost much: it computes"
        return f"{step}: " + ", ".join(f"without {name} {saved:.0%} less" for saved, name in known)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return asdict(self)


def what_parts_cost(windows: Windows) -> Counterfactuals:
    """The costs of the parts of a step, by the windows of a run."""
    full = max(windows.full, 1e-9)
    straggler, late = _straggler(windows.alone_by_rank or {}, full)
    return Counterfactuals(
        seconds=windows.full,
        data=_saved(full, windows.cached_batch),
        messages=_saved(full, windows.no_messages),
        both=_saved(full, windows.neither),
        straggler=straggler,
        late=late,
    )


def cause_by_parts(parts: Counterfactuals, message_mb: float) -> tuple[str, float]:
    """The cause that parts of a step prove, by the words of a slow run, and its share of it; empty
    where none does.
    """
    data = parts.data or 0.0
    messages = parts.messages or 0.0
    if parts.straggler is not None and parts.late >= max(data, NAMED_FROM["straggler"]):
        return "straggler", parts.late
    if data >= max(messages, NAMED_FROM["input"]):
        return "input", data
    is_small = parts.seconds * (1 - messages) < SMALL_STEP_SECONDS and message_mb < SMALL_MESSAGE_MB
    if is_small and messages >= NAMED_FROM["too-small"]:
        return "too-small", messages
    if messages >= NAMED_FROM["communication"] and not is_small:
        return "communication", messages
    return "", 0.0


def what_to_change(windows: Windows, setup: Setup) -> str:
    """The setting to change by the windows of a run; empty where no part of a step is worth it."""
    parts = what_parts_cost(windows)
    cause, share = cause_by_parts(parts, windows.message_mb or 0.0)
    return change_for(cause, share, setup, parts.straggler, "compute") if cause else ""


def _saved(full: float, without: float | None) -> float | None:
    return None if without is None else round(max(0.0, 1 - without / full), 3)


def _straggler(alone: dict[str, float], full: float) -> tuple[int | None, float]:
    """The rank that is clearly slower than the others by itself, and by which part of a step."""
    if len(alone) < 2:
        return None, 0.0
    slowest = max(alone, key=lambda rank: alone[rank])
    late = (
        alone[slowest] - median(value for rank, value in alone.items() if rank != slowest)
    ) / full
    return (
        (int(slowest), round(late, 3))
        if late >= PROVEN_FROM and slowest.isdecimal()
        else (None, 0.0)
    )
