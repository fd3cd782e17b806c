"""The one schema of events: what each kind must say, for the launcher, the supervisor, the run store and the client.

Any program may print a line that looks like an event, and a log may reach us damaged. `checked` lets pass what keeps
to the schema; whoever reads an event after that may rely on every field named here. Standard library only.
"""

from __future__ import annotations

import json
import math
from typing import Any, Callable, Mapping, NamedTuple, Optional, Union

LARGEST = 2**63
"""Whole numbers stay below: larger ones are no counts, and break whoever divides by them or shows them."""

LONGEST_TYPE = 64
ENDS = ("succeeded", "failed", "stopped")


class Wrong(Exception):
    """A value that is not of its kind."""


Kind = Callable[[Any], Any]
"""Gives the value as it is to be used; raises `Wrong`."""


def whole(value: Any) -> int:
    """A whole number."""
    if isinstance(value, int) and not isinstance(value, bool) and -LARGEST < value < LARGEST:
        return value
    raise Wrong


def number(value: Any) -> Union[int, float]:
    """A number that one can calculate with."""
    if isinstance(value, float) and math.isfinite(value):
        return value
    return whole(value)


def moment(value: Any) -> Union[int, float]:
    """Seconds since 1970, of a year with four digits."""
    if 0 <= number(value) < 253_402_300_800:
        return number(value)
    raise Wrong


def measure(value: Any) -> Union[int, float]:
    """What a program measured: also NaN, which JSON lacks and null stands for, and infinity, which 400 digits are."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Wrong
    try:
        return value if -LARGEST < value < LARGEST else float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def text(value: Any) -> str:
    """Text, also an empty one."""
    if isinstance(value, str):
        return value
    raise Wrong


def flag(value: Any) -> bool:
    """True or false."""
    if isinstance(value, bool):
        return value
    raise Wrong


def mapping(value: Any) -> dict[str, Any]:
    """Names and values of any kind."""
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return value
    raise Wrong


def measures(value: Any) -> dict[str, Any]:
    """Names and measures; what is none of them is left out."""
    found = {}
    for name, item in mapping(value).items():
        try:
            found[name] = measure(item)
        except Wrong:
            continue
    if value and not found:
        raise Wrong
    return found


def one_of(*values: str) -> Kind:
    """One of some words."""

    def word(value: Any) -> str:
        if isinstance(value, str) and value in values:
            return value
        raise Wrong

    return word


class Fields(NamedTuple):
    """What an object must and may hold. A field that it may hold and that is wrong is left out."""

    must: Mapping[str, Any] = {}
    may: Mapping[str, Any] = {}

    def __call__(self, value: Any) -> dict[str, Any]:
        """The object, checked: itself a kind, for objects inside events."""
        found = dict(mapping(value))
        for name, kind in self.must.items():
            if name not in found:
                raise Wrong
            found[name] = kind(found[name])
        for name, kind in self.may.items():
            if name in found:
                try:
                    found[name] = kind(found[name])
                except Wrong:
                    del found[name]
        return found


_CAUSE_MAY = {
    "attempt": whole,
    "file": text,
    "line": whole,
    "code": text,
    "traceback": text,
    "consequence": flag,
    "hint": text,
    "stack": text,
}
CAUSE = Fields({"rank": whole, "node": whole, "time": moment, "exception": text, "message": text}, _CAUSE_MAY)
"""Why something failed. `rank` -1: the node itself."""

_ENVELOPE = {"time": moment, "node": whole, "rank": whole, "seq": whole}
"""Fields of every event: they may be missing, never wrong."""

_PROGRESS = ("epoch", "epochs", "step", "steps", "samples_per_s")

SCHEMA: Mapping[str, Fields] = {
    # The launcher's own.
    "node_started": Fields({"time": moment, "node": whole}, {"pid": whole, "host": text, "scratch": text}),
    "node_ended": Fields(
        {"node": whole, "outcome": one_of(*ENDS)},
        {"error": CAUSE, "why": text, "seconds": number, "forced": flag, "stop_asked": moment, "stopped_by": text},
    ),
    "restarted": Fields({"node": whole, "attempt": whole}, {"why": text}),
    # Of the processes that the launcher starts.
    "rank_started": Fields({"time": moment, "rank": whole}, {"local_rank": whole, "attempt": whole, "pid": whole}),
    "rank_ended": Fields({"time": moment, "rank": whole, "exitcode": whole}, {"group": whole}),
    "rank_failed": Fields({"time": moment, "local_rank": whole, "exitcode": whole}),
    "error": CAUSE,
    "warning": Fields({"message": text}),
    # Of programs.
    "metrics": Fields({"values": measures}, {"step": number, "epoch": number}),
    "progress": Fields(may={**dict.fromkeys(_PROGRESS, number), "loss": measure}),
    "checkpoint": Fields(may={"step": number, "path": text, "seconds": number, "stall_seconds": number}),
    "resumed": Fields(may={"step": number, "epoch": number}),
    "result": Fields(may={"outcome": text, "step": number, "parameters_sha256": text}),
    # Of the client and the supervisor, in the run folder only.
    "submitting": Fields(
        {"time": moment, "name": text, "provider": text, "contract": text, "nodes": whole, "processes": whole},
        {"adopted": flag, "owner": text},
    ),
    "image": Fields({"address": text}, {"planned": text, "digest": text}),
    "submitted": Fields({"ref": mapping}),
    "phase": Fields({"time": moment, "phase": text}, {"since": moment, "running": flag, "instance": text}),
    "log_unread": Fields({"time": moment, "reason": text}, {"hint": text, "code": text, "transient": flag}),
    "kept": Fields({"time": moment, "status": text}, {"until": moment, "seconds": number, "by": text}),
    "stop_requested": Fields({"time": moment}, {"reason": text}),
    "cursor": Fields(may={"streams": mapping, "sizes": mapping}),
    "ended": Fields({"time": moment, "state": one_of(*ENDS)}, {"reason": text, "error": CAUSE, "billing": mapping}),
}


LAUNCHERS = ("node_started", "node_ended", "restarted")
"""Events that only a launcher tells."""

CLIENTS = (
    *(
        "submitting",
        "image",
        "creating",
        "submitted",
        "phase",
        "cursor",
        "log_unread",
        "kept",
        "stop_requested",
        "ended",
    ),
)
"""Events that only we may write; a job that prints one is not believed."""


def parse(line: bytes) -> Optional[dict[str, Any]]:
    """The event in a line of JSON; None when it is none of the kind that it says."""
    try:
        return checked(json.loads(line))
    except (ValueError, RecursionError):
        return None


def checked(event: Any) -> Optional[dict[str, Any]]:
    """The event as it may be used, None when it does not keep to the schema. Kinds that are not ours pass.

    A new dict: what is wrong among what an event may hold is left out, numbers beyond all measure become infinite.
    """
    kind = event.get("type") if isinstance(event, dict) else None
    if not isinstance(kind, str) or not 0 < len(kind) <= LONGEST_TYPE:
        return None
    try:
        for name, wanted in _ENVELOPE.items():
            if name in event:
                wanted(event[name])
        return SCHEMA[kind](event) if kind in SCHEMA else dict(event)
    except Wrong:
        return None
