"""Events of a sweep in its journal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

from cloudtrain.spec.search_space import Scalar
from cloudtrain.sweeps.checked import read_checked


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepEvent:
    """Event of a sweep; `time` is a Unix timestamp."""

    TYPE: ClassVar[str] = ""
    time: float

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON with the `type`."""
        return {"type": self.TYPE, **asdict(self)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggested(SweepEvent):
    """Suggestion of a trial: it has values, and no run yet."""

    TYPE: ClassVar[str] = "suggested"
    trial: int
    """Number from 0, in the order of suggestion."""
    parameters: Mapping[str, Scalar]


@dataclass(frozen=True, kw_only=True, slots=True)
class Launching(SweepEvent):
    """Announcement of a run, which may exist from now on under this id."""

    TYPE: ClassVar[str] = "launching"
    trial: int
    run: str
    until: int | None = None
    """Report that pauses the run for its promotion; None: it trains to its end."""
    resumes: str = ""
    """Run whose checkpoints it continues from; empty for a new start."""
    cap_usd: float | None = None
    """Maximum cost of this run; None without costs."""
    cap_seconds: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Reported(SweepEvent):
    """Report of the metric by a trial."""

    TYPE: ClassVar[str] = "reported"
    trial: int
    report: int
    """Number of this report of the trial, from 1, over all of its runs."""
    value: float | None
    """None if it is not a finite number."""
    position: float | None = None
    """Training step, or else the epoch; None if the program reported neither."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEnded(SweepEvent):
    """End of a run of a trial."""

    TYPE: ClassVar[str] = "run_ended"
    trial: int
    run: str
    outcome: Literal[
        "completed", "pruned", "paused", "failed", "too_large", "interrupted", "stopped", "refused"
    ]
    """Outcome of the run.

     completed: it trained to its end; pruned: it was behind at a rung; paused: it waits at its rung
    for promotion; too_large: its batch did not fit, in searches of earlier versions; interrupted: the
    platform took its machine away; stopped: on request; refused: it was never started.
    """
    reason: str = ""
    cause: str = ""
    """Exception of the program, such as ModuleNotFoundError; empty if unknown."""
    usd: float | None = None
    """Cost; None if unknown: then its cap counts."""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Extended(SweepEvent):
    """Extension of the sweep by more trials."""

    TYPE: ClassVar[str] = "extended"
    trials: int
    """Number of all trials, earlier ones included."""
    parallel: int | None = None
    """New number of trials at once; None: unchanged."""
    budget_usd: float | None = None
    """New budget of all trials in US dollars; None: unchanged."""
    budget_seconds: float | None = None
    """New budget of all trials in seconds; None: unchanged."""
    resumes: bool = False
    """True if trials that a stop interrupted continue."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StopRequested(SweepEvent):
    """Request to stop: running trials are stopped, and no trial is started."""

    TYPE: ClassVar[str] = "stop_requested"


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepEnded(SweepEvent):
    """End of the sweep."""

    TYPE: ClassVar[str] = "ended"
    state: Literal["succeeded", "failed", "stopped"]
    reason: str = ""


EVENT_TYPES: Mapping[str, type[SweepEvent]] = {
    kind.TYPE: kind
    for kind in (Suggested, Launching, Reported, RunEnded, Extended, StopRequested, SweepEnded)
}


def parse(line: bytes) -> SweepEvent | None:
    """Return the event of a journal line, or None if the line is invalid."""
    try:
        document = json.loads(line)
        return read_checked(EVENT_TYPES[document["type"]], document)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
