"""The events of a sweep, appended to its journal: all that the state of a sweep is computed from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

from cloudtrain.spec.search_space import Scalar
from cloudtrain.sweeps.checked import read_checked


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepEvent:
    """What has happened; `time` is a Unix timestamp."""

    TYPE: ClassVar[str] = ""
    time: float

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, with the `type`."""
        return {"type": self.TYPE, **asdict(self)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Suggested(SweepEvent):
    """A trial has been given its values. Its run is not started yet."""

    TYPE: ClassVar[str] = "suggested"
    trial: int
    """From 0, in the order in which they are suggested."""
    parameters: Mapping[str, Scalar]


@dataclass(frozen=True, kw_only=True, slots=True)
class Launching(SweepEvent):
    """A run of a trial is about to be submitted under this id: from now on it may exist."""

    TYPE: ClassVar[str] = "launching"
    trial: int
    run: str
    until: int | None = None
    """At which report of the metric the run ends by itself, to wait for its promotion; None: it
    trains to its end.
    """
    resumes: str = ""
    """The run whose checkpoints it goes on from; empty: it begins anew."""
    cap_usd: float | None = None
    """The most that this run can cost; None where nothing is billed."""
    cap_seconds: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Reported(SweepEvent):
    """A trial has reported the metric."""

    TYPE: ClassVar[str] = "reported"
    trial: int
    report: int
    """How many reports the trial has made with this one, from 1, over all of its runs."""
    value: float | None
    """None: not a finite number."""
    position: float | None = None
    """Its training step, or else its epoch; None if the program has told neither."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunEnded(SweepEvent):
    """A run of a trial has ended."""

    TYPE: ClassVar[str] = "run_ended"
    trial: int
    run: str
    outcome: Literal[
        "completed", "pruned", "paused", "failed", "too_large", "interrupted", "stopped", "refused"
    ]
    """completed: it trained to its end; pruned: it was behind at a rung; paused: it has reached its
    rung, and waits for its promotion; too_large: in a search for a batch size, it needed more
    memory than there is, or more data; interrupted: the platform took its machine away; stopped:
    somebody stopped it; refused: it was never started.
    """
    reason: str = ""
    cause: str = ""
    """Exception of the program, such as ModuleNotFoundError; empty if none is known."""
    usd: float | None = None
    """What it cost; None where that is unknown: then its cap counts."""
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Extended(SweepEvent):
    """More trials are wanted."""

    TYPE: ClassVar[str] = "extended"
    trials: int
    """In all, with those before."""
    parallel: int | None = None
    """How many run at once from now on; None: as before."""
    budget_usd: float | None = None
    """Budget of all trials from now on, in US dollars; None: as before."""
    budget_seconds: float | None = None
    """The same in seconds."""
    resumes: bool = False
    """Whether trials that a stop interrupted go on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StopRequested(SweepEvent):
    """Somebody wants the sweep to stop: no trial is started any more, and those that run are
    stopped.
    """

    TYPE: ClassVar[str] = "stop_requested"


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepEnded(SweepEvent):
    """No trial runs, and none is to be started."""

    TYPE: ClassVar[str] = "ended"
    state: Literal["succeeded", "failed", "stopped"]
    reason: str = ""


EVENT_TYPES: Mapping[str, type[SweepEvent]] = {
    kind.TYPE: kind
    for kind in (Suggested, Launching, Reported, RunEnded, Extended, StopRequested, SweepEnded)
}


def parse(line: bytes) -> SweepEvent | None:
    """Return the event in a line of the journal; None unless the line holds a valid event of a
    known type.
    """
    try:
        document = json.loads(line)
        return read_checked(EVENT_TYPES[document["type"]], document)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
